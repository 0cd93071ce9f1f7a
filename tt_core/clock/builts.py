"""A race for a backend that has more than one way to build a unit."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tt_core.clock.race import race
from tt_core.clock.runner import Runner
from tt_core.clock.timer import WallTimer
from tt_core.contain import Caught
from tt_core.values import Built, Calls, Timing


def race_builts(builts: Sequence[Built], calls: Calls, device: torch.device) -> tuple[Timing | Caught, ...]:
    """Races builts of one unit on its recorded calls, under the grad mode of the caller; the wall clock is read.

    For units that neither write nor draw random numbers: the calls are repeated as they are.

    Args:
        builts: at least one; the ratios of the others' timings are over the first.
        calls: what to call them with, without their guards.
        device: where they run.

    Returns:
        Per built its timing, or what it failed with.
    """
    timer = WallTimer(device)
    runners = [Runner(name=str(index), call=built.call) for index, built in enumerate(builts)]
    return race(timer, runners, lambda: [sample.call for sample in calls.samples], device=device)
