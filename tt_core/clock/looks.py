"""A look at a race: who can still win. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from tt_core.clock.rules import Rules
from tt_core.clock.statistics import median_interval, ratio_interval


def staying(ratios: Mapping[int, Sequence[float]], rules: Rules) -> frozenset[int]:
    """Which candidates have to run on.

    A candidate leaves when it cannot win any more: its interval lies above what counts as faster than the baseline, or
    above the leader's by more than the tie tolerance. All leave when the leader has won: it is faster than the baseline
    beyond the tolerance (on the best guess, where an earlier race was won), and each other candidate is either out or known
    not to be slower by more than the tolerance.

    Args:
        ratios: per candidate still in the race, its time over the baseline's in each round.
        rules: the race's.

    Returns:
        The candidates that stay; empty: the race is over.
    """
    able = {who: r for who, r in ratios.items() if median_interval(r, rules.confidence).low < rules.faster}
    if not able:
        return frozenset()
    leader = min(able, key=lambda who: statistics.median(able[who]))
    tie = 1.0 + rules.tie_tolerance
    rivals = {who: ratio_interval(r, able[leader], rules.confidence) for who, r in able.items() if who != leader}
    near = {who: gap for who, gap in rivals.items() if gap.low <= tie}
    lead = median_interval(able[leader], rules.confidence)
    won = (lead.mid if rules.won_before else lead.high) < rules.faster
    if won and all(gap.high <= tie for gap in near.values()):
        return frozenset()
    return frozenset({leader, *near})


def promising(ratios: Mapping[int, Sequence[float]], rules: Rules) -> frozenset[int]:
    """Who deserves more time than the others: while nobody has won, those ahead by more than the tolerance on the best guess.

    Args:
        ratios: per candidate, also those that left, its time over the baseline's in each round.
        rules: the race's.
    """
    if any(median_interval(r, rules.confidence).high < rules.faster for r in ratios.values()):
        return frozenset()
    return frozenset(who for who, r in ratios.items() if statistics.median(r) < rules.faster)
