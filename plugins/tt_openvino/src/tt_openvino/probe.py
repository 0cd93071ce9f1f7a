"""Whether OpenVINO can run here, and under which name it knows a torch device."""

from __future__ import annotations

import functools
from importlib import metadata
from typing import Any

import torch

import tt_core as tt

OLDEST = (2025, 4)
"""The first release whose converter takes what `torch.export` of torch 2.11 makes."""

LOWERED = {"openvino_bf16": "BF16", "openvino_f16": "FP16"}
"""Backends of a lower precision and the device capability that they need."""

_PREFACES = ("Check '", "Exception from", "FrontEnd API failed", "Model wasn't fully converted", "Summary:")
"""Lines of OpenVINO's errors that come before the reason."""


def probe(backend: str, device: torch.device) -> tt.Ready | tt.Unavailable:
    """Answers the hook of the same name; imports OpenVINO only when its version fits.

    Args:
        backend: the declared name.
        device: the torch device that units are on.
    """
    version = installed()
    if version is None:
        return tt.Unavailable(reason="openvino is not installed", hint='pip install "tt-core[openvino]"')
    if _numbers(version) < OLDEST:
        needed = ".".join(map(str, OLDEST))
        reason = f"openvino {version} is installed, {needed} or newer is needed"
        return tt.Unavailable(reason=reason, hint=f'pip install --upgrade "openvino>={needed}"')
    try:
        available = tuple(core().available_devices)
    except (ImportError, OSError, RuntimeError) as error:
        return tt.Unavailable(reason=f"openvino {version} does not start: {one_line(error)}")
    return _on_device(backend, device, available, version)


def _on_device(
    backend: str, device: torch.device, available: tuple[str, ...], version: str
) -> tt.Ready | tt.Unavailable:
    target = target_of(device, available)
    if target is None:
        seen = ", ".join(available) or "none"
        return tt.Unavailable(reason=f"openvino {version} sees no device for {device} (it sees: {seen})")
    needed = LOWERED.get(backend)
    if needed is not None and needed not in capabilities(target):
        return tt.Unavailable(reason=f"{target} does not compute in {needed.lower()}")
    return tt.Ready(note=f"OpenVINO {version} on {target}")


def installed() -> str | None:
    """The installed version of OpenVINO, None without one."""
    try:
        return metadata.version("openvino")
    except metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    """The year and release of a version: `2026.4.1` is (2026, 4)."""
    return tuple(int(part) if part.isdigit() else 0 for part in version.split(".")[: len(OLDEST)])


def target_of(device: torch.device, available: tuple[str, ...]) -> str | None:
    """OpenVINO's name of a torch device: `cpu` is CPU, `xpu:N` is GPU.N (plain GPU where there is one); None without."""
    if device.type == "cpu":
        return "CPU" if "CPU" in available else None
    index = device.index or 0
    named = f"GPU.{index}"
    if named in available:
        return named
    return "GPU" if index == 0 and "GPU" in available else None


@functools.cache
def core() -> Any:
    """The process's `openvino.Core`."""
    import openvino

    return openvino.Core()


def capabilities(target: str) -> frozenset[str]:
    """What a device computes in: `FP32`, `BF16`, `FP16` and the like."""
    return frozenset(core().get_property(target, "OPTIMIZATION_CAPABILITIES"))


def one_line(error: BaseException) -> str:
    """The telling line of an OpenVINO error, which starts with the place in its source."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line.removeprefix("-- ") for line in lines if not line.startswith(_PREFACES)]
    return (telling or lines or [type(error).__name__])[0][:200]
