"""Statistics of a race."""

from __future__ import annotations

import math
import random

import pytest

from tt_core.clock import median_interval, noise_of, ratio_interval
from tt_core.clock.statistics import rank_of


@pytest.mark.parametrize(
    ("count", "confidence", "rank"),
    [
        (7, 0.99, 0),  # 1 - 2/128 = 0.984: not even the range
        (8, 0.99, 1),  # 1 - 2/256 = 0.992
        (11, 0.99, 1),  # 1 - 2 * 12/2048 = 0.988 for rank 2
        (12, 0.99, 2),  # 1 - 2 * 13/4096 = 0.9937
        (10, 0.95, 2),  # 1 - 2 * 11/1024 = 0.979
        (100, 0.95, 40),  # the textbooks' 40th and 61st of 100
    ],
)
def test_rank_by_hand(count, confidence, rank):
    """The ranks of the interval are those of the binomial table."""
    assert rank_of(count, confidence) == rank


def test_rank_agrees_with_exact_binomials():
    """Logarithms lose nothing: ranks equal those of exact integer arithmetic."""
    for count in range(1, 200):
        covered = [k for k in range(1, count // 2 + 1) if 200 * sum(math.comb(count, i) for i in range(k)) <= 2**count]
        assert rank_of(count, 0.99) == max(covered, default=0)


def test_interval_takes_the_order_statistics():
    """Of twelve values the second smallest and the second largest bound the median."""
    interval = median_interval([12, 1, 11, 2, 10, 3, 9, 4, 8, 5, 7, 6])
    assert (interval.low, interval.mid, interval.high) == (2, 6.5, 11)


def test_interval_of_few_is_the_range():
    """Fewer than eight values give their whole range, however wide."""
    interval = median_interval([3.0, 1.0, 2.0])
    assert (interval.low, interval.mid, interval.high) == (1.0, 2.0, 3.0)


def test_interval_covers_the_median():
    """On skewed draws the interval misses the true median in about 1 % of cases, never in 3 %."""
    rng = random.Random(1)
    draws = [median_interval([rng.expovariate(math.log(2)) for _ in range(16)]) for _ in range(2000)]
    misses = sum(not draw.low <= 1.0 <= draw.high for draw in draws)
    assert misses < 0.03 * len(draws)


def test_ratios_are_paired():
    """A drift that both share leaves the ratio exact; rounds of only one are left out."""
    interval = ratio_interval([1, 2, 4, 8, 16, 32, 64, 128], [2, 4, 8, 16, 32, 64, 128, 256, 1, 1])
    assert (interval.low, interval.high) == (0.5, 0.5)


def test_noise_is_relative_to_the_sample():
    """Blocks of different samples differ by size, which is no noise; what is left is the median relative deviation."""
    assert noise_of([1.0, 5.0, 1.0, 5.0], [0, 1, 0, 1]) == 0.0
    assert noise_of([0.9, 1.0, 1.1, 1.0, 1.3], [0] * 5) == pytest.approx(0.1)
