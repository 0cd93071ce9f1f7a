"""The only ranking: what wins, what ties, and the reasons."""

from __future__ import annotations

from tt_core.choose import pick_depth, pick_unit
from tt_core.values import Ambient, CallKey, Candidate, Failure, Interval, Timing, Trial

KEY = CallKey(tree=None, leaves=(), ambient=Ambient())


def timing(ratio: float, spread: float = 0.0, **fields: object) -> Timing:
    """A race of 16 rounds whose every ratio is `ratio`, its interval widened by `spread`."""
    interval = Interval(low=ratio * (1 - spread), mid=ratio, high=ratio * (1 + spread))
    return Timing(seconds=(ratio,) * 16, ratios=(ratio,) * 16, blocks=(ratio,) * 16, interval=interval, **fields)


def trial(name: str, outcome: Timing | None) -> Trial:
    candidate = Candidate.of(name)
    failed = Failure(stage="build", candidate=candidate, unit="u", key=KEY, kind="X", reason="no")
    return Trial(unit="u", key=KEY, candidate=candidate, outcome=outcome or failed)


def pick(*trials: Trial, must_win: bool = True, score=lambda t: t.interval.mid):
    return pick_unit(trials, score=score, must_win=must_win, tie_tolerance=0.02)


def test_the_fastest_wins():
    """The lowest ratio to eager is picked and its speed-up is the reason."""
    found = pick(trial("a", timing(0.8)), trial("b", timing(0.5)))
    assert found.index == 1
    assert found.why == "2.00x eager"


def test_equal_within_tolerance_keeps_the_plainer():
    """Of candidates within the tie tolerance of the best the first in order stays, and the reason says so."""
    found = pick(trial("a", timing(0.505)), trial("b", timing(0.5)))
    assert found.index == 0
    assert "plainer" in found.why


def test_within_noise_of_eager_keeps_eager():
    """The whole interval must lie beyond the tolerance: 3 % faster with a wide interval is no win."""
    assert pick(trial("a", timing(0.97, spread=0.05))).index is None
    assert pick(trial("a", timing(0.99))).index is None


def test_failures_never_win():
    """A failed candidate is passed over; when all fail, that is the reason."""
    assert pick(trial("a", None), trial("b", timing(0.5))).index == 1
    found = pick(trial("a", None))
    assert found.index is None
    assert found.why == "every candidate failed"


def test_asked_for_by_name_is_installed_when_slower():
    """Without must_win the first correct candidate stays, and the report says that it is not faster."""
    found = pick(trial("a", timing(2.0)), must_win=False)
    assert found.index == 0
    assert "0.50x eager: not faster" in found.why


def test_too_slow_to_be_timed_is_not_wrong():
    """What a race gave up on for slowness is installed where it was asked for by name, and never wins otherwise."""
    candidate = Candidate.of("a")
    slow = Failure(stage="race", candidate=candidate, unit="u", key=KEY, kind="TooSlowError", reason="slow")
    stuck = Trial(unit="u", key=KEY, candidate=candidate, outcome=slow)
    assert pick(stuck, must_win=False).index == 0
    assert pick(stuck).index is None


def test_noise_is_named():
    """An undecided race is a tie, and the noise is the reason."""
    found = pick(trial("a", timing(0.9, spread=0.3, undecided=True, noise=0.14)))
    assert found.index is None
    assert "noise of 14%" in found.why


def test_another_score_decides():
    """A lifecycle score may prefer the slower call that was quicker to build."""
    quick, slow = timing(0.8, build_s=1.0), timing(0.5, build_s=100.0)
    found = pick(trial("a", slow), trial("b", quick), score=lambda t: t.build_s + t.interval.mid)
    assert found.index == 1


def test_shallowest_of_tying_depths():
    """A shallower cut within the tolerance of the fastest is selected."""
    found = pick_depth([timing(0.505), timing(0.5)], [0.5, 0.5], 1.0, tie_tolerance=0.02)
    assert found.index == 0
    assert "shallowest" in found.why


def test_fastest_depth_otherwise():
    """A clearly faster deeper cut is selected."""
    assert pick_depth([timing(0.7), timing(0.5)], [0.7, 0.5], 1.0, tie_tolerance=0.02).index == 1


def test_lowest_latencies_must_agree():
    """A cut whose lowest latencies are not below untuned's does not win: a slow first measurement favours nobody."""
    found = pick_depth([timing(0.5)], [1.1], 1.0, tie_tolerance=0.02)
    assert found.index is None
    assert "lower latencies" in found.why


def test_no_depth_beats_untuned():
    """Nothing is selected when no cut wins, and the best one's ratio is told."""
    found = pick_depth([None, timing(1.25)], [0.0, 1.25], 1.0, tie_tolerance=0.02)
    assert found.index is None
    assert "0.80x untuned" in found.why
