"""End-to-end races."""

from __future__ import annotations

import pytest

from tt_core.clock import PASSES, PassTiming, Rules, Runner, beats, beats_end_to_end, passes
from tt_core.contain import Caught
from tt_core.testing.fake_clock import FakeClock
from tt_core.values import Call

FEED = (Call(1.0), Call(3.0))


def runner(clock, scale, **fields):
    """Takes `scale` milliseconds per unit of a sample's size."""
    return Runner(name=f"x{scale}", call=lambda size: clock.sleep(size * scale / 1e3), **fields)


def test_the_faster_pass_wins():
    """Passes are raced whole; the lowest latency of each sample and all stamps come back."""
    clock = FakeClock()
    untuned, tuned = passes(clock, [runner(clock, 1.0), runner(clock, 0.5)], lambda: FEED)
    assert beats(tuned.timing, 0.02)
    assert beats_end_to_end(tuned, untuned, 0.02)
    assert untuned.sample_s == pytest.approx((0.001, 0.003))
    assert tuned.sample_s == pytest.approx((0.0005, 0.0015))
    assert tuned.timing.median == pytest.approx(0.002)
    assert all(len(stamps) == 2 for stamps in tuned.stamps)
    assert len(tuned.stamps) == tuned.timing.calls >= 24


def test_weights_enter_the_figure():
    """A pass counts its weighted mean: a sample of weight three counts three times."""
    clock = FakeClock()
    feed = (FEED[0].weighted(3), FEED[1])
    (timing,) = passes(clock, [runner(clock, 1.0)], lambda: feed)
    assert timing.timing.median == pytest.approx(2 * (3 * 0.001 + 0.003) / 4)


def test_lowest_latencies_must_agree():
    """A cut whose lowest latencies are not below untuned's does not beat it, whatever the interval says."""
    clock = FakeClock()
    untuned, tuned = passes(clock, [runner(clock, 1.0), runner(clock, 0.5)], lambda: FEED)
    once_slow = PassTiming(timing=tuned.timing, sample_s=untuned.sample_s, stamps=tuned.stamps)
    assert beats(once_slow.timing, 0.02)
    assert not beats_end_to_end(once_slow, untuned, 0.02)


def test_every_pass_starts_from_a_copy_and_restored_state():
    """No pass sees what another one wrote to the samples or to the object."""
    clock, state = FakeClock(), {"steps": 0}

    def call(sample):
        assert sample == [0]
        sample[0] = 1
        state["steps"] += 1
        assert state["steps"] <= 2
        clock.sleep(0.02)

    def restore():
        state["steps"] = 0

    made = [Runner(name=n, call=call, restore=restore) for n in "ab"]
    outcome = passes(clock, made, lambda: (Call([0]), Call([0])))
    assert all(isinstance(each, PassTiming) for each in outcome)


def test_installed_is_switched_between_blocks():
    """Passes alternate by round in a shuffled order, each under its own `enter`."""
    clock, order, on = FakeClock(), [], []

    def made(name):
        def call(_):
            assert on == [name]
            clock.sleep(0.1)

        def enter():
            on.append(name)
            order.append(name)

        return Runner(name=name, call=call, enter=enter, leave=on.clear)

    passes(clock, [made("a"), made("b")], lambda: FEED)
    rounds = [tuple(order[at : at + 2]) for at in range(2, len(order), 2)]
    assert set(rounds) == {("a", "b"), ("b", "a")}


def test_long_passes_are_timed_once_a_block():
    """A pass of seconds runs once a round: eight rounds, whatever the cap."""
    clock = FakeClock()
    untuned, tuned = passes(clock, [runner(clock, 1000.0), runner(clock, 900.0)], lambda: FEED)
    assert (untuned.timing.calls, tuned.timing.calls) == (8, 8)
    assert beats(tuned.timing, 0.02)


def test_failing_in_a_pass_is_a_failure():
    """An object that raises on one sample has failed; untuned keeps its timing."""
    clock = FakeClock()

    def call(size):
        if size > 2:
            raise RuntimeError("bad sample")

    untuned, failed = passes(clock, [runner(clock, 1.0), Runner(name="b", call=call)], lambda: FEED)
    assert isinstance(untuned, PassTiming)
    assert isinstance(failed, Caught)
    assert failed.reason == "bad sample"


def test_a_pass_that_never_ends_is_dropped():
    """One pass beyond the cap and twenty times untuned's ends that cut's race."""
    clock = FakeClock()
    _, failed = passes(clock, [runner(clock, 1.0), runner(clock, 1e6)], lambda: FEED)
    assert isinstance(failed, Caught)
    assert clock.now() < 1e4


def test_equal_objects_tie():
    """Untuned against itself is no win, and decided at the first look."""
    clock = FakeClock()
    untuned, same = passes(clock, [runner(clock, 1.0), runner(clock, 1.0)], lambda: FEED, Rules(cap_s=PASSES.cap_s))
    assert not beats_end_to_end(same, untuned, 0.02)
    assert not same.timing.undecided
    assert len(same.timing.ratios) == 8
