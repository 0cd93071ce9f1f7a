"""A clock for tests: time moves only by what it was told the calls cost."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

from tt_core.values import Call

Cost = float | Sequence[float] | Callable[[int], float]
"""Seconds of every call; or of the first, second, … call, the last one repeated; or a function of the call's index."""


class FakeClock:
    """`hookspecs.Timer` without a clock: the calls really run, their seconds are made up.

    A call's seconds are what was registered for the callable with `cost`, plus what moved the clock inside it
    (callables made by `costing`, and `sleep`). A call that has neither takes `default_s`.
    Seconds that are not finite, or below 0, are reported as they are and do not move the clock.

    Args:
        default_s: seconds of a call that nothing is known about.
    """

    def __init__(self, default_s: float = 0.001) -> None:
        self.default_s = default_s
        self._now = 0.0
        self._costs: dict[Callable[..., Any], Cost] = {}
        self._counts: dict[Callable[..., Any], int] = {}

    def cost(self, call: Callable[..., Any], seconds: Cost) -> None:
        """Registers what each call of this (hashable) callable takes, in seconds; its calls are counted anew."""
        self._costs[call] = seconds
        self._counts[call] = 0

    def costing(self, call: Callable[..., Any], seconds: Cost) -> Callable[..., Any]:
        """`call` wrapped so that the clock moves whenever it runs, wherever it is called from."""
        count = 0

        @functools.wraps(call, updated=())
        def costly(*args: Any, **kwargs: Any) -> Any:
            nonlocal count
            self.sleep(_seconds(seconds, count))
            count += 1
            return call(*args, **kwargs)

        return costly

    def sleep(self, seconds: float) -> None:
        """Moves the clock; not by what is no positive number of seconds."""
        if math.isfinite(seconds) and seconds > 0:
            self._now += seconds

    def now(self) -> float:
        """Seconds since the clock was made."""
        return self._now

    def block(self, call: Callable[..., Any], calls: Sequence[Call]) -> list[float]:
        """Runs each of `calls`; their made-up seconds, in order."""
        return [self._one(call, each) for each in calls]

    def _one(self, call: Callable[..., Any], each: Call) -> float:
        start = self._now
        call(*each.args, **each.kwargs)
        inside = self._now - start
        seconds = self._own(call) if call in self._costs else (0.0 if inside else self.default_s)
        self.sleep(seconds)
        return inside + seconds

    def _own(self, call: Callable[..., Any]) -> float:
        index = self._counts[call]
        self._counts[call] = index + 1
        return _seconds(self._costs[call], index)


def _seconds(cost: Cost, index: int) -> float:
    if callable(cost):
        return float(cost(index))
    if isinstance(cost, Sequence):
        return float(cost[min(index, len(cost) - 1)])
    return float(cost)
