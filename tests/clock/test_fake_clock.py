"""The clock of the tests."""

from __future__ import annotations

import math

import pytest

from tt_core.testing.fake_clock import FakeClock
from tt_core.values import Call


def nothing():
    return None


def test_time_moves_by_costs_only():
    """A block's stamps are the registered costs, and the clock moves by their sum."""
    clock = FakeClock()
    clock.cost(nothing, 0.25)
    assert clock.block(nothing, [Call(), Call()]) == [0.25, 0.25]
    assert clock.now() == 0.5


def test_costs_may_be_a_sequence_or_a_function():
    """A sequence gives its values in order and then its last; a function is given the call's index."""
    clock = FakeClock()
    clock.cost(nothing, [3.0, 1.0])
    assert clock.block(nothing, [Call()] * 3) == [3.0, 1.0, 1.0]
    clock.cost(nothing, lambda index: index + 1.0)
    assert clock.block(nothing, [Call()] * 3) == [1.0, 2.0, 3.0]


def test_calls_really_run():
    """The callable receives the call's arguments."""
    seen = []
    FakeClock().block(lambda *args, **kwargs: seen.append((args, kwargs)), [Call(1, key=2)])
    assert seen == [((1,), {"key": 2})]


def test_costly_callables_move_the_clock_from_inside():
    """What a call runs inside counts, and the default is for calls that nothing is known about."""
    clock = FakeClock(default_s=0.5)
    inner = clock.costing(lambda value: value + 1, [2.0, 1.0])
    outer = lambda: inner(inner(1))  # noqa: E731
    assert clock.block(outer, [Call()]) == [3.0]
    assert clock.block(nothing, [Call()]) == [0.5]
    assert inner(1) == 2


@pytest.mark.parametrize("bad", [math.nan, -1.0, math.inf])
def test_nonsense_is_reported_but_does_not_move_time(bad):
    """A cost that is no number of seconds comes back as the stamp."""
    clock = FakeClock()
    clock.cost(nothing, bad)
    (stamp,) = clock.block(nothing, [Call()])
    assert stamp == bad or (math.isnan(stamp) and math.isnan(bad))
    assert clock.now() == 0.0
