"""What a race's result means. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tt_core.clock.passes import PassTiming
from tt_core.clock.statistics import ratio_interval
from tt_core.values import Interval, Timing


def beats(timing: Timing, tie_tolerance: float) -> bool:
    """Whether a runner is faster than the baseline: the whole interval beyond the tie tolerance."""
    return timing.interval.high < 1.0 / (1.0 + tie_tolerance)


def ahead(timing: Timing, tie_tolerance: float) -> bool:
    """Whether a runner is faster than the baseline by more than the tie tolerance on the best guess."""
    return timing.interval.mid < 1.0 / (1.0 + tie_tolerance)


def ties(timing: Timing, fastest: Timing, tie_tolerance: float, confidence: float = 0.99) -> bool:
    """Whether a runner is not shown to be slower than the fastest of its race by more than the tie tolerance.

    Both must come from one race: their rounds are paired.
    """
    return against(timing, fastest, confidence).low <= 1.0 + tie_tolerance


def against(timing: Timing, other: Timing, confidence: float = 0.99) -> Interval:
    """The interval of `timing`'s time over `other`'s, paired by the rounds of the one race that both were in."""
    return ratio_interval(timing.ratios, other.ratios, confidence)


def beats_end_to_end(tuned: PassTiming, untuned: PassTiming, tie_tolerance: float) -> bool:
    """Whether a cut is faster than the untuned object of the same race.

    The interval decides, and the lowest latencies must agree: a slow first measurement of untuned favours nobody.
    """
    return beats(tuned.timing, tie_tolerance) and sum(tuned.sample_s) < sum(untuned.sample_s)


def kept(timings: Mapping[int, Timing], tie_tolerance: float) -> int | None:
    """Which of several candidates of one race to keep.

    The plainest of those that beat the baseline.

    Args:
        timings: candidates in order of plainness (smaller keys first), without the baseline.
        tie_tolerance: what counts as no difference.

    Returns:
        The key of the candidate; None: the baseline stays.
    """
    able = {key: timings[key] for key in sorted(timings) if beats(timings[key], tie_tolerance)}
    return plainest(able, tie_tolerance) if able else None


def ratio_of(timing: Timing) -> float:
    """The deciding ratio to the baseline, the usual score: lower is better."""
    return timing.interval.mid


def plainest(timings: Mapping[int, Timing], tie_tolerance: float, score: Callable[[Timing], float] = ratio_of) -> int:
    """The first of several winners that is no worse than the best by more than the tie tolerance, by score and in pairs.

    A tie out of noise alone does not cost more than that on the best guess.

    Args:
        timings: at least one, in order of plainness, each of which may be picked.
        tie_tolerance: what counts as no difference.
        score: lower is better.

    Returns:
        The key of the one to pick.
    """
    best, near = min(timings.values(), key=score), 1.0 + tie_tolerance

    def level(timing: Timing) -> bool:
        paired = against(timing, best).mid if timing.ratios and best.ratios else 1.0
        return paired <= near and score(timing) <= score(best) * near

    return next(key for key, timing in timings.items() if timing is best or level(timing))


def break_even_calls(build_s: float, first_call_s: float, eager_s: float, tuned_s: float) -> float | None:
    """After how many calls the build has paid for itself.

    The n with `build + first call + (n - 1) x tuned = n x eager`, all seconds.

    Returns:
        The number of calls, 0 where there is nothing to pay back; None where it never pays.
    """
    if tuned_s >= eager_s:
        return None
    return max((build_s + first_call_s - tuned_s) / (eager_s - tuned_s), 0.0)


def lifecycle_s(timing: Timing, expected_calls: float) -> float:
    """Seconds that a candidate costs over its life: build, first call, and the other calls at their median."""
    later = max(expected_calls - 1.0, 0.0)
    return timing.build_s + min(expected_calls, 1.0) * timing.first_call_s + later * timing.median


def noise_sentence(timings: Sequence[Timing], least: float = 0.05) -> str:
    """One sentence for the report when the machine was busy: `noise 14 %: 2 of 9 decisions are ties because of it`.

    Args:
        timings: every candidate's, baselines left out.
        least: noise from which on it is worth a sentence even though every race was decided.
    """
    if not timings:
        return ""
    noise = max(timing.noise for timing in timings)
    ties_of_noise = sum(timing.undecided for timing in timings)
    if not ties_of_noise and noise < least:
        return ""
    verb = "decisions is a tie" if ties_of_noise == 1 else "decisions are ties"
    return f"noise {noise:.0%}: {ties_of_noise} of {len(timings)} {verb} because of it".replace("%", " %", 1)
