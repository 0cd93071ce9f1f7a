"""The default correctness check, and the probes for promises that results alone do not show.

A plugin like any other: its `tt_check` is asked beside those of other plugins, and every one can only veto.
"""

from __future__ import annotations

from collections.abc import Sequence

from tt_core.check.probes import covers_probe, stale_after_write
from tt_core.check.verdicts import compare, whole
from tt_core.hookspecs import hookimpl
from tt_core.values import Facts, Observation, Tolerance, Verdict

__all__ = ["compare", "covers_probe", "stale_after_write", "tt_check", "whole"]


@hookimpl
def tt_check(
    facts: Facts,
    expected: Sequence[Observation],
    actual: Sequence[Observation],
    truth: Sequence[Observation | None],
    tolerance: Tolerance,
) -> Verdict:
    """The core's own verdict: `compare`."""
    return compare(facts, expected, actual, truth, tolerance)
