"""Races between candidates, on a clock that tells what it is told."""

from __future__ import annotations

import gc
import math
import random

import pytest
import torch

from tt_core.clock import UNIT, Rules, Runner, TooSlowError, beats, kept, race
from tt_core.clock.looks import promising, staying
from tt_core.contain import Caught
from tt_core.testing.fake_clock import FakeClock
from tt_core.values import Call, Timing, evolve

ONE = (Call(),)


class Track:
    """A clock and runners whose calls cost what a function of (call index, time now) says."""

    def __init__(self):
        self.clock = FakeClock()

    def runner(self, cost, name="candidate", **fields):
        call = lambda *_: None  # noqa: E731
        self.clock.cost(call, (lambda index: cost(index, self.clock.now())) if callable(cost) else cost)
        return Runner(name=name, call=call, **fields)

    def run(self, *costs, calls=lambda: ONE, rules=UNIT, **options):
        return race(self.clock, [self.runner(cost) for cost in costs], calls, rules, **options)


def faster(timing):
    return isinstance(timing, Timing) and beats(timing, UNIT.tie_tolerance)


def test_clear_differences_are_found_at_the_first_look():
    """Twice as fast wins, as fast ties, slower loses, each after eight rounds."""
    eager, twice, same, slower = Track().run(0.001, 0.0005, 0.001, 0.0011)
    assert [faster(each) for each in (eager, twice, same, slower)] == [False, True, False, False]
    assert twice.speedup == pytest.approx(2.0)
    assert {len(each.ratios) for each in (eager, twice, same, slower)} == {8}
    assert not any(each.undecided for each in (eager, twice, same, slower))


def test_timing_is_filled():
    """A timing tells calls, blocks, costs of build and first call, and items per second."""
    track = Track()
    base = track.runner(0.001)
    candidate = track.runner([0.7, 0.0005], build_s=3.0)
    _, timing = race(track.clock, [base, candidate], lambda: ONE, items=4)
    assert (timing.first_call_s, timing.build_s) == (0.7, 3.0)
    assert timing.median == pytest.approx(0.0005)
    assert timing.calls == len(timing.seconds) == 8 * 20
    assert timing.items_per_s == pytest.approx(8000.0)
    assert (len(timing.blocks), timing.noise) == (8, pytest.approx(0.0))
    assert max(timing.seconds) < 0.7


def test_clocks_that_speed_up_favour_nobody():
    """While the machine goes from 8.3 to 2.8 ms a call, equal runners tie and a 1.1x faster one is found."""
    speed = lambda now: 2.8 + 5.5 * math.exp(-now / 0.4)  # noqa: E731
    for order in range(8):
        same, better = Track(), Track()
        rules = UNIT.seeded(order)
        _, tie = same.run(lambda _, now: speed(now) / 1e3, lambda _, now: speed(now) / 1e3, rules=rules)
        _, win = better.run(lambda _, now: speed(now) / 1e3, lambda _, now: speed(now) / 1.1e3, rules=rules)
        assert not faster(tie)
        assert tie.interval.low <= 1.02
        assert faster(win)


def test_one_after_the_other_would_be_fooled():
    """The same clock makes the second of two equal runners look faster when each is timed on its own."""
    track = Track()
    speed = lambda _, now: (2.8 + 5.5 * math.exp(-now / 0.4)) / 1e3  # noqa: E731
    means = [sum(track.clock.block(track.runner(speed).call, [Call()] * 20)) for _ in range(2)]
    assert means[1] < 0.9 * means[0]


def test_rare_spikes_do_not_count():
    """A call in 29 that takes fifty times as long moves neither a tie nor a win."""
    spiky = lambda base: lambda index, _: base * (50 if index % 29 == 7 else 1)  # noqa: E731
    _, tie = Track().run(0.001, spiky(0.001))
    _, win = Track().run(0.001, spiky(0.001 / 1.1))
    assert not faster(tie)
    assert not tie.interval.low > 1.02
    assert faster(win)


def test_slow_first_calls_of_a_block_do_not_count():
    """A first call of each block that takes thrice as long is discarded: the ratio is exact."""
    track = Track()
    block = {"new": False}

    def enter():
        block["new"] = True

    def cost(_index, _now):
        first, block["new"] = block["new"], False
        return 0.003 if first else 0.001

    rivals = [track.runner(0.001), track.runner(cost, enter=enter)]
    _, timing = race(track.clock, rivals, lambda: ONE)
    assert timing.interval.low == timing.interval.high == pytest.approx(1.0)


def test_a_candidate_that_gets_slower_does_not_win():
    """Twice as fast for three rounds and half as fast from then on: a loser."""
    _, timing = Track().run(0.001, lambda index, _: 0.0005 if index < 65 else 0.002)
    assert not faster(timing)
    assert timing.interval.mid > 1


@pytest.mark.parametrize("after", [0, 1, 30, 100])
def test_raising_while_timed_is_a_failure(after):
    """A candidate that raises before or in the race has failed with its reason; the others' race goes on."""
    track, left, runs = Track(), [], []

    def breaks():
        runs.append(1)
        if len(runs) > after:
            raise ValueError("no kernel image")

    rivals = [
        track.runner(0.001),
        Runner(name="breaks", call=breaks, leave=lambda: left.append(1)),
        track.runner(0.0005),
    ]
    track.clock.cost(breaks, 0.0001)
    _, failed, timing = race(track.clock, rivals, lambda: ONE)
    assert isinstance(failed, Caught)
    assert (failed.kind, failed.reason) == ("ValueError", "no kernel image")
    assert left
    assert faster(timing)


@pytest.mark.parametrize("bad", [math.nan, 0.0, -0.001, math.inf])
@pytest.mark.parametrize("after", [0, 50])
def test_stamps_that_are_no_seconds_are_a_failure(bad, after):
    """NaN, zero, negative or infinite seconds, from the start or later, never win."""
    _, failed = Track().run(0.001, lambda index, _: bad if index >= after else 0.0001)
    assert isinstance(failed, Caught)
    assert "no result can rest on that" in failed.reason


def test_missing_stamps_are_a_failure():
    """A timer that gives fewer stamps than calls fails the runners it did so for."""

    class Short(FakeClock):
        def block(self, call, calls):
            return super().block(call, calls)[:-1] if len(calls) > 2 else super().block(call, calls)

    outcome = race(Short(0.001), [Runner(name=n, call=lambda: None) for n in "ab"], lambda: ONE)
    assert all(isinstance(each, Caught) for each in outcome)


@pytest.mark.parametrize("good_calls", [1, 2, 40])
def test_one_that_never_ends_is_dropped(good_calls):
    """A call of an hour ends the candidate's race within a few calls, whether it comes early or late."""
    track = Track()
    _, failed, timing = track.run(0.001, lambda index, _: 0.0001 if index < good_calls else 3600.0, 0.0005)
    assert isinstance(failed, Caught)
    assert failed.kind == TooSlowError.__name__
    assert faster(timing)
    assert track.clock.now() <= 5 * 3600.0 + 10


def test_one_frozen_call_is_forgiven():
    """A single call of a minute, discarded or timed, does not cost a candidate its race."""
    for frozen in (1, 2, 21, 40):
        _, timing = Track().run(0.001, lambda index, _, at=frozen: 60.0 if index == at else 0.0005)
        assert faster(timing), frozen


def test_one_that_is_hopeless_is_not_run_for_long():
    """Fifty times eager's time: a loser with few calls, once it is over its cap."""
    _, timing = Track().run(0.1, 1.4, 0.05)[:2]
    assert len(timing.ratios) == 8
    _, timing = Track().run(0.02, 1.0)
    assert len(timing.ratios) == 1
    assert timing.calls == UNIT.least_calls
    assert not faster(timing)


def test_a_failed_baseline_fails_all():
    """Without a baseline nothing is known: every runner has failed, nobody has won."""
    track = Track()
    outcome = track.run(lambda index, _: 0.001 if index < 30 else math.nan, 0.0001)
    assert all(isinstance(each, Caught) for each in outcome)
    assert outcome[1].kind == "NoBaseline"


def test_noise_ends_in_an_undecided_tie_under_the_cap():
    """At hopeless noise a race ends at its cap, undecided, and not faster."""
    rng = random.Random(4)
    track = Track()
    wild = lambda *_: 0.001 * rng.lognormvariate(0.0, 1.0)  # noqa: E731
    rules = Rules(cap_s=0.4, most_calls=3, block_s=0.001)
    _, timing = track.run(wild, wild, rules=rules)
    assert timing.undecided
    assert not faster(timing)
    assert 0.2 < sum(timing.seconds) < 0.4
    assert timing.noise > 0.1


def test_a_promising_candidate_gets_more_time_while_nobody_has_won():
    """Ahead in noise: four times the cap, and decided. Behind, or beside a winner: the cap, as everybody."""

    def raced(*shares, patience=4.0):
        rng = random.Random(11)
        noisy = lambda base: lambda *_: base * rng.lognormvariate(0.0, 0.5)  # noqa: E731
        rules = Rules(cap_s=0.1, most_calls=3, block_s=0.001, patience=patience)
        return Track().run(noisy(0.001), *(noisy(0.001 * share) for share in shares), rules=rules)[1:]

    (impatient,) = raced(1 / 1.3, patience=1.0)
    assert impatient.undecided
    assert sum(impatient.seconds) < 0.1
    (ahead,) = raced(1 / 1.3)
    assert faster(ahead)
    assert 0.1 < sum(ahead.seconds) < 0.4
    behind, slow = raced(1.1, 1.2)
    assert max(sum(behind.seconds), sum(slow.seconds)) < 0.1


def test_who_is_promising():
    """Ahead by more than the tolerance on the best guess, and nobody has won, not even one that left."""
    ahead, level, won = [0.7, 1.2, 0.8] * 4, [0.99, 1.3, 0.9] * 4, [0.5] * 12
    assert promising({0: ahead, 1: level}, UNIT) == {0}
    assert promising({0: ahead, 2: won}, UNIT) == frozenset()


def test_who_won_before_need_only_be_ahead():
    """One slow round in eight hides a win from the interval; two races say enough. One behind races on."""
    again = evolve(UNIT, won_before=True)
    most = {0: [0.8] * 6 + [1.2] * 2}
    assert staying(most, UNIT) == {0}
    assert staying(most, again) == frozenset()
    assert staying({0: [0.8] * 3 + [1.2] * 5}, again) == {0}


def test_a_race_has_eight_rounds_however_slow():
    """Calls that break the cap at once still get the rounds that an interval needs."""
    _, timing = Track().run(2.0, 1.0)
    assert len(timing.ratios) == 8
    assert faster(timing)


def test_of_five_the_best_is_kept():
    """Candidates that could still be the best stay in; those that cannot leave first."""
    rng = random.Random(0)
    noisy = lambda base: lambda *_: base * rng.lognormvariate(0.0, 0.1)  # noqa: E731
    shares = (0.9, 0.60, 0.63, 0.58, 1.0)
    track = Track()
    _, *timings = track.run(noisy(0.001), *(noisy(0.001 * share) for share in shares), rules=Rules(most_calls=3))
    assert kept(dict(enumerate(timings)), 0.02) == 3
    assert len(timings[0].ratios) < len(timings[3].ratios)


def test_equal_runners_are_rarely_called_faster_under_noise():
    """Simulated races at 10 % noise: identical runners decided wrongly in under 1 %, 1.1x found in over 95 %."""
    rng = random.Random(0)
    noisy = lambda base: lambda *_: base * rng.lognormvariate(0.0, 0.15)  # noqa: E731
    rules = Rules(block_s=0.001, most_calls=3, cap_s=0.6)  # a median of three: about 10 % a block
    pairs = [Track().run(noisy(0.001), noisy(0.001), rules=rules.seeded(seed))[1] for seed in range(250)]
    wins = [Track().run(noisy(0.001), noisy(0.001 / 1.1), rules=rules.seeded(seed))[1] for seed in range(60)]
    wrong = sum(faster(timing) or timing.interval.low > 1.02 for timing in pairs)
    assert wrong <= 2
    assert sum(faster(timing) for timing in wins) >= 57


def test_each_round_has_its_own_order():
    """Runners follow each other in every order, the same for the same seed, and the user's generators are left alone."""

    def orders(seed):
        seen = []
        runners = [Runner(name=n, call=lambda: None, enter=lambda n=n: seen.append(n)) for n in "abc"]
        race(FakeClock(), runners, lambda: ONE, UNIT.seeded(seed))
        return ["".join(seen[at : at + 3]) for at in range(3, len(seen), 3)]

    random.seed(5)
    state, torch_state = random.getstate(), torch.random.get_rng_state()
    first = orders(0)
    assert len(set(first)) > 2
    assert all(sorted(order) == list("abc") for order in first)
    assert orders(0) == first
    assert orders(1) != first
    assert random.getstate() == state
    assert torch.equal(torch.random.get_rng_state(), torch_state)


@pytest.mark.parametrize("collecting", [True, False])
def test_garbage_collection_waits(collecting):
    """The collector is off while calls are timed, and afterwards as it was, also after a failure."""
    seen = []

    def call():
        seen.append(gc.isenabled())
        if len(seen) > 40:
            raise ValueError

    was = gc.isenabled()
    (gc.enable if collecting else gc.disable)()
    try:
        race(FakeClock(), [Runner(name="a", call=lambda: None), Runner(name="b", call=call)], lambda: ONE)
        assert gc.isenabled() == collecting
    finally:
        (gc.enable if was else gc.disable)()
    assert not any(seen)


def test_state_is_restored_before_each_block():
    """Restoring happens once before a block's calls, not between them."""
    seen = []
    runner = Runner(name="b", call=lambda: seen.append("call"), restore=lambda: seen.append("restore"))
    race(FakeClock(), [Runner(name="a", call=lambda: None), runner], lambda: ONE)
    assert seen.count("restore") < seen.count("call") / 3
    assert seen[0] == "restore"


def test_calls_that_change_things_get_fresh_ones():
    """With `fresh`, every call finds restored state and inputs that nobody wrote to, outside of its stamp."""
    clock, state, made = FakeClock(), {"value": 0}, []

    def restore():
        state["value"] = 0
        clock.sleep(5.0)  # must not be in any stamp

    def calls():
        made.append(1)
        return (Call([0]),)

    def call(inputs):
        assert (inputs, state["value"]) == ([0], 0)
        inputs[0] = state["value"] = 1
        clock.sleep(0.001)

    runners = [Runner(name=n, call=call, restore=restore) for n in "ab"]
    outcome = race(clock, runners, calls, fresh=True)
    assert all(isinstance(each, Timing) for each in outcome)
    assert max(outcome[1].seconds) == pytest.approx(0.001)
    assert len(made) > 2 * 8 * 10


def test_entered_and_left_around_each_block():
    """Runners are switched on and off in turn, never two at once, also when one breaks."""
    on = set()

    def call(name):
        assert on == {name}

    def broken():
        raise ValueError

    bodies = {"a": lambda: call("a"), "b": lambda: call("b"), "c": broken}
    runners = [
        Runner(name=n, call=body, enter=lambda n=n: on.add(n), leave=lambda n=n: on.remove(n))
        for n, body in bodies.items()
    ]
    a, b, c = race(FakeClock(), runners, lambda: ONE)
    assert isinstance(a, Timing)
    assert isinstance(b, Timing)
    assert isinstance(c, Caught)
    assert not on


@pytest.mark.parametrize(
    ("call_s", "foreign", "early"),
    [(0.0005, False, 1), (0.004, False, 1), (0.0005, True, 20), (0.004, True, 3), (0.020, True, 2)],
)
def test_more_calls_are_discarded_where_pools_meet(call_s, foreign, early):
    """One discarded call a block; ten milliseconds of them, at least two, where thread pools meet."""
    runs = []
    base = Runner(name="a", call=lambda: None, enter=lambda: runs.append(0))
    rival = Runner(name="b", call=lambda: runs.append(runs.pop() + 1), enter=base.enter, foreign_threads=foreign)
    race(FakeClock(call_s), [base, rival], lambda: ONE)
    blocks = [count for count in runs if count][1:]
    assert set(blocks) == {early + max(3, math.ceil(0.010 / call_s))}


def test_baseline_alone_is_timed():
    """A race of one gives the baseline's timing: what eager takes."""
    (timing,) = Track().run(0.002)
    assert timing.median == pytest.approx(0.002)
    assert len(timing.blocks) == 8


def test_very_fast_calls_keep_few_stamps():
    """Raw stamps are thinned where a block has many calls; the count tells all of them."""
    _, timing = Track().run(0.00001, 0.000005)
    assert timing.calls == 8 * UNIT.most_calls
    assert len(timing.seconds) <= 8 * UNIT.stamps_kept


def test_interrupts_pass():
    """Ctrl-C in a timed call ends the race and leaves the runner switched off."""
    on = []

    def call():
        raise KeyboardInterrupt

    runner = Runner(name="b", call=call, enter=lambda: on.append(1), leave=on.clear)
    with pytest.raises(KeyboardInterrupt):
        race(FakeClock(), [Runner(name="a", call=lambda: None), runner], lambda: ONE)
    assert not on
    assert gc.isenabled()
