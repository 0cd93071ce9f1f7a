"""Trials and races become choices, with reasons. The only ranking; pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tt_core.clock.block import TooSlowError
from tt_core.clock.decide import ahead, beats, plainest, ties
from tt_core.values import Failure, Timing, Trial, frozen


@frozen
class Pick:
    """What was picked (None: eager, or untuned) and why."""

    index: int | None
    why: str


def _always(_: Timing) -> bool:
    return True


def pick_unit(
    trials: Sequence[Trial],
    *,
    score: Callable[[Timing], float],
    must_win: bool,
    tie_tolerance: float,
    worth: Callable[[Timing], bool] = _always,
    asked: str = "it was asked for by name",
) -> Pick:
    """Picks among the trials of one unit and key.

    Args:
        trials: in the strategy's order, plainer first; failed ones among them.
        score: of a timing, lower is better.
        must_win: whether only what beats eager may be picked.
        tie_tolerance: a difference of this share or less is none.
        worth: whether a faster candidate's build pays for itself.
        asked: why one that need not win is picked.
    """
    raced = [(i, t.outcome) for i, t in enumerate(trials) if isinstance(t.outcome, Timing)]
    if not raced:
        slow = None if must_win else next((i for i, t in enumerate(trials) if _too_slow(t)), None)
        if slow is not None:  # slow is not wrong
            return Pick(index=slow, why=f"too slow to be timed, installed because {asked}")
        return Pick(index=None, why="every candidate failed" if trials else "there is no candidate but eager")
    if not must_win:
        index, timing = raced[0]
        return Pick(index=index, why=_asked(timing, tie_tolerance, asked))
    faster = [(i, t) for i, t in raced if beats(t, tie_tolerance)]
    if not faster:
        return Pick(index=None, why=_nobody([t for _, t in raced]))
    winners = [(i, t) for i, t in faster if worth(t)]
    if not winners:
        most = max(t.speedup for _, t in faster)
        return Pick(index=None, why=f"{most:.2f}x eager, but no build pays for itself within the expected calls")
    index = plainest(dict(winners), tie_tolerance, score)
    timing, best = dict(winners)[index], min((t for _, t in winners), key=score)
    why = f"{timing.speedup:.2f}x eager"
    return Pick(index=index, why=why if timing is best else f"{why}; ties with the fastest, the plainer one stays")


def _too_slow(trial: Trial) -> bool:
    return isinstance(trial.outcome, Failure) and trial.outcome.kind == TooSlowError.__name__


def _asked(timing: Timing, tie_tolerance: float, asked: str) -> str:
    if beats(timing, tie_tolerance):
        return f"{timing.speedup:.2f}x eager; {asked}"
    return f"{timing.speedup:.2f}x eager: not faster, installed because {asked}"


def _nobody(timings: Sequence[Timing]) -> str:
    best = min(timings, key=lambda timing: timing.interval.mid)
    if best.undecided:
        return f"undecided: noise of {best.noise:.0%} hides a difference; eager stays"
    return f"the best candidate runs at {best.speedup:.2f}x eager; eager stays"


def pick_depth(
    timings: Sequence[Timing | None],
    sums: Sequence[float],
    untuned_sum: float,
    *,
    tie_tolerance: float,
    won_before: bool = False,
) -> Pick:
    """Picks among cuts, shallowest first: the shallowest that ties with the fastest of those that beat untuned.

    Args:
        timings: each cut's passes in one common race, None where it did not take part.
        sums: per cut, the sum over samples of its lowest latencies, seconds.
        untuned_sum: the same of the untuned object.
        tie_tolerance: a difference of this share or less is none.
        won_before: whether the cuts won an earlier run's races: being ahead again on the best guess is enough.
    """
    raced = [(i, t) for i, t in enumerate(timings) if t is not None]
    if not raced:
        return Pick(index=None, why="no depth could be measured")
    wins = ahead if won_before else beats
    winners = [(i, t) for i, t in raced if wins(t, tie_tolerance) and sums[i] < untuned_sum]
    if not winners:
        return Pick(index=None, why=_no_depth([t for _, t in raced], tie_tolerance))
    fastest = min(winners, key=lambda one: one[1].interval.mid)[1]
    index, timing = next(one for one in winners if ties(one[1], fastest, tie_tolerance))
    why = f"{timing.speedup:.2f}x as fast as untuned"
    why += "" if beats(timing, tie_tolerance) else " on the best guess of a short race"
    return Pick(index=index, why=why if timing is fastest else f"{why}; the shallowest that ties with the fastest")


def _no_depth(timings: Sequence[Timing], tie_tolerance: float) -> str:
    best = min(timings, key=lambda timing: timing.interval.mid)
    ratio = f"the best depth runs at {best.speedup:.2f}x untuned"
    if beats(best, tie_tolerance):
        return f"{ratio}, but untuned reached lower latencies in other races"
    if best.undecided:
        return f"{ratio}, undecided: noise of {best.noise:.0%} hides a difference"
    return f"{ratio}, within {tie_tolerance:.0%} or slower"
