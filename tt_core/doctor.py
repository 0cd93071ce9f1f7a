"""What this machine offers to tuning, and why something does not take part. Facts first, words second."""

from __future__ import annotations

import functools
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from typing import Any

import torch

from tt_core.contain import Caught, attempt
from tt_core.environment import environment
from tt_core.guards import native
from tt_core.plugins import Plugins
from tt_core.report.words import clean, many, size
from tt_core.values import EAGER, Ready, Refusal

Facts = dict[str, Any]
_ACCELERATORS = ("cuda", "xpu")
_VECTOR = ("avx", "amx", "fma", "f16c", "neon", "asimd", "sve", "bf16", "i8mm", "dotprod")
_WIDTH = 80
_FIXES = {
    "disabled": "take it out of TT_DISABLE_BACKENDS",
    "import": "install it again in a version that fits; importing the plugin alone shows the whole error",
    "declare": "update or remove the plugin that declares it",
    "api": "install a version of the plugin that fits this tt-core",
}


def examine(plugins: Plugins | None = None) -> Facts:
    """Versions, devices, and every backend with where it is ready, or why it is not; plain JSON values.

    Args:
        plugins: an already loaded set of plugins; None loads all.
    """
    plugins = plugins or Plugins.load()
    found = devices()
    here = [device for device in found if "problem" not in device]
    backends, refused = _backends(plugins, [torch.device(device["device"]) for device in here])
    return {
        "versions": _versions(),
        "devices": found,
        "backends": backends,
        "refused": refused,
        "ok": any(backend["ready"] and backend["name"] != EAGER.name for backend in backends),
    }


def devices() -> list[Facts]:
    """The devices of this machine: what torch can run on, and what it could but for a `problem`."""
    found = [_cpu()]
    for kind in _ACCELERATORS:
        listed = attempt(functools.partial(_accelerators, kind), where=f"devices of {kind}")
        if isinstance(listed, Caught):
            found.append({"device": kind, "name": "", "problem": f"{listed.kind}: {listed.reason}"})
        else:
            found += listed
    return found


def _cpu() -> Facts:
    """Threads and vector instructions; older versions of torch only tell the level that they use."""
    ask = getattr(torch.cpu, "get_capabilities", None)
    asked = attempt(ask, where="cpu capabilities") if ask is not None else {}
    told: Mapping[str, Any] = {} if isinstance(asked, Caught) else asked
    return {
        "device": "cpu",
        "name": str(told.get("cpu_name", "")),
        "threads": torch.get_num_threads(),
        "level": torch.backends.cpu.get_cpu_capability(),
        "isa": sorted(name for name, has in told.items() if has is True and name.startswith(_VECTOR)),
    }


def _accelerators(kind: str) -> list[Facts]:
    runtime = getattr(torch, kind, None)
    if runtime is None or not runtime.is_available():
        return []
    every = [runtime.get_device_properties(i) for i in range(runtime.device_count())]
    return [{"device": f"{kind}:{i}", "name": one.name, "bytes": one.total_memory} for i, one in enumerate(every)]


def _versions() -> dict[str, str]:
    """Python, torch, tt-core and the distributions of the plugins."""
    from tt_core import __version__

    facts = environment(torch.device("cpu"))
    named = {k: v for k, v in facts.items() if k not in {"device", "threads", "cpu"}}
    return {"tt-core": __version__, "tt-native": native.why or _version_of("tt-native"), **named}


def _version_of(distribution: str) -> str:
    """Of one that may be importable and yet not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "in use"


def _backends(plugins: Plugins, here: Sequence[torch.device]) -> tuple[list[Facts], list[Facts]]:
    ready: dict[str, dict[str, str]] = {name: {} for name in plugins.backends}
    refused: list[tuple[Refusal, str]] = [(refusal, "") for refusal in plugins.refused]
    for device in here:
        able, unable = plugins.ready(device)
        for backend in able:
            answer = plugins.probe(backend.name, device)
            ready[backend.name][str(device)] = answer.note if isinstance(answer, Ready) else ""
        refused += [(refusal, str(device)) for refusal in unable if refusal not in plugins.refused]
    listed = [
        {
            "name": backend.name,
            "runs_on": sorted(backend.devices),
            "fidelity": backend.fidelity.name.lower(),
            "layer": backend.layer,
            "ready": ready[backend.name],
        }
        for backend in sorted(plugins.backends.values(), key=lambda b: (b.name != EAGER.name, -b.priority, b.name))
    ]
    return listed, _refusals(refused, ready)


def _refusals(refused: Sequence[tuple[Refusal, str]], ready: Mapping[str, Mapping[str, str]]) -> list[Facts]:
    """Each refusal with its fix; that a backend is for another device is told only if it is ready nowhere."""
    told = [(r, where) for r, where in refused if r.stage != "device" or not ready.get(r.name)]
    return [
        {
            "name": clean(refusal.name),
            "device": where,
            "stage": refusal.stage,
            "reason": clean(refusal.reason),
            "fix": fix(refusal),
        }
        for refusal, where in told
    ]


def fix(refusal: Refusal) -> str:
    """What to do about a refusal; empty where nothing can be done here."""
    if refusal.hint:
        return clean(refusal.hint)
    if "TT_DISABLE_AUTOLOAD" in refusal.reason:
        return "unset TT_DISABLE_AUTOLOAD"
    return _FIXES.get(refusal.stage, "")


def describe(facts: Facts) -> str:
    """What `examine` found, for people."""
    return "\n".join(_lines(facts))


def _lines(facts: Facts) -> Iterator[str]:
    yield from _section("Versions", facts["versions"].items())
    yield from _section("Devices", [(device["device"], _device(device)) for device in facts["devices"]])
    yield from _section("Backends", [(backend["name"], _backend(backend)) for backend in facts["backends"]])
    if facts["refused"]:
        yield "Did not take part"
        for refused in facts["refused"]:
            yield from refusal_lines(refused["name"], refused["reason"], refused["fix"], refused["device"])
        yield ""
    yield _closing(facts)


def _section(title: str, rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    listed = [(clean(name), clean(words)) for name, words in rows]
    width = max(len(name) for name, _ in listed)
    yield title
    for name, words in listed:
        yield textwrap.fill(words, _WIDTH, initial_indent=f"  {name:{width}}  ", subsequent_indent=" " * (width + 4))
    yield ""


def refusal_lines(name: str, reason: str, todo: str, device: str = "") -> Iterator[str]:
    """A refusal, and what to do about it below; a command to copy is never broken."""
    where = f" on {device}" if device else ""
    yield textwrap.fill(
        f"{clean(name)}{where}: {clean(reason)}", _WIDTH, initial_indent="  ", subsequent_indent=" " * 6
    )
    if todo:
        yield f"     -> {todo}"


def _device(device: Facts) -> str:
    if "problem" in device:
        return f"cannot be used: {device['problem']}"
    if "bytes" in device:
        return f"{device['name']}, {size(device['bytes'])}"
    isa = f" ({', '.join(device['isa'])})" if device["isa"] else ""
    return ", ".join(filter(None, [device["name"], many(device["threads"], "thread"), f"{device['level']}{isa}"]))


def _backend(backend: Facts) -> str:
    where = [f"{device} ({note})" if note else device for device, note in backend["ready"].items()]
    kind = f"{backend['fidelity']}{', layer over another backend' if backend['layer'] else ''}"
    state = f"ready on {', '.join(where)}" if where else "not ready here"
    return f"{state}; results: {kind}"


def _closing(facts: Facts) -> str:
    ready = [b["name"] for b in facts["backends"] if b["ready"] and b["name"] != EAGER.name]
    if ready:
        return f"Ready to tune with {', '.join(ready)}."
    return 'Nothing but eager is ready: tuning would change nothing. See above, or: pip install "tt-core[all]"'
