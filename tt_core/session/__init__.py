"""One tuning run: inspect, then for each cut record, tune, switch on and race; select one, and leave the rest as it was."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence

import torch

from tt_core import cuts, install, state, survey
from tt_core.environment import environment
from tt_core.result import AutoTuneResult
from tt_core.session.declared import Declared, declare
from tt_core.session.depths import LATE, Measured, Untuned, race_depth, race_final, tune_cut
from tt_core.session.finish import Selected, by_race, by_units, select
from tt_core.session.first import remembered, take_up, tuned_plan
from tt_core.session.memory import needed
from tt_core.session.planned import planned
from tt_core.session.refresh import refresh
from tt_core.session.remember import AGAIN, recall
from tt_core.session.run import Options, Run
from tt_core.session.traffic import Recording, record
from tt_core.session.units import Tuned
from tt_core.values import Built, Cut, DepthResult, Plan, Unit, evolve

__all__ = ["Declared", "Options", "Recording", "Run", "apply", "auto_tune", "declare", "record", "refresh", "tune"]

_NOTHING = Cut(depths=(), units=())
"""The cut of a plan that says eager."""
_ORIGINS = {"": "", "plan": "the plan ", "cache": ""}


def auto_tune(run: Run) -> AutoTuneResult:
    """Tries each distinct cut from `min_depth` to `max_depth`; installs the shallowest of the fastest, or nothing."""
    with _guarded(run) as (snapshot, inspection):
        options = run.options
        wanted = cuts.cuts(inspection, options.min_depth, options.max_depth)
        if options.dry_run:
            return _dry(run, wanted, inspection, snapshot)
        untuned, memory = Untuned(), recall(run, inspection)
        first = take_up(run, memory, inspection, untuned, snapshot)
        known = remembered(run, memory, first, untuned, snapshot)
        if known is not None and (known.index is not None or not first):
            return _result(run, known, untuned, inspection)
        measured = _each_cut(run, wanted, inspection, untuned, snapshot, first if known is None else known.measured)
        measured = race_final(run, measured, untuned, snapshot)
        selected = select(run, measured, by_race(run, untuned), snapshot)
        result = _result(run, selected, untuned, inspection)
        memory.keep(run, result.plan, result.depths)
        return evolve(result, notes=(*run.feed.notes, *run.notes))


def apply(run: Run, plan: Plan) -> AutoTuneResult:
    """Builds, checks and races what a plan chose, without a search; installs it where it beats the untuned object."""
    with _guarded(run) as (snapshot, inspection):
        untuned = Untuned()
        if plan.eager:
            selected = Selected(measured=(), index=None, why="the plan says eager")
        else:
            first = tuned_plan(run, planned(plan, inspection, "plan"), inspection, untuned, snapshot)
            selected = select(run, [first], by_race(run, untuned), snapshot)
        return _result(run, selected, untuned, inspection)


def tune(run: Run, units: int | Cut | Sequence[str]) -> AutoTuneResult:
    """Tunes one given cut and installs what its units' strategies chose."""
    with _guarded(run) as (snapshot, inspection):
        cut = _given_cut(inspection, units)
        untuned = Untuned()
        measured = [tune_cut(run, cut, _units(inspection), {}, snapshot)]
        run.depths[:] = [measured[0].result]
        if measured[0].cutting is not None:
            measured = race_depth(run, measured, 0, untuned, snapshot)
        must_win = all(run.strategy_for(unit).must_win for unit in inspection.units() if unit.path in cut.units)
        selected = select(run, measured, by_units(run, must_win=must_win), snapshot)
        return _result(run, selected, untuned, inspection)


@contextlib.contextmanager
def _guarded(run: Run) -> Iterator[tuple[state.Snapshot, survey.Inspection]]:
    """The object's state is kept; whatever is not installed in the end is closed, and all of it when the run breaks off."""
    run.began = run.timer.now()
    try:
        with torch.no_grad(), state.kept(run.obj) as snapshot:
            run.tell("inspect")
            inspection = survey.inspect(run.obj, run.feed, run.timer.now, within=snapshot)
            run.feed_writes = bool(inspection.changed)
            yield snapshot, inspection
            run.tell("done")  # the last boundary: who interrupts here has nothing installed either
    except BaseException as error:
        install.off(run.obj)
        run.close_all_but([])
        error.result = _broken_off(run)  # type: ignore[attr-defined]  # documented: the exception carries .result
        raise


def _each_cut(
    run: Run,
    wanted: Sequence[Cut],
    inspection: survey.Inspection,
    untuned: Untuned,
    snapshot: state.Snapshot,
    first: Sequence[Measured],
) -> list[Measured]:
    """Every cut tuned and raced; with `first`, in the order of their depths."""
    units = _units(inspection)
    memo: dict[str, Tuned] = {}
    measured = list(first)
    budget = run.options.time_budget
    for cut in wanted:
        if budget is not None and run.elapsed_s >= budget:
            late = DepthResult(cut=cut, wrapped=len(cut.units), error=LATE)
            measured.append(Measured(result=late))
        else:
            measured.append(tune_cut(run, cut, units, memo, snapshot))
        run.depths[:] = [one.result for one in measured]
        if measured[-1].cutting is not None:
            measured = race_depth(run, measured, len(measured) - 1, untuned, snapshot)
            run.depths[:] = [one.result for one in measured]
    return sorted(measured, key=lambda one: one.result.cut.depths[0])


def _units(inspection: survey.Inspection) -> Mapping[str, Unit]:
    return {unit.path: unit for unit in inspection.units()}


def _given_cut(inspection: survey.Inspection, units: int | Cut | Sequence[str]) -> Cut:
    if isinstance(units, Cut):
        cuts.cut_of(inspection, units.units)  # raises for units that this object does not have
        return units
    if isinstance(units, int):
        return cuts.cut_at(inspection, units)
    return cuts.cut_of(inspection, units)


def _dry(run: Run, wanted: Sequence[Cut], inspection: survey.Inspection, snapshot: state.Snapshot) -> AutoTuneResult:
    memory = needed(run, wanted, inspection.units(), snapshot)
    depths = tuple(
        DepthResult(cut=cut, wrapped=len(cut.units), bytes_needed=size)
        for cut, size in zip(wanted, memory, strict=True)
    )
    return AutoTuneResult(
        model=run.obj,
        headline="dry run: nothing was built or changed",
        depths=depths,
        refused=run.default.refused,
        seconds=run.elapsed_s,
        notes=(*run.feed.notes, *run.notes),
        units=_kinds(inspection),
        environment=_environment(run),
        dry_run=True,
    )


def _environment(run: Run) -> dict[str, str]:
    return {**environment(run.options.device), "seed": str(run.options.settings.seed)}


def _kinds(inspection: survey.Inspection) -> dict[str, str]:
    return {seen.path: seen.kind for seen in inspection.modules}


def _result(run: Run, selected: Selected, untuned: Untuned, inspection: survey.Inspection) -> AutoTuneResult:
    depths = tuple(one.result for one in selected.measured)
    chosen = None if selected.index is None else depths[selected.index]
    facts = _environment(run)
    cut, choices = (_NOTHING, ()) if chosen is None else (chosen.cut, chosen.choices)
    plan = Plan(cut=cut, choices=choices, environment=facts)
    kept = [] if selected.index is None else _builts(selected.measured[selected.index])
    run.close_all_but(kept)
    return AutoTuneResult(
        model=run.obj,
        headline=_headline(selected, chosen),
        untuned=None if untuned.latest is None else untuned.latest.timing,
        untuned_sample_s=untuned.sample_s,
        depths=depths,
        selected=chosen,
        plan=plan,
        trials=tuple(run.trials),
        refused=run.default.refused,
        seconds=run.elapsed_s,
        notes=(*run.feed.notes, *run.notes),
        units=_kinds(inspection),
        environment=facts,
    )


def _builts(measured: Measured) -> list[Built]:
    assert measured.cutting is not None
    return [entry.built for entry in measured.cutting.installed.entries]


def _headline(selected: Selected, chosen: DepthResult | None) -> str:
    if chosen is None:
        return f"Nothing was installed, the object is as before: {selected.why}."
    what = ", ".join(sorted({c.candidate.name for c in chosen.choices if c.candidate.name != "eager"}))
    modules = f"{chosen.tuned} of {chosen.wrapped} modules"
    text = f"Installed {_ORIGINS[chosen.origin]}at depth {chosen.cut.depths[0]} ({modules}, {what}): {selected.why}."
    return f"{text[:-1]}; {AGAIN}." if chosen.origin == "cache" else text


def _broken_off(run: Run) -> AutoTuneResult:
    return AutoTuneResult(
        model=run.obj,
        headline="The run broke off; the object is as before.",
        depths=tuple(run.depths),
        trials=tuple(run.trials),
        refused=run.default.refused,
        seconds=run.elapsed_s,
        notes=(*run.feed.notes, *run.notes),
        environment=_environment(run),
    )
