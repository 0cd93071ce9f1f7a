"""What a payload was made for, beside the model: versions and hardware, and how this process differs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch

_SAME = {
    "torch": "it was made with torch {then}, this is {now}: install torch {then}",
    "system": "it was made on {then}, this is {now}: tune on a system like this",
    "cpu": "it was made for a processor with {then}, this one has {now}: tune on a processor like this",
    "accelerator": "it was made for {then}, this is {now}: tune on a device like this",
}
_SHOWN = 5
_CPUINFO = Path("/proc/cpuinfo")


def flags() -> tuple[str, ...]:
    """Instructions that this processor has, where the system tells; else what torch uses."""
    try:
        lines = _CPUINFO.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        lines = []
    found = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    names = found.partition(":")[2].split() or [torch.backends.cpu.get_cpu_capability()]
    return tuple(sorted(set(names)))


def differences(
    then: Mapping[str, str], now: Mapping[str, str], then_flags: Sequence[str], now_flags: Sequence[str], *, code: bool
) -> Iterator[str]:
    """What keeps payloads made in one environment from being opened in another, a sentence each.

    Args:
        then: of the file.
        now: of this process, for the device of the object.
        then_flags: instructions of the processor that the file was made on.
        now_flags: of this one.
        code: whether there is native code among the payloads.
    """
    was, here = (each.get("device", "").partition(":")[0] for each in (then, now))
    if was != here:
        yield f"it was made on {was or 'no device'}, and the object is on {here}: move the object, or tune it there"
        return
    for name, text in _SAME.items():
        if then.get(name) != now.get(name):
            yield text.format(then=then.get(name, "no known one"), now=now.get(name, "no known one"))
    was, here = (".".join(each.get("python", "").split(".")[:2]) for each in (then, now))
    if was != here:
        yield f"it was made with Python {was or '?'}, this is {here}: run it with Python {was or '?'}"
    missing = sorted(set(then_flags) - set(now_flags))
    if code and missing:
        named = ", ".join(missing[:_SHOWN])
        yield f"it holds code for a processor with {named}, which this one lacks: tune on a processor like this"
