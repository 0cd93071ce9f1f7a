"""The end-to-end race: passes of the whole object over the dataset. Only this race decides a cut."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

import torch

from tt_core.clock.block import discarded_calls, entered, in_time, stamped
from tt_core.clock.lane import Block, Lane, Warm
from tt_core.clock.memory import watch
from tt_core.clock.race import CPU
from tt_core.clock.rounds import results, run
from tt_core.clock.rules import PASSES, Rules
from tt_core.clock.runner import Runner
from tt_core.contain import Caught
from tt_core.hookspecs import Timer
from tt_core.values import Call, Timing, frozen


@frozen
class PassTiming:
    """What an end-to-end race measured of one runner.

    Attributes:
        timing: of passes; a pass counts `samples x weighted mean latency` seconds, its plain sum for equal weights.
        sample_s: per sample, the lowest latency seen, seconds.
        stamps: per kept pass, the latency of each sample, seconds.
    """

    timing: Timing
    sample_s: tuple[float, ...]
    stamps: tuple[tuple[float, ...], ...]


def passes(
    timer: Timer,
    runners: Sequence[Runner],
    feed_fresh: Callable[[], Sequence[Call]],
    rules: Rules = PASSES,
    *,
    device: torch.device = CPU,
    items: int | None = None,
) -> tuple[PassTiming | Caught, ...]:
    """Races runners end to end; every pass starts from restored state and an untouched copy of the dataset.

    A block is a discarded call of the first sample (more where thread pools meet), then one pass, or several where a pass is short.

    Args:
        timer: stamps each sample.
        runners: the untuned object first; `enter` and `leave` switch what is installed.
        feed_fresh: the samples of one pass, in order, one call each: copies that a pass may write to.
        rules: when to look and when to end.
        device: where peak memory is read.
        items: items per pass, passed on to the timings.

    Returns:
        Per runner what was measured, or what it failed with, as in `race`.
    """
    course = _PassCourse(timer, feed_fresh, rules, device)
    lanes = run(course, runners, rules)
    pairs = zip(lanes, results(lanes, rules, items), strict=True)
    return tuple(_with_stamps(lane, result, rules) for lane, result in pairs)


def _with_stamps(lane: Lane, result: Timing | Caught, rules: Rules) -> PassTiming | Caught:
    if isinstance(result, Caught):
        return result
    every = [stamps for block in lane.blocks for stamps in block.stamps]
    kept = [block.stamps[:: math.ceil(len(block.stamps) / rules.stamps_kept)] for block in lane.blocks]
    return PassTiming(
        timing=result,
        sample_s=tuple(min(column) for column in zip(*every, strict=True)),
        stamps=tuple(stamps for block in kept for stamps in block),
    )


class _PassCourse:
    """Blocks of passes."""

    def __init__(
        self,
        timer: Timer,
        feed_fresh: Callable[[], Sequence[Call]],
        rules: Rules,
        device: torch.device,
    ) -> None:
        self._timer = timer
        self._feed = feed_fresh
        self._rules = rules
        self._device = device
        self._weights = [call.weight for call in feed_fresh()]

    def group(self, turn: int) -> int:  # noqa: ARG002  every round is about the whole dataset
        """All rounds are alike."""
        return 0

    def warm(self, runner: Runner, limit_s: float) -> Warm:
        """The first call of the first sample, then a whole pass."""
        peak = watch(self._device)
        with entered(runner):
            first_call_s = self._discarded(runner, 1)
            pass_s = self._figure(self._pass(runner))
            in_time([pass_s], limit_s)
        return Warm(first_call_s=first_call_s, known_s={0: pass_s}, bytes_peak=peak())

    def block(self, lane: Lane, group: int, limit_s: float, *, pools: bool) -> Block:
        """Discarded calls of the first samples, then timed passes."""
        guess = lane.guess_s(group)
        early = discarded_calls(self._rules, guess / len(self._weights), pools=pools)
        with entered(lane.runner):
            discarded_s = self._discarded(lane.runner, early)
            stamps = [self._pass(lane.runner) for _ in range(self._count(guess))]
        figures = tuple(self._figure(each) for each in stamps)
        in_time(figures, limit_s)
        spent = discarded_s + sum(sum(each) for each in stamps)
        return Block(figure=statistics.median(figures), seconds=figures, spent_s=spent, stamps=tuple(stamps))

    def _count(self, pass_s: float) -> int:
        if pass_s > self._rules.long_pass_s:
            return 1  # long enough to even out what a median is for
        return min(max(math.ceil(self._rules.block_s / pass_s), self._rules.least_calls), self._rules.most_calls)

    def _discarded(self, runner: Runner, count: int) -> float:
        """Seconds of `count` calls of the first samples, which do not count."""
        spent = 0.0
        while count > 0:
            feed = self._feed()[:count]
            runner.restore()
            spent += sum(stamped(self._timer, runner, feed))
            count -= len(feed)
        return spent

    def _pass(self, runner: Runner) -> tuple[float, ...]:
        feed = self._feed()
        runner.restore()
        return tuple(stamped(self._timer, runner, feed))

    def _figure(self, stamps: Sequence[float]) -> float:
        """Samples x weighted mean latency, seconds."""
        weighted = sum(weight * seconds for weight, seconds in zip(self._weights, stamps, strict=True))
        return len(stamps) * weighted / sum(self._weights)
