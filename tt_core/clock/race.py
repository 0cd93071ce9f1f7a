"""The race between candidates for one unit."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence

import torch

from tt_core.clock.block import discarded_calls, entered, in_time, stamped, timed_calls
from tt_core.clock.lane import Block, Lane, Warm
from tt_core.clock.memory import watch
from tt_core.clock.rounds import results, run
from tt_core.clock.rules import UNIT, Rules
from tt_core.clock.runner import Runner
from tt_core.clock.timer import WallTimer
from tt_core.contain import Caught, attempt
from tt_core.hookspecs import Timer
from tt_core.values import Call, Timing

CPU = torch.device("cpu")
_QUEUED = 4
"""Calls of each sample that are queued at once to see the device's share."""


def race(
    timer: Timer,
    runners: Sequence[Runner],
    calls: Callable[[], Sequence[Call]],
    rules: Rules = UNIT,
    *,
    fresh: bool = False,
    mixed: bool = False,
    device: torch.device = CPU,
    items: int | None = None,
) -> tuple[Timing | Caught, ...]:
    """Races runners on recorded calls, in blocks, in rounds of a freshly shuffled order.

    Runs under the grad mode it is called in: callers want the mode that the unit will meet in service.

    Args:
        timer: stamps the calls.
        runners: the baseline first; candidates after it. The baseline alone is timed for as long as the first look.
        calls: the recorded calls, the same ones in the same order each time; each round is about one of them, the
            heavier (`Call.weight`) the more often. Asked once, and all runners share what it gave.
        rules: when to look and when to end.
        fresh: the calls change their inputs or the module's state: `calls` is asked before every call for untouched
            ones, and state is restored before every call.
        mixed: the calls differ in their sizes: each timed call follows one of another sample, as in a pass. What a
            runtime does where the size is not that of the call before, it then does before every timed call.
        device: where peak memory is read.
        items: items per call, passed on to the timings.

    Returns:
        Per runner a `Timing`, or what it failed with: it raised, its stamps were no seconds, or one call took longer
        than its whole race may. When the baseline fails, all have failed.
    """
    course = _UnitCourse(timer, calls, rules, fresh=fresh, mixed=mixed, device=device)
    lanes = run(course, runners, rules)
    for lane in lanes:
        lane.device_s = course.device_s(lane)
    return results(lanes, rules, items)


class _UnitCourse:
    """Blocks of calls of one unit."""

    def __init__(
        self,
        timer: Timer,
        calls: Callable[[], Sequence[Call]],
        rules: Rules,
        *,
        fresh: bool,
        mixed: bool,
        device: torch.device,
    ) -> None:
        self._timer = timer
        self._calls = calls
        self._samples = tuple(calls())
        self._rules = rules
        self._fresh = fresh
        self._mixed = mixed and len(self._samples) > 1
        self._device = device
        self._order = rotation([call.weight for call in self._samples])
        self._turns: list[int] = []

    def group(self, turn: int) -> int:
        """The sample of a round."""
        while len(self._turns) <= turn:
            self._turns.append(next(self._order))
        return self._turns[turn]

    def warm(self, runner: Runner, limit_s: float) -> Warm:
        """The very first call, then one of each sample (a built may prepare itself for each size)."""
        peak = watch(self._device)
        with entered(runner):
            runner.restore()
            (first_call_s,) = self._stamps(runner, [0])
            known = {}
            for group in range(len(self._samples)):
                known[group] = self._early(runner, group, 1, limit_s)[-1]
                if known[group] > self._rules.cap_s:
                    break
        return Warm(first_call_s=first_call_s, known_s=known, bytes_peak=peak())

    def block(self, lane: Lane, group: int, limit_s: float, *, pools: bool) -> Block:
        """Discarded calls, then timed ones, of one sample."""
        guess, timed = lane.guess_s(group), list[float]()
        cycle = [(group - 1) % len(self._samples), group] if self._mixed else [group]
        with entered(lane.runner):
            early = self._early(lane.runner, group, discarded_calls(self._rules, guess, pools=pools), limit_s)
            spent_s = sum(early)
            count = timed_calls(self._rules, min(guess, early[-1]))
            while len(timed) < count:  # a few at a time: nobody can stop a call, but the next ones need not start
                stamps = self._stamps(lane.runner, cycle * min(self._rules.least_calls, count - len(timed)))
                few = stamps[len(cycle) - 1 :: len(cycle)]
                in_time(few, limit_s)
                timed += few
                spent_s += sum(stamps)
        return Block(figure=statistics.median(timed), seconds=tuple(timed), spent_s=spent_s)

    def device_s(self, lane: Lane) -> float | None:
        """Device seconds a call, calls queued: for the report, after the race. None where it is not told."""
        timer, calls = self._timer, self._samples * _QUEUED
        if not isinstance(timer, WallTimer) or self._fresh or lane.caught is not None:
            return None

        def queued() -> float | None:
            with entered(lane.runner):
                lane.runner.restore()
                return timer.queued(lane.runner.call, calls)

        answer = attempt(queued, where=f"device time of {lane.runner.name}")
        return None if isinstance(answer, Caught) else answer

    def _early(self, runner: Runner, group: int, count: int, limit_s: float) -> list[float]:
        """Calls that do not count; state is restored before them."""
        if not self._fresh:
            runner.restore()
        stamps = self._stamps(runner, [group] * count)
        if stamps[-1] > limit_s:
            stamps += self._stamps(runner, [group])
            in_time(stamps[-2:], limit_s)
        return stamps

    def _stamps(self, runner: Runner, groups: Sequence[int]) -> list[float]:
        if not self._fresh:
            return stamped(self._timer, runner, [self._samples[group] for group in groups])
        stamps = []
        for group in groups:
            call = self._calls()[group]
            runner.restore()
            stamps += stamped(self._timer, runner, [call])
        return stamps


def rotation(weights: Sequence[float]) -> Iterator[int]:
    """Indices for ever, each as often as its weight says and spread as evenly as can be (smooth weighted round robin)."""
    credit = [0.0] * len(weights)
    while True:
        credit = [have + weight for have, weight in zip(credit, weights, strict=True)]
        chosen = max(range(len(credit)), key=credit.__getitem__)
        credit[chosen] -= sum(weights)
        yield chosen
