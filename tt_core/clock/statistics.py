"""The statistics of a race: pure functions over plain numbers, each with its source."""

from __future__ import annotations

import math
import statistics
from collections.abc import Hashable, Sequence

from tt_core.values import Interval


def rank_of(count: int, confidence: float) -> int:
    """The largest rank k such that the k-th smallest and k-th largest of `count` values hold the median with `confidence`.

    The number of values below the median is binomial(count, 1/2), whatever the distribution, so the interval covers the
    median with probability `1 - 2 P(B < k)` (W. R. Thompson, 1936; H. A. David, Order Statistics, section 7.1).

    Args:
        count: how many values, at least 1.
        confidence: between 0 and 1.

    Returns:
        A rank from 1; 0 where even the whole range covers less than `confidence` (under 8 values at 0.99).
    """
    allowed = (1.0 - confidence) / 2.0
    tail, rank = 0.0, 0
    for below in range(count // 2):
        tail += math.exp(_log_half_binomial(count, below))
        if tail > allowed:
            break
        rank = below + 1
    return rank


def _log_half_binomial(count: int, successes: int) -> float:
    ways = math.lgamma(count + 1) - math.lgamma(successes + 1) - math.lgamma(count - successes + 1)
    return ways - count * math.log(2.0)


def median_interval(values: Sequence[float], confidence: float = 0.99) -> Interval:
    """The median of `values` and its order-statistic interval, free of assumptions about the distribution.

    Args:
        values: at least one number; independent draws, in any order.
        confidence: probability that the interval holds the true median.

    Returns:
        The interval; the whole range where there are too few values for `confidence` (see `rank_of`).
    """
    ordered = sorted(values)
    rank = max(rank_of(len(ordered), confidence), 1)
    return Interval(low=ordered[rank - 1], mid=statistics.median(ordered), high=ordered[-rank])


def ratio_interval(over: Sequence[float], under: Sequence[float], confidence: float = 0.99) -> Interval:
    """The interval of `over / under`, paired by round over the rounds that both have.

    Pairing takes slow drift out: both figures of a round come from the same few milliseconds (a sign test on paired
    ratios: the order inside a round is drawn anew, so equal runners are ahead equally often under any noise).
    """
    return median_interval([a / b for a, b in zip(over, under, strict=False)], confidence)


def noise_of(figures: Sequence[float], groups: Sequence[Hashable]) -> float:
    """Median absolute deviation of `figures` relative to the median of their group (the sample they were measured on).

    A robust spread (F. R. Hampel, 1974), without the factor 1.4826 that would make it a standard deviation.
    """
    middles = {g: statistics.median(f for f, h in zip(figures, groups, strict=True) if h == g) for g in set(groups)}
    return statistics.median(abs(f / middles[g] - 1.0) for f, g in zip(figures, groups, strict=True))
