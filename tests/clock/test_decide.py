"""What results mean."""

from __future__ import annotations

import pytest

from tt_core.clock import against, beats, break_even_calls, kept, lifecycle_s, median_interval, noise_sentence, ties
from tt_core.values import Timing


def timing(*ratios, **fields):
    ratios = ratios if len(ratios) > 1 else ratios * 8
    return Timing(seconds=ratios, blocks=ratios, ratios=ratios, interval=median_interval(ratios), **fields)


def test_beating_needs_the_whole_interval():
    """Faster means beyond the tolerance at the interval's slow end."""
    assert beats(timing(0.97), 0.02)
    assert not beats(timing(0.99), 0.02)
    assert not beats(timing(0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.985), 0.02)


def test_ties_with_the_fastest():
    """A tie unless the whole paired interval lies above the tolerance."""
    fastest = timing(0.50)
    assert ties(timing(0.505), fastest, 0.02)
    assert not ties(timing(0.52), fastest, 0.02)
    assert ties(timing(0.505, *[0.6] * 7), fastest, 0.02)
    assert against(timing(0.75), fastest).mid == pytest.approx(1.5)


def test_the_plainer_of_equals_is_kept():
    """The first within the tolerance of the fastest is kept; nothing that does not beat the baseline is."""
    assert kept({0: timing(0.505), 1: timing(0.5), 2: timing(0.9)}, 0.02) == 0
    assert kept({0: timing(0.6), 1: timing(0.5)}, 0.02) == 1
    assert kept({0: timing(0.99), 1: timing(1.5)}, 0.02) is None
    assert kept({}, 0.02) is None


def test_break_even():
    """Build and first call are paid back by what each later call saves; never by a slower one."""
    assert break_even_calls(10.0, 1.0, 1.0, 0.5) == pytest.approx(21.0)  # 10 + 1 + 20 x 0.5 = 21 x 1
    assert break_even_calls(0.0, 0.5, 1.0, 0.5) == 0.0
    assert break_even_calls(10.0, 1.0, 0.5, 0.5) is None


def test_lifecycle():
    """Build, first call, and the others at their median."""
    built = timing(0.5, build_s=10.0, first_call_s=2.0)
    assert lifecycle_s(built, 5) == pytest.approx(14.0)
    assert lifecycle_s(built, 0) == pytest.approx(10.0)


def test_noise_is_said():
    """A busy machine is one sentence in the report; a quiet one is none."""
    quiet = [timing(0.5, noise=0.01)] * 3
    busy = [timing(0.5, noise=0.14), timing(0.9, noise=0.1, undecided=True)]
    assert not noise_sentence(quiet)
    assert not noise_sentence([])
    assert noise_sentence(busy) == "noise 14 %: 1 of 2 decisions is a tie because of it"
    assert noise_sentence(busy * 2) == "noise 14 %: 2 of 4 decisions are ties because of it"
