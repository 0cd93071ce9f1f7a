"""End-to-end races: passes of the whole object, untuned and with cuts switched on."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from tt_core import state
from tt_core.check import whole
from tt_core.clock import PASSES, PassTiming, Runner, passes
from tt_core.clock.runner import nothing
from tt_core.contain import Caught, attempt
from tt_core.install import Installed, quiet_falls
from tt_core.session.run import Run
from tt_core.trees import replica
from tt_core.values import Call, Verdict, evolve, frozen


@frozen
class Cutting:
    """A tuned cut, installed but switched off between its blocks."""

    name: str
    installed: Installed
    foreign_threads: bool = False


def race_cuts(
    run: Run, cuts: Sequence[Cutting], snapshot: state.Snapshot, *, won_before: bool = False
) -> tuple[PassTiming | Caught, ...]:
    """Races the untuned object (first) and `cuts` over passes of the dataset; everything is off afterwards.

    Where the only cut has won the races of an earlier run, being ahead again is enough.
    """
    call = functools.partial(run.feed.run, run.obj)
    restore = snapshot.restore if run.feed_writes else nothing
    runners = [Runner(name="untuned", call=call, restore=restore)]
    runners += [
        Runner(
            name=cut.name,
            call=call,
            enter=cut.installed.on,
            leave=cut.installed.off,
            restore=restore,
            foreign_threads=cut.foreign_threads,
        )
        for cut in cuts
    ]
    options = run.options
    rules = evolve(
        PASSES,
        cap_s=options.settings.pass_race_s,
        won_before=won_before,
        tie_tolerance=options.tie_tolerance,
        seed=options.settings.seed,
    )
    with quiet_falls():
        raced = passes(run.timer, runners, lambda: _calls(run), rules, device=options.device)
    snapshot.restore()
    return raced


def _calls(run: Run) -> list[Call]:
    weights = run.feed.weights
    return [Call(sample).weighted(weight) for sample, weight in zip(run.feed.fresh(), weights, strict=True)]


def results(run: Run, snapshot: state.Snapshot) -> list[Any]:
    """What the object returns for each sample of one pass, copied; the state is put back."""
    try:
        return [replica(run.feed.run(run.obj, sample)) for sample in run.feed.fresh()]
    finally:
        snapshot.restore()


def agree(run: Run, cut: Cutting, expected: Sequence[Any], snapshot: state.Snapshot) -> Verdict:
    """Compares the whole object with `cut` switched on over a pass; it is off afterwards."""
    cut.installed.on()
    try:
        with quiet_falls():
            actual = attempt(lambda: results(run, snapshot), where=f"a pass with {cut.name}")
    finally:
        cut.installed.off()
    if isinstance(actual, Caught):
        return Verdict.no(f"the tuned object raised: {actual.kind}: {actual.reason}")
    verdict = whole(expected, actual, run.options.tolerance, _noise(run, cut))
    if run.options.check is not None and (verdict.ok or not verdict.compared):
        return _by_user(run.options.check, expected, actual, evolve(verdict, ok=True, reason=""))
    if not verdict.ok and not verdict.compared:
        return evolve(verdict, reason="no result could be compared: give check=lambda expected, actual: ...")
    return verdict


def _noise(run: Run, cut: Cutting) -> float:
    """The worst distance to float64 that eager itself showed on a unit of the cut."""
    paths = {unit.path for unit in cut.installed.units}
    verdicts = (verdict for trial in run.trials if trial.unit in paths for verdict in trial.verdicts)
    return max((verdict.eager_error or 0.0 for verdict in verdicts), default=0.0)


def _by_user(
    check: Callable[[Any, Any], Any], expected: Sequence[Any], actual: Sequence[Any], verdict: Verdict
) -> Verdict:
    """The caller's own check: False, or an exception, is a veto."""
    answer = attempt(lambda: check(expected, actual), where="check=")
    if isinstance(answer, Caught):
        return Verdict.no(f"your check raised {answer.kind}: {answer.reason}")
    if isinstance(answer, str) and answer:
        return Verdict.no(f"your check said: {answer}")
    return Verdict.no("your check said no") if answer is False else verdict
