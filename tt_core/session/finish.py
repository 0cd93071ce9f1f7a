"""The end of a run: one cut is selected, compared once more as a whole, and left switched on; the rest is closed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tt_core import install, state
from tt_core.choose import Pick, pick_depth
from tt_core.session.depths import Measured, Untuned
from tt_core.session.passes import agree, results
from tt_core.session.run import Run
from tt_core.values import evolve, frozen

Picker = Callable[[Sequence[Measured]], Pick]


@frozen
class Selected:
    """What is switched on in the end, and why."""

    measured: tuple[Measured, ...]
    index: int | None
    why: str


def by_race(run: Run, untuned: Untuned, *, won_before: bool = False) -> Picker:
    """`auto_tune`'s rule: the shallowest cut that ties with the fastest of those that beat untuned."""

    def pick(measured: Sequence[Measured]) -> Pick:
        if all(one.cutting is None for one in measured):
            return Pick(index=None, why=_errors(measured))
        return pick_depth(
            [one.result.timing if one.cutting else None for one in measured],
            [sum(one.result.sample_s) for one in measured],
            sum(untuned.sample_s),
            tie_tolerance=run.options.tie_tolerance,
            won_before=won_before,
        )

    return pick


def _errors(measured: Sequence[Measured]) -> str:
    """Why no cut can be picked: one sentence, by depth where depths differ."""
    errors = {one.result.cut.depths[0]: one.result.error for one in measured if one.result.error}
    if len(set(errors.values())) == 1:
        return next(iter(errors.values()))
    return "; ".join(f"depth {depth}: {error}" for depth, error in errors.items()) or "no depth could be measured"


def by_units(run: Run, *, must_win: bool) -> Picker:
    """`tune`'s rule: the units were asked for and won their own races; only a clearly slower whole is refused."""

    def pick(measured: Sequence[Measured]) -> Pick:
        one = measured[0]
        timing = one.result.timing
        if one.cutting is None:
            return Pick(index=None, why=one.result.error)
        if timing is None:
            return Pick(index=None if must_win else 0, why=one.result.error or "no end-to-end race was run")
        slower = timing.interval.low > 1.0 + run.options.tie_tolerance
        if slower and must_win:
            return Pick(index=None, why=f"end to end it runs at {timing.speedup:.2f}x untuned")
        return Pick(index=0, why=f"{timing.speedup:.2f}x as fast as untuned end to end")

    return pick


def select(run: Run, measured: Sequence[Measured], pick: Picker, snapshot: state.Snapshot) -> Selected:
    """Switches on what `pick` picks and what agrees with the untuned object over a pass; the next best otherwise."""
    left = list(measured)
    expected: list[Any] | None = None
    while True:
        picked = pick(left)
        if picked.index is None:
            return Selected(measured=tuple(left), index=None, why=picked.why)
        cutting = left[picked.index].cutting
        assert cutting is not None
        run.tell("install", depth=left[picked.index].result.cut.depths[0])
        expected = results(run, snapshot) if expected is None else expected
        verdict = agree(run, cutting, expected, snapshot)
        if verdict.ok:
            run.switched.append(install.install(cutting.installed.entries))  # new dispatchers: their counts start at 0
            run.notes += [f"not compared over the pass: {', '.join(verdict.skipped)}"] if verdict.skipped else []
            return Selected(measured=tuple(left), index=picked.index, why=picked.why)
        where = f" at {verdict.where}" if verdict.where and verdict.where not in verdict.reason else ""
        error = f"results differ from untuned over a pass: {verdict.reason}{where}"
        worst = left[picked.index]
        left[picked.index] = evolve(worst, result=evolve(worst.result, error=error), cutting=None)
