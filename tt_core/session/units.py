"""Tuning one unit: every call key, every candidate built, checked and raced, and one chosen."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tt_core import build, state
from tt_core.choose import Pick, pick_unit
from tt_core.clock import Runner, lifecycle_s, race
from tt_core.clock.rules import Rules
from tt_core.clock.runner import nothing
from tt_core.contain import Caught
from tt_core.guards import Fall
from tt_core.install import Dispatcher, Entry, dispatcher, quiet_falls
from tt_core.session.prepare import Contender, fresh, prepare, settled
from tt_core.session.run import Run
from tt_core.strategy import Strategy
from tt_core.values import EAGER, Calls, Candidate, Choice, Failure, Timing, Trial, Unit, evolve, frozen


@frozen
class Tuned:
    """A tuned unit: what to install for it, and how each key was decided."""

    unit: Unit
    entries: tuple[Entry, ...] = ()
    choices: tuple[Choice, ...] = ()
    failed: bool = False
    """Every candidate but eager failed on every key."""
    tried: bool = False
    """Some candidate but eager was tried."""


def tune_unit(run: Run, unit: Unit, keys: Sequence[Calls]) -> Tuned:
    """Tunes every call key of one unit; one failing key leaves the others tuned.

    The unit's module is as before when this returns: state that a plugin changed is put back by value.
    """
    snapshot = state.take(unit.module)
    try:
        decided = [tune_key(run, unit, calls, snapshot) for calls in keys]
    finally:
        snapshot.restore()
    entries = settled([entry for entry, _, _ in decided if entry is not None])
    tried = [failed for _, _, failed in decided if failed is not None]
    return Tuned(
        unit=unit,
        entries=entries,
        choices=tuple(choice for _, choice, _ in decided),
        failed=bool(tried) and all(tried),
        tried=bool(tried),
    )


def tune_key(run: Run, unit: Unit, calls: Calls, snapshot: state.Snapshot) -> tuple[Entry | None, Choice, bool | None]:
    """The entry to install (None: eager), the choice, and whether every candidate failed (None: none was tried)."""
    if calls.untunable:
        return None, _choice(unit, calls, EAGER, f"stays eager: {calls.untunable}"), None
    strategy = run.strategy_for(unit)
    wanted = [c for c in strategy.candidates(unit, calls, run.offered) if c != EAGER]
    trials, contenders, pick = _search(run, unit, calls, strategy, wanted, snapshot)
    for trial in trials:
        run.done(trial)
    failed = all(trial.failed for trial in trials) and pick.index is None if trials else None
    if pick.index is None:
        return None, _choice(unit, calls, EAGER, pick.why), failed
    picked = contenders[trials[pick.index].candidate]
    return picked.entry, _choice(unit, calls, picked.candidate, pick.why, picked.entry), failed


def _choice(unit: Unit, calls: Calls, candidate: Candidate, why: str, entry: Entry | None = None) -> Choice:
    covers = calls.shapes if entry is None else entry.covers
    return Choice(unit=unit.path, key=calls.key, candidate=candidate, covers=covers, members=(unit.path,), why=why)


def _search(
    run: Run, unit: Unit, calls: Calls, strategy: Strategy, wanted: Sequence[Candidate], snapshot: state.Snapshot
) -> tuple[list[Trial], dict[Candidate, Contender], Pick]:
    """Prepares and races the wanted candidates: all in one race, or one after the other until the first wins."""
    trials: list[Trial] = []
    ready: dict[Candidate, Contender] = {}
    groups = [[candidate] for candidate in wanted] if strategy.stops_at_first else [list(wanted)]
    pick = Pick(index=None, why="there is no candidate but eager")
    for group in groups:
        prepared = [prepare(run, unit, calls, candidate, snapshot) for candidate in group]
        contenders = [one for one in prepared if isinstance(one, Contender)]
        ready |= {one.candidate: one for one in contenders}
        timed = _race(run, unit, calls, contenders, snapshot)
        trials += [_trial(unit, calls, one, timed) for one in prepared]
        pick = pick_unit(
            trials,
            score=_scorer(run, strategy),
            must_win=strategy.must_win,
            asked=strategy.asked,
            tie_tolerance=run.options.tie_tolerance,
            worth=_worth(run),
        )
        if pick.index is not None:
            break
    return trials, ready, pick


def _scorer(run: Run, strategy: Strategy) -> Callable[[Timing], float]:
    """The strategy's own score, or the lifecycle's seconds where the number of calls to come is known."""
    calls = run.options.settings.expected_calls
    return strategy.score if calls is None else lambda timing: lifecycle_s(timing, calls)


def _worth(run: Run) -> Callable[[Timing], bool]:
    """Whether build and first call pay for themselves within the expected calls, where their number is known."""
    calls = run.options.settings.expected_calls
    if calls is None:
        return lambda _: True
    return lambda timing: lifecycle_s(timing, calls) < calls * timing.median * timing.speedup


def _trial(unit: Unit, calls: Calls, prepared: Contender | Trial, timed: dict[Candidate, Timing | Failure]) -> Trial:
    if isinstance(prepared, Trial):
        return prepared
    return Trial(
        unit=unit.path,
        key=calls.key,
        candidate=prepared.candidate,
        verdicts=prepared.verdicts,
        outcome=timed[prepared.candidate],
        notes=prepared.notes,
    )


def _race(
    run: Run, unit: Unit, calls: Calls, contenders: Sequence[Contender], snapshot: state.Snapshot
) -> dict[Candidate, Timing | Failure]:
    """Races the contenders against the original forward, each as it will be called: through its dispatcher."""
    if not contenders:
        return {}
    run.tell("race", unit=unit.path, candidate=", ".join(str(c.candidate) for c in contenders))
    restore = snapshot.restore if calls.facts.writes_state else nothing
    served = [dispatcher(unit, [one.entry]) for one in contenders]
    runners = [Runner(name="eager", call=unit.forward, restore=restore)]
    runners += [
        Runner(
            name=str(one.candidate),
            call=call,
            restore=restore,
            foreign_threads=run.own_threads(one.candidate),
            build_s=one.build_s,
        )
        for one, call in zip(contenders, served, strict=True)
    ]
    options = run.options
    rules = Rules(cap_s=options.settings.unit_race_s, tie_tolerance=options.tie_tolerance, seed=options.settings.seed)
    if run.planned is not None:  # a plan's candidate is installed whatever this says: one figure for the report
        rules = evolve(rules, looks=rules.looks[:1], least_calls=1)
    changes = calls.facts.writes_inputs or bool(calls.facts.writes_state)
    with quiet_falls():
        timings = race(
            run.timer,
            runners,
            lambda: [fresh(sample.call).weighted(sample.count) for sample in calls.samples],
            rules,
            fresh=changes,
            mixed=calls.shapes.moving,
            device=options.device,
            items=_items(calls),
        )
    snapshot.restore()
    return {
        one.candidate: _outcome(unit, calls, one, timing, call)
        for one, timing, call in zip(contenders, timings[1:], served, strict=True)
    }


def _items(calls: Calls) -> int | None:
    """Items per call: the first axis of all tensors, where it is one size over all calls."""
    firsts = {leaf[0] for leaf in calls.shapes.leaves if leaf}
    only = firsts.pop() if len(firsts) == 1 else None
    return only if isinstance(only, int) else None


def _outcome(unit: Unit, calls: Calls, one: Contender, timing: Timing | Caught, served: Dispatcher) -> Timing | Failure:
    """What the race said, unless the dispatcher ran the original where the built should have served: that measured eager."""
    if isinstance(timing, Caught):
        return build.refused("race", one.candidate, unit, calls, timing)
    allowed = {Fall.SHAPE, Fall.DECLINED} if one.left else set()
    falls = {str(kind): count.value for kind, count in served.falls.items() if count.value and kind not in allowed}
    if falls:
        reason = f"it could not serve its own recorded calls ({', '.join(falls)})"
        return build.failure("race", one.candidate, unit, calls, reason, kind="fell back")
    return evolve(timing, first_call_s=one.first_call_s, build_s=one.build_s)
