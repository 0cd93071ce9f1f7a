"""The rounds of a race, whatever a block is: calls of one unit, or passes over a dataset."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Protocol

from tt_core.clock.lane import Block, Lane, Warm
from tt_core.clock.looks import promising, staying
from tt_core.clock.rules import Rules
from tt_core.clock.runner import Runner
from tt_core.clock.statistics import noise_of
from tt_core.contain import Caught, attempt
from tt_core.values import Timing


class Course(Protocol):
    """What is run in a block. May raise: each use is contained."""

    def group(self, turn: int) -> int:
        """Which sample the round is about."""
        ...

    def warm(self, runner: Runner, limit_s: float) -> Warm:
        """The calls before the race."""
        ...

    def block(self, lane: Lane, group: int, limit_s: float, *, pools: bool) -> Block:
        """One block; a call beyond `limit_s` raises `TooSlowError`."""
        ...


def run(course: Course, runners: Sequence[Runner], rules: Rules) -> list[Lane]:
    """Runs a race to its end; `runners[0]` is the baseline, which runs in every round."""
    lanes = [Lane(runner) for runner in runners]
    base, rivals = lanes[0], lanes[1:]
    for lane in lanes:
        _warm(course, lane, base, rules)
    shuffler = random.Random(rules.seed)  # noqa: S311  an order, not a secret; never the user's generator
    for turn in range(rules.looks[-1]):
        if not base.running or (turn >= rules.looks[0] and not any(lane.running for lane in rivals)):
            break
        _round(course, lanes, turn, rules, shuffler)
        _leave(rivals, turn + 1, base.spent_s, rules)
    for lane in rivals:
        if lane.running:
            lane.stop()
    return lanes


def results(lanes: Sequence[Lane], rules: Rules, items: int | None) -> tuple[Timing | Caught, ...]:
    """What became of each runner; without a baseline nothing is known about any."""
    base = lanes[0]
    if base.caught is not None:
        lost = Caught(kind="NoBaseline", reason=f"the baseline failed in the race: {base.caught.reason}")
        return (base.caught, *(lane.caught or lost for lane in lanes[1:]))
    noise = noise_of([block.figure for block in base.blocks], base.groups)
    return tuple(lane.caught or lane.timing(rules, noise=noise, items=items) for lane in lanes)


def _warm(course: Course, lane: Lane, base: Lane, rules: Rules) -> None:
    if base.running:
        limit = _limit(lane, base, 0, rules)
        lane.warmed(attempt(lambda: course.warm(lane.runner, limit), where=f"before the race of {lane.runner.name}"))


def _round(course: Course, lanes: Sequence[Lane], turn: int, rules: Rules, shuffler: random.Random) -> None:
    group = course.group(turn)
    running = [lane for lane in lanes if lane.running]
    pools = len({lane.runner.foreign_threads for lane in running}) > 1
    order = running[:]
    shuffler.shuffle(order)
    for lane in order:
        _block(course, lane, group, _limit(lane, lanes[0], group, rules), pools=pools)
    if lanes[0].running:
        base_s = lanes[0].blocks[-1].figure
        for lane in running:
            if lane.running:
                lane.ratios.append(lane.blocks[-1].figure / base_s)


def _block(course: Course, lane: Lane, group: int, limit_s: float, *, pools: bool) -> None:
    def block() -> Block:
        return course.block(lane, group, limit_s, pools=pools)

    lane.took(attempt(block, where=f"race of {lane.runner.name}"), group)


def _limit(lane: Lane, base: Lane, group: int, rules: Rules) -> float:
    """Seconds that one call may take: none for the baseline, which everything is measured by."""
    return float("inf") if lane is base else max(rules.cap_s, rules.hopeless * base.guess_s(group))


def _leave(rivals: Sequence[Lane], rounds: int, base_s: float, rules: Rules) -> None:
    """Takes out who won, cannot win any more, or has had its time."""
    if rounds in rules.looks:
        running = {index: lane for index, lane in enumerate(rivals) if lane.running}
        stay = staying({index: lane.ratios for index, lane in running.items()}, rules)
        for index, lane in running.items():
            lane.running = index in stay
    looked = rounds >= rules.looks[0]
    ahead = promising({index: lane.ratios for index, lane in enumerate(rivals) if lane.ratios}, rules) if looked else ()
    spent_s = base_s + sum(lane.spent_s for lane in rivals)
    for index, lane in enumerate(rivals):
        cap_s = rules.cap_s * (rules.patience if index in ahead else 1.0)
        over = looked and spent_s >= cap_s * (len(rivals) + 1)  # a slow baseline uses up the others' time
        if lane.running and (over or (lane.spent_s >= cap_s and (looked or _hopeless(lane, rules)))):
            lane.stop()


def _hopeless(lane: Lane, rules: Rules) -> bool:
    return min(lane.ratios) >= rules.hopeless
