"""The wall clock: the one place that reads time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tt_core.clock.runner import nothing
from tt_core.values import Call


class WallTimer:
    """`hookspecs.Timer` by the process's monotonic clock, the device synchronised around each call."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        self._synchronize = synchronizer(self.device)

    def now(self) -> float:
        """Seconds of a monotonic clock, the device's queued work done."""
        self._synchronize()
        return time.perf_counter()  # noqa: TID251  the door to the clock

    def block(self, call: Callable[..., Any], calls: Sequence[Call]) -> list[float]:
        """Seconds of each of `calls`, in order; a result is dropped only after its call was stamped."""
        synchronize, clock = self._synchronize, time.perf_counter  # noqa: TID251  the door to the clock
        stamps = []
        for each in calls:
            args, kwargs = each.args, each.kwargs
            synchronize()
            start = clock()
            result = call(*args, **kwargs)
            synchronize()
            stamps.append(clock() - start)
            del result
        return stamps

    def queued(self, call: Callable[..., Any], calls: Sequence[Call]) -> float | None:
        """Seconds of the device for one of `calls` on average, all queued without waiting, between two of its events.

        Far below `block`'s figure, the host is what a lone call waits for: launches, copies, Python. Not below it, the
        device is busy all the time (or the call itself waits for it).

        Returns:
            None on the CPU, and where torch has no events that tell time.
        """
        kind = (
            None
            if self.device.type in {"cpu", "meta"}
            else getattr(torch.get_device_module(self.device), "Event", None)
        )
        if kind is None:
            return None
        with torch.get_device_module(self.device).device(self.device):
            begin, end = kind(enable_timing=True), kind(enable_timing=True)
            self._synchronize()
            begin.record()
            results = [call(*each.args, **each.kwargs) for each in calls]
            end.record()
            self._synchronize()
        del results
        return float(begin.elapsed_time(end)) / 1e3 / len(calls)


def synchronizer(device: torch.device) -> Callable[[], None]:
    """What waits for all work queued on `device`: nothing on the CPU, where no device may be started for it."""
    if device.type in {"cpu", "meta"}:
        return nothing
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is not None and accelerator.type == device.type:
        return lambda: torch.accelerator.synchronize(device)
    module = torch.get_device_module(device)  # a second kind of accelerator beside the current one
    synchronize: Callable[[], None] = module.synchronize
    return synchronize
