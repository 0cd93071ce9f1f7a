"""What is tried before any search: the caller's plan, or the one of an earlier run."""

from __future__ import annotations

from collections.abc import Sequence

from tt_core import state, survey
from tt_core.errors import UsageError
from tt_core.session.depths import Measured, Untuned, race_depth, tune_cut
from tt_core.session.finish import Selected, by_race, select
from tt_core.session.planned import Planned, planned, unknown_text
from tt_core.session.remember import AGAIN, Memory
from tt_core.session.run import Run
from tt_core.values import evolve


def take_up(
    run: Run, memory: Memory, inspection: survey.Inspection, untuned: Untuned, snapshot: state.Snapshot
) -> list[Measured]:
    """The caller's plan, else the remembered one, tuned and raced before any search; empty where there is none to tune."""
    plan = run.options.plan or memory.plan
    if plan is None or plan.eager:
        return []
    try:
        made = planned(plan, inspection, "plan" if run.options.plan else "cache")
    except UsageError as error:
        run.notes += [f"the plan was not tried: {error}"] if run.options.plan else []
        return []
    return [tuned_plan(run, made, inspection, untuned, snapshot)]


def tuned_plan(
    run: Run, made: Planned, inspection: survey.Inspection, untuned: Untuned, snapshot: state.Snapshot
) -> Measured:
    """A plan's cut, built and checked with its candidates, and raced against the untuned object."""
    run.planned = made
    try:
        one = tune_cut(run, made.cut, {unit.path: unit for unit in inspection.units()}, {}, snapshot)
    finally:
        run.planned = None
    result = evolve(one.result, origin=made.origin)
    if run.strange and made.origin == "cache":
        one = evolve(one, cutting=None)
        result = evolve(result, error="the remembered plan does not know all calls of this run")
    elif run.strange:
        run.notes.append(unknown_text(run.strange))
    one = evolve(one, result=result)
    run.depths[:] = [result]
    if one.cutting is not None:
        cutting = evolve(one.cutting, name=f"the plan at {one.cutting.name}")
        (one,) = race_depth(run, [evolve(one, cutting=cutting)], 0, untuned, snapshot)
        run.depths[:] = [one.result]
    return one


def remembered(
    run: Run, memory: Memory, first: Sequence[Measured], untuned: Untuned, snapshot: state.Snapshot
) -> Selected | None:
    """What an earlier run decides for this one; None where nothing is remembered or the caller gave a plan."""
    if memory.plan is None or run.options.plan is not None:
        return None
    if memory.plan.eager:
        return Selected(measured=(), index=None, why=f"an earlier run found nothing that beats it ({AGAIN})")
    return select(run, first, by_race(run, untuned, won_before=True), snapshot) if first else None
