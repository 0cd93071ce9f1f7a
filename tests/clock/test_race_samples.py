"""Races over several samples: whose turn it is, and what the size of the call before costs."""

from __future__ import annotations

import pytest

from tt_core.clock import Runner, race
from tt_core.testing.fake_clock import FakeClock
from tt_core.values import Call


def test_rounds_rotate_over_samples_by_weight():
    """Each round all runners run one sample; a sample that weighs three times as much has three times the rounds."""
    seen = {"a": [], "b": []}
    runners = [Runner(name=n, call=lambda sample, n=n: seen[n].append(sample)) for n in "ab"]
    _, timing = race(FakeClock(), runners, lambda: (Call("small").weighted(3), Call("large")))
    assert seen["a"] == seen["b"]
    timed = seen["a"][3:]  # the first call and one of each sample before the race
    assert timed.count("small") == 3 * timed.count("large") > 0
    assert len(timing.blocks) == 8


def test_samples_of_other_sizes_are_no_noise():
    """A sample a hundred times the size of another changes neither the ratio nor the noise."""
    clock = FakeClock()
    runners = [
        Runner(name="a", call=lambda size: clock.sleep(0.0002 * size)),
        Runner(name="b", call=lambda size: clock.sleep(0.0001 * size)),
    ]
    base, timing = race(clock, runners, lambda: (Call(1), Call(100)))
    assert (timing.interval.low, timing.interval.high) == pytest.approx((0.5, 0.5))
    assert base.noise == pytest.approx(0.0)


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("mixed", [False, True])
def test_what_another_size_costs_shows_where_sizes_are_mixed(mixed, fresh):
    """A runner that prepares itself whenever the size is not that of the call before: in service it does so each time."""
    clock, last = FakeClock(), []

    def call(size):
        clock.sleep(0.001 if last[-1:] == [size] else 0.003)
        last.append(size)

    runners = [Runner(name="a", call=lambda _: clock.sleep(0.002)), Runner(name="b", call=call)]
    _, timing = race(clock, runners, lambda: (Call(16), Call(64)), mixed=mixed, fresh=fresh)
    assert timing.interval.mid == pytest.approx(1.5 if mixed else 0.5)


def test_a_slow_sample_is_found_among_mixed_ones():
    """The quick calls of the other sample do not hide that each timed call takes longer than the race waits.

    A call is slow right after the other sample only: the calls that do not count, one after the other, are forgiven.
    """
    clock, last = FakeClock(), []

    def call(size):
        clock.sleep(50.0 if size == 64 and last[-1:] == [16] else 0.001)
        last.append(size)

    runners = [Runner(name="a", call=lambda _: clock.sleep(0.001)), Runner(name="b", call=call)]
    _, outcome = race(clock, runners, lambda: (Call(16), Call(64)), mixed=True)
    assert outcome.kind == "TooSlowError"
