"""Peak memory of a few calls, where the device or the system tells."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import torch

_STATUS = Path("/proc/self/status")


def watch(device: torch.device) -> Callable[[], int | None]:
    """Starts watching memory.

    On an accelerator its peak counter is reset, the only way to see the peak of a few calls; on the CPU the growth of
    the resident set is read, which is a lower bound (memory that the process held already is used without growth).

    Args:
        device: where the calls run; it is in use already.

    Returns:
        A function that gives the bytes held at the peak beyond those held at the start, None where unknown.
    """
    return _watch_process() if device.type == "cpu" else _watch_device(device)


def _watch_device(device: torch.device) -> Callable[[], int | None]:
    module = torch.get_device_module(device)
    reads = ("memory_allocated", "max_memory_allocated", "reset_peak_memory_stats")
    if not all(hasattr(module, name) for name in reads):
        return lambda: None
    module.reset_peak_memory_stats(device)
    before = module.memory_allocated(device)
    return lambda: int(max(module.max_memory_allocated(device) - before, 0))


def _watch_process() -> Callable[[], int | None]:
    before = resident()

    def growth() -> int | None:
        after = resident()
        if before is None or after is None:
            return None
        top = after[1] if after[1] > before[1] else after[0]  # an old peak says nothing about these calls
        return max(top - before[0], 0)

    return growth


def resident() -> tuple[int, int] | None:
    """Bytes of the process's resident set, now and at its peak; None where the system does not tell."""
    if _STATUS.exists():
        fields = dict(line.split(":", 1) for line in _STATUS.read_text("utf-8").splitlines() if ":" in line)
        if "VmRSS" in fields and "VmHWM" in fields:
            return _kilobytes(fields["VmRSS"]), _kilobytes(fields["VmHWM"])
    return _from_resource() if os.name == "posix" else None


def _kilobytes(text: str) -> int:
    return int(text.split(maxsplit=1)[0]) * 1024


def _from_resource() -> tuple[int, int] | None:
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    peak *= 1 if os.uname().sysname == "Darwin" else 1024  # bytes there, kilobytes elsewhere
    return peak, peak
