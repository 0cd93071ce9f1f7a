"""Packages in a file and back: native code, made for one version of torch and one kind of processor."""

from __future__ import annotations

import platform
import shutil
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import tt_core as tt
from tt_inductor import aot, program
from tt_inductor.aot import Shared
from tt_inductor.compiling import private
from tt_inductor.program import Constant, Package
from tt_inductor.quiet import quiet
from tt_inductor.warm import ambient

FORMAT = 1
_FILE = "package.pt2"
_ELSEWHERE = "tune again on this machine"


def dump(built: tt.Built, folder: Path) -> Mapping[str, Any]:
    """Writes the package of `built` into `folder`.

    Returns:
        What `restore` needs beside the file: no weights, no samples, no paths.

    Raises:
        BuildRefusedError: mode "jit" has nothing to write; baked weights and what cannot be said in JSON are not written.
    """
    shared = aot.shared_of(built)
    if shared is None:
        raise tt.BuildRefusedError('mode "jit" has nothing to write', 'options mode="aot" can be saved')
    if shared.baked:
        raise tt.BuildRefusedError("its weights are baked into the package")
    if shared.fits is not None:
        raise tt.BuildRefusedError("what sizes it is right for cannot be said in ranges")
    dumped = {
        "format": FORMAT,
        "machine": machine(shared.package.device),
        "sizes": [list(size) for size in shared.sizes],
        "constants": [tt.flat.constant_form(value) for value in shared.constants],
        "weights": [[c.name, list(c.shape), list(c.stride), c.dtype] for c in shared.package.constants],
        "ties": [list(names) for names in shared.package.ties],
        "fingerprint": shared.package.fingerprint,
    }
    _copy(shared.package.path, folder / _FILE)
    return dumped


def restore(
    unit: tt.Unit, key: tt.CallKey, covers: tt.Shapes, dumped: Mapping[str, Any], folder: Path, device: torch.device
) -> tt.Built:
    """Loads what `dump` wrote for `unit`; nothing is compiled. The unit runs once, on zeros, to learn its result's form.

    Args:
        unit: of the same program; its weights are used.
        key: of the calls.
        covers: the sizes that the dumped built covered.
        dumped: what `dump` returned.
        folder: where it wrote; may be deleted afterwards.
        device: where the unit is.

    Raises:
        BuildRefusedError: another format, torch, processor or device; other weights than those of the program.
    """
    if dumped.get("format") != FORMAT:
        raise tt.BuildRefusedError(f"format {dumped.get('format')!r} is not the one of this version: {FORMAT}")
    _refuse_other(dumped["machine"], machine(device))
    constants = tuple(tt.flat.read_constant(value) for value in dumped["constants"])
    calls = tt.flat.synthetic(unit.forward, key, covers, dumped["sizes"], constants)
    with quiet(), ambient(key, inference=False):
        flat = tt.flatten_unit(unit, calls)
    path = private() / _FILE
    shutil.copyfile(folder / _FILE, path)
    package = Package(
        path=path,
        device=device,
        constants=tuple(_constant(*entry) for entry in dumped["weights"]),
        ties=tuple(tuple(names) for names in dumped["ties"]),
        fingerprint=dumped["fingerprint"],
    )
    shared = Shared(
        package=program.owned(package),
        kind=type(unit.module),
        pack=flat.pack,
        unpack=flat.unpack,
        key=key,
        covers=covers,
        fits=None,
        sizes=tuple(tuple(size) for size in dumped["sizes"]),
        constants=constants,
        twin=unit.twin,
        baked=False,
    )
    _refuse_unknown(package)
    return aot.bound(shared, unit)


def machine(device: torch.device) -> dict[str, Any]:
    """What native code depends on."""
    found: dict[str, Any] = {
        "torch": torch.__version__,
        "system": platform.system(),
        "processor": platform.machine(),
        "features": _features(),
        "device": device.type,
    }
    if device.type == "cuda":
        found["capability"] = list(torch.cuda.get_device_capability(device))
    return found


def _features() -> list[str]:
    """Instructions that this processor has: code is compiled for all of them."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return [torch.backends.cpu.get_cpu_capability()]
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), ":")
    return sorted(flags.partition(":")[2].split())


def _refuse_other(then: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    for name in ("torch", "system", "processor", "device", "capability"):
        if then.get(name) != now.get(name):
            text = f"it was compiled for {name} {then.get(name)}, this is {now.get(name)}"
            raise tt.BuildRefusedError(text, _ELSEWHERE)
    missing = sorted(set(then["features"]) - set(now["features"]))
    if missing:
        raise tt.BuildRefusedError(f"this processor lacks {', '.join(missing[:5])}, which its code may use", _ELSEWHERE)


def _refuse_unknown(package: Package) -> None:
    """A package that asks for other weights than were dumped would crash at its first call."""
    asked = program.asked_of(package.path, package.device)
    if set(asked) != {constant.name for constant in package.constants}:
        raise tt.BuildRefusedError("the package reads other weights than were written down with it")


def _constant(name: str, shape: Sequence[int], stride: Sequence[int], dtype: str) -> Constant:
    return Constant(name=name, shape=tuple(shape), stride=tuple(stride), dtype=dtype)


def _copy(source: Path, target: Path) -> None:
    """The package without its sources, and without the places of this machine that debug information names."""
    hidden = [text.encode() for text in _places()]
    with zipfile.ZipFile(source) as whole, zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as made:
        for entry in whole.infolist():
            if entry.filename.endswith((".cpp", ".h")):
                continue
            content = whole.read(entry)
            for place in hidden:
                content = content.replace(place, b"/" + b"_" * (len(place) - 1))  # of equal length: offsets stay
            made.writestr(zipfile.ZipInfo(entry.filename), content)


def _places() -> list[str]:
    """Folders that name a user or a machine, longest first."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    places = {
        cache_dir(),
        str(Path(torch.__file__).parent),
        sys.prefix,
        sys.base_prefix,
        str(Path.home()),
        str(Path.cwd()),
    }
    return sorted((place for place in places if len(place) > 1), key=len, reverse=True)
