"""Measuring: the default timer, races, and their statistics. The only room that reads a clock; see docs/measuring.md."""

from __future__ import annotations

import torch

from tt_core.clock.block import TooSlowError
from tt_core.clock.builts import race_builts
from tt_core.clock.decide import (
    against,
    beats,
    beats_end_to_end,
    break_even_calls,
    kept,
    lifecycle_s,
    noise_sentence,
    ties,
)
from tt_core.clock.lock import tuning, tuning_lock
from tt_core.clock.passes import PassTiming, passes
from tt_core.clock.race import race
from tt_core.clock.rules import PASSES, UNIT, Rules
from tt_core.clock.runner import Runner
from tt_core.clock.statistics import median_interval, noise_of, ratio_interval
from tt_core.clock.timer import WallTimer
from tt_core.hookspecs import hookimpl

__all__ = [
    "PASSES",
    "UNIT",
    "PassTiming",
    "Rules",
    "Runner",
    "TooSlowError",
    "WallTimer",
    "against",
    "beats",
    "beats_end_to_end",
    "break_even_calls",
    "kept",
    "lifecycle_s",
    "median_interval",
    "noise_of",
    "noise_sentence",
    "passes",
    "race",
    "race_builts",
    "ratio_interval",
    "ties",
    "tt_timer",
    "tuning",
    "tuning_lock",
]


@hookimpl(trylast=True)
def tt_timer(device: torch.device) -> WallTimer:
    """The wall clock, for whoever brought no timer of their own."""
    return WallTimer(device)
