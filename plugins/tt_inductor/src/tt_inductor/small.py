"""A whole object that computes so little that most of a call is overhead: both ways are built, and raced."""

from __future__ import annotations

import torch

import tt_core as tt
from tt_inductor.warm import ambient

_SMALL_S = 100e-6
"""Seconds a call: a package lacks what Dynamo does around each, some 40 us; of longer calls that is no longer much."""


def is_small(built: tt.Built, calls: tt.Calls, device: torch.device) -> bool:
    """Whether a call of what was built is short, and may be repeated: the unit writes nothing and draws no numbers."""
    facts = calls.facts
    if facts.writes_inputs or facts.writes_state or facts.random:
        return False
    with ambient(calls.key, inference=False):
        (timing,) = tt.race_builts([built], calls, device)
    return isinstance(timing, tt.Timing) and timing.median < _SMALL_S


def speedup(just: tt.Built, ahead: tt.Built, calls: tt.Calls, device: torch.device) -> float:
    """How many times as fast a call is ahead of time, for sure: the lower end of the race's interval; 0 if it failed."""
    with ambient(calls.key, inference=False):
        _, timing = tt.race_builts([just, ahead], calls, device)
    return 1 / timing.interval.high if isinstance(timing, tt.Timing) else 0.0
