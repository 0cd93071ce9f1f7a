"""Whether ONNX Runtime can run here, and what its errors say."""

from __future__ import annotations

import functools
import re
from importlib import metadata
from typing import Any

import torch

import tt_core as tt

NEEDED = {"onnxruntime": (1, 22), "onnx": (1, 18), "onnxscript": (0, 5)}
"""Packages and the first release of each that takes what `torch.onnx.export` of torch 2.11 makes and asks."""

PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
"""ONNX Runtime's name for a torch device type."""

_ALTERNATIVES = ("onnxruntime", "onnxruntime-gpu")
"""Distributions that hold the module `onnxruntime`."""

_COLOURS = re.compile(r"\x1b\[[0-9;]*m|\[\d+m")
_CODE = re.compile(r"^\[ONNXRuntimeError\] : \d+ : [A-Z_]+ : ")
_PLACE = re.compile(r"^.*?Status Message: (?:\S+\.(?:cc|h):\d+ )?")


def probe(device: torch.device) -> tt.Ready | tt.Unavailable:
    """Answers the hook of the same name; imports ONNX Runtime only where all versions fit, and onnxscript never.

    Args:
        device: the torch device that units are on.
    """
    for name, needed in NEEDED.items():
        version = installed(name)
        if version is None:
            return tt.Unavailable(reason=f"{name} is not installed", hint='pip install "tt-core[onnxruntime]"')
        if numbers(version) < needed:
            text = ".".join(map(str, needed))
            reason = f"{name} {version} is installed, {text} or newer is needed"
            return tt.Unavailable(reason=reason, hint=f'pip install --upgrade "{name}>={text}"')
    version = installed("onnxruntime")
    try:
        available = providers()
    except (ImportError, OSError, RuntimeError) as error:
        return tt.Unavailable(reason=f"onnxruntime {version} does not start: {one_line(error)}")
    wanted = PROVIDERS.get(device.type, "")
    if wanted not in available:
        seen = ", ".join(name.removesuffix("ExecutionProvider") for name in available)
        return tt.Unavailable(reason=f"onnxruntime {version} has no provider for {device} (it has: {seen})")
    return tt.Ready(note=f"ONNX Runtime {version}, {wanted.removesuffix('ExecutionProvider')} provider")


def installed(name: str) -> str | None:
    """The installed version of a package, None without one; of `onnxruntime` under any of its distributions' names."""
    for distribution in _ALTERNATIVES if name == "onnxruntime" else (name,):
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return None


def numbers(version: str) -> tuple[int, ...]:
    """The first two numbers of a version: `1.32.0` is (1, 32)."""
    return tuple(int(part) if part.isdigit() else 0 for part in version.split(".")[:2])


def providers() -> tuple[str, ...]:
    """The providers that the installed package has."""
    import onnxruntime

    return tuple(onnxruntime.get_available_providers())


@functools.cache
def failures() -> tuple[type[Exception], ...]:
    """What ONNX Runtime raises: its own classes share no base but `Exception`."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    found: list[Any] = [kind for kind in vars(state).values() if isinstance(kind, type)]
    return (RuntimeError, *(kind for kind in found if issubclass(kind, Exception)))


def one_line(error: BaseException) -> str:
    """The reason in one line: an exporter's innermost cause; an error of ONNX Runtime without code and place."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in _COLOURS.sub("", str(error)).splitlines() if line.strip()]
    line = lines[0] if lines else type(error).__name__
    return _PLACE.sub("", _CODE.sub("", line))[:200]
