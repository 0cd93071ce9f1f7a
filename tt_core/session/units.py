"""Tuning one unit: every call key, every candidate built, checked and raced, and one chosen."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from tt_core import build, samples, state
from tt_core.check import covers_probe, stale_after_write
from tt_core.choose import Pick, pick_unit
from tt_core.clock import Runner, race
from tt_core.clock.rules import Rules
from tt_core.contain import Caught, attempt
from tt_core.install import Dispatcher, Entry, dispatcher, quiet_falls
from tt_core.session.run import Run
from tt_core.strategy import Strategy
from tt_core.trees import replica
from tt_core.values import (
    EAGER,
    Built,
    Call,
    Calls,
    Candidate,
    Choice,
    Failure,
    Limits,
    Observation,
    Timing,
    Trial,
    Unit,
    Verdict,
    Weights,
    covers_of,
    evolve,
    frozen,
)


@frozen
class Tuned:
    """A tuned unit: what to install for it, and how each key was decided."""

    unit: Unit
    entries: tuple[Entry, ...] = ()
    choices: tuple[Choice, ...] = ()
    failed: bool = False
    """Every candidate but eager failed on every key."""


@frozen
class Contender:
    """A candidate that was built and found correct: ready to race."""

    candidate: Candidate
    built: Built
    entry: Entry
    verdicts: tuple[Verdict, ...]
    build_s: float
    first_call_s: float


def tune_unit(run: Run, unit: Unit, keys: Sequence[Calls]) -> Tuned:
    """Tunes every call key of one unit; one failing key leaves the others tuned.

    The unit's module is as before when this returns: state that a plugin changed is put back by value.
    """
    snapshot = state.take(unit.module)
    try:
        decided = [_tune_key(run, unit, calls, snapshot) for calls in keys]
    finally:
        snapshot.restore()
    entries = tuple(entry for entry, _, _ in decided if entry is not None)
    tried = [failed for _, _, failed in decided if failed is not None]
    return Tuned(
        unit=unit,
        entries=entries,
        choices=tuple(choice for _, choice, _ in decided),
        failed=bool(tried) and all(tried),
    )


def _tune_key(run: Run, unit: Unit, calls: Calls, snapshot: state.Snapshot) -> tuple[Entry | None, Choice, bool | None]:
    """The entry to install (None: eager), the choice, and whether every candidate failed (None: none was tried)."""
    if calls.untunable:
        return None, _choice(unit, calls, EAGER, f"stays eager: {calls.untunable}"), None
    strategy = run.strategy_for(unit)
    wanted = [c for c in strategy.candidates(unit, calls, run.offered) if c != EAGER]
    trials, contenders, pick = _search(run, unit, calls, strategy, wanted, snapshot)
    for trial in trials:
        run.done(trial)
    failed = all(trial.failed for trial in trials) if trials else None
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
    pick = Pick(index=None, why="nothing to try")
    for group in groups:
        prepared = [_prepare(run, unit, calls, candidate, snapshot) for candidate in group]
        contenders = [one for one in prepared if isinstance(one, Contender)]
        ready |= {one.candidate: one for one in contenders}
        timed = _race(run, unit, calls, contenders, snapshot)
        trials += [_trial(unit, calls, one, timed) for one in prepared]
        pick = pick_unit(
            trials,
            score=_scorer(run, strategy),
            must_win=strategy.must_win,
            tie_tolerance=run.options.tie_tolerance,
        )
        if pick.index is not None:
            break
    return trials, ready, pick


def _scorer(run: Run, strategy: Strategy) -> Any:
    """The strategy's own score, or the lifecycle's seconds where the number of calls to come is known."""
    calls = run.options.settings.expected_calls
    if calls is None:
        return strategy.score
    return lambda timing: timing.build_s + timing.first_call_s + calls * timing.median


def _trial(unit: Unit, calls: Calls, prepared: Contender | Trial, timed: dict[Candidate, Timing | Failure]) -> Trial:
    if isinstance(prepared, Trial):
        return prepared
    return Trial(
        unit=unit.path,
        key=calls.key,
        candidate=prepared.candidate,
        verdicts=prepared.verdicts,
        outcome=timed[prepared.candidate],
        notes=prepared.built.notes,
    )


def _prepare(run: Run, unit: Unit, calls: Calls, candidate: Candidate, snapshot: state.Snapshot) -> Contender | Trial:
    """Builds and checks one candidate; a trial when it failed. The unit's state is put back after either."""
    failed = functools.partial(Trial, unit=unit.path, key=calls.key, candidate=candidate)
    run.tell("build", unit=unit.path, candidate=str(candidate))
    settings = run.options.settings
    limits = Limits(seconds=settings.build_timeout, bytes=settings.build_bytes)
    chain = build.build(run.plugins, candidate, unit, calls, run.options.device, limits, run.timer.now)
    snapshot.restore()
    if isinstance(chain, Failure):
        return failed(outcome=chain)
    run.opened(chain.built)
    run.tell("check", unit=unit.path, candidate=str(candidate))
    first = _first_call(run, unit, calls, candidate, chain.built)
    snapshot.restore()
    if isinstance(first, Failure):
        return failed(outcome=first)
    verdicts = _check(run, unit, calls, chain.built)
    snapshot.restore()
    no = verdicts if isinstance(verdicts, Caught) else next((v for v in verdicts if not v.ok), None)
    if no is not None:
        return failed(
            outcome=_veto(unit, calls, candidate, no), verdicts=() if isinstance(verdicts, Caught) else verdicts
        )
    assert not isinstance(verdicts, Caught)
    entry = Entry(
        unit=unit,
        key=calls.key,
        built=chain.built,
        covers=covers_of([chain.built.covers, calls.shapes]),
        facts=calls.facts,
        candidate=candidate,
    )
    return Contender(
        candidate=candidate,
        built=chain.built,
        entry=entry,
        verdicts=verdicts,
        build_s=chain.seconds,
        first_call_s=first,
    )


def _veto(unit: Unit, calls: Calls, candidate: Candidate, no: Verdict | Caught) -> Failure:
    if isinstance(no, Caught):
        return build.refused("check", candidate, unit, calls, no)
    where = f" at {no.where}" if no.where and no.where not in no.reason else ""
    return build.failure("check", candidate, unit, calls, no.reason + where, kind="wrong")


def _first_call(run: Run, unit: Unit, calls: Calls, candidate: Candidate, built: Built) -> float | Failure:
    """Seconds of the very first call: what a user waits for before a built is warm."""
    inputs = [_fresh(calls.samples[0].call)]
    answer = attempt(lambda: run.timer.block(built.call, inputs), where=f"first call of {candidate} on {unit.path!r}")
    if isinstance(answer, Caught):
        return build.refused("check", candidate, unit, calls, answer)
    return answer[0]


def _check(run: Run, unit: Unit, calls: Calls, built: Built) -> tuple[Verdict, ...] | Caught:
    """Every check's verdict on the recorded samples, and on a built's claim to see changed weights."""
    seed = run.options.settings.seed

    def observed() -> tuple[Observation, ...]:
        return samples.observe(built.call, unit, [sample.call for sample in calls.samples], seed=seed)

    actual = attempt(observed, where=f"check of {unit.path!r}")
    if isinstance(actual, Caught):
        return actual
    expected = [sample.expected for sample in calls.samples]
    truth = [sample.truth for sample in calls.samples]
    verdicts = run.plugins.check(calls.facts, expected, actual, truth, run.options.tolerance)
    verdicts += (covers_probe(calls, built),)
    if all(verdict.ok for verdict in verdicts) and built.weights < Weights.VALUES:
        call = calls.samples[0].call
        fresh = attempt(lambda: stale_after_write(unit, built, call), where=f"weights of {unit.path!r}")
        return fresh if isinstance(fresh, Caught) else (*verdicts, fresh)
    return verdicts


def _fresh(call: Call) -> Call:
    args, kwargs = replica((call.args, call.kwargs))
    return Call(*args, **kwargs)


def _race(
    run: Run, unit: Unit, calls: Calls, contenders: Sequence[Contender], snapshot: state.Snapshot
) -> dict[Candidate, Timing | Failure]:
    """Races the contenders against the original forward, each as it will be called: through its dispatcher."""
    if not contenders:
        return {}
    run.tell("race", unit=unit.path, candidate=", ".join(str(c.candidate) for c in contenders))
    restore = snapshot.restore if calls.facts.writes_state else _nothing
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
    recorded = [sample.call for sample in calls.samples]
    options = run.options
    rules = Rules(cap_s=options.settings.unit_race_s, tie_tolerance=options.tie_tolerance, seed=options.settings.seed)
    changes = calls.facts.writes_inputs or bool(calls.facts.writes_state)
    with quiet_falls():
        timings = race(
            run.timer,
            runners,
            lambda: [_fresh(call) for call in recorded],
            rules,
            fresh=changes,
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
    """What the race said, unless the dispatcher ran the original instead: that measured eager twice."""
    if isinstance(timing, Caught):
        return build.refused("race", one.candidate, unit, calls, timing)
    falls = {str(kind): count.value for kind, count in served.falls.items() if count.value}
    if falls:
        reason = f"it could not serve its own recorded calls ({', '.join(falls)})"
        return build.failure("race", one.candidate, unit, calls, reason, kind="fell back")
    return evolve(timing, first_call_s=one.first_call_s, build_s=one.build_s)


def _nothing() -> None:
    """There is no state to put back."""
