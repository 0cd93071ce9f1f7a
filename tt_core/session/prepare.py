"""One candidate made ready for a race: built, called a first time, and found correct; or a trial that failed."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from tt_core import build, samples, state, trees
from tt_core.callkey import tensors_of
from tt_core.check import covers_probe, stale_after_write
from tt_core.contain import Caught, attempt
from tt_core.errors import DeclinedError
from tt_core.install import Entry, Serving
from tt_core.session.run import Run
from tt_core.values import (
    Built,
    Call,
    Calls,
    Candidate,
    Failure,
    Limits,
    Observation,
    Sample,
    Trial,
    Unit,
    Verdict,
    Weights,
    covers_of,
    evolve,
    frozen,
)

_KEPT = 16 << 20
"""Bytes of recorded inputs that stay with an installed entry; the smallest sample stays whatever its size."""


@frozen
class Contender:
    """A candidate that was built and found correct: ready to race, or to be installed.

    Attributes:
        candidate: what was built.
        built: the composed result.
        entry: what to install.
        verdicts: of every check.
        build_s: seconds of the build.
        first_call_s: seconds of the first call.
        left: recorded calls that it leaves to the original forward: outside its sizes, or handed back.
    """

    candidate: Candidate
    built: Built
    entry: Entry
    verdicts: tuple[Verdict, ...]
    build_s: float
    first_call_s: float
    left: int = 0

    @property
    def notes(self) -> tuple[str, ...]:
        """What the built says about itself, and what it leaves to the original."""
        if not self.left:
            return self.built.notes
        return (*self.built.notes, f"recorded calls that run the original forward: {self.left}")


def prepare(run: Run, unit: Unit, calls: Calls, candidate: Candidate, snapshot: state.Snapshot) -> Contender | Trial:
    """Builds and checks one candidate; a trial when it failed. The unit's state is put back after either."""
    run.tell("build", unit=unit.path, candidate=str(candidate))
    chain = build.build(run.plugins, candidate, unit, calls, run.options.device, limits(run), run.timer.now)
    if isinstance(chain, Failure):
        snapshot.restore()
        return Trial(unit=unit.path, key=calls.key, candidate=candidate, outcome=chain)
    run.opened(chain.built)
    snapshot.restore()
    return prove(run, unit, calls, candidate, chain.built, chain.seconds, snapshot)


def limits(run: Run) -> Limits:
    """What one build may use."""
    settings = run.options.settings
    return Limits(seconds=settings.build_timeout, bytes=settings.build_bytes, saveable=settings.saveable)


def prove(
    run: Run, unit: Unit, calls: Calls, candidate: Candidate, built: Built, build_s: float, snapshot: state.Snapshot
) -> Contender | Trial:
    """Checks what was built on the recorded calls; the unit's state is put back after each step."""
    failed = functools.partial(Trial, unit=unit.path, key=calls.key, candidate=candidate)
    run.tell("check", unit=unit.path, candidate=str(candidate))
    mine = _admitted(unit, calls, built)
    first = _first_call(run, unit, mine, candidate, built)
    snapshot.restore()
    if isinstance(first, Failure):
        return failed(outcome=first)
    serving = Serving(built.call, unit.forward)
    verdicts = _check(run, unit, evolve(mine, samples=mine.samples[first.skipped :]), evolve(built, call=serving))
    snapshot.restore()
    if isinstance(verdicts, Caught):
        return failed(outcome=build.refused("check", candidate, unit, calls, verdicts))
    no = next((verdict for verdict in verdicts if not verdict.ok), None)
    if no is not None:
        return failed(outcome=_veto(unit, calls, candidate, no), verdicts=verdicts)
    return Contender(
        candidate=candidate,
        built=built,
        entry=_entry(run, unit, calls, candidate, built, verdicts),
        verdicts=verdicts,
        build_s=build_s,
        first_call_s=first.seconds,
        left=len(calls.samples) - len(mine.samples) + first.skipped + serving.declined,
    )


def _entry(
    run: Run, unit: Unit, calls: Calls, candidate: Candidate, built: Built, verdicts: Sequence[Verdict]
) -> Entry:
    return Entry(
        unit=unit,
        key=calls.key,
        built=built,
        covers=covers_of([built.covers, calls.shapes]),
        facts=calls.facts,
        candidate=candidate,
        calls=_lean(calls),
        tolerance=run.options.tolerance,
        verdict=max(verdicts, key=lambda one: -1.0 if one.error is None else one.error),
    )


def settled(entries: Sequence[Entry]) -> tuple[Entry, ...]:
    """The entries of one unit; without recorded calls where no weight can go stale."""
    if any(entry.built.weights is not Weights.LIVE for entry in entries):
        return tuple(entries)
    return tuple(evolve(entry, calls=None) for entry in entries)


def _lean(calls: Calls) -> Calls:
    """The calls without results, and as many inputs as a tuned model may hold on to."""
    left, kept = _KEPT, list[Sample]()
    for sample in sorted(calls.samples, key=lambda one: _bytes(one.call)):
        left -= _bytes(sample.call)
        if left >= 0 or not kept:
            kept.append(evolve(sample, expected=Observation(result=None), truth=None))
    return evolve(calls, samples=tuple(sorted(kept, key=lambda one: one.index)))


def _bytes(call: Call) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in trees.tensors((call.args, call.kwargs)))


def _veto(unit: Unit, calls: Calls, candidate: Candidate, no: Verdict) -> Failure:
    where = f" at {no.where}" if no.where and no.where not in no.reason else ""
    return build.failure("check", candidate, unit, calls, no.reason + where, kind="wrong")


def _admitted(unit: Unit, calls: Calls, built: Built) -> Calls:
    """The calls whose sizes a built says it covers; all of them where its claim is no subset of what was recorded."""
    covers = built.covers
    if covers is None or not covers_probe(calls, built).ok:
        return calls
    sizes = [[tuple(tensor.shape) for tensor in tensors_of(unit.forward, sample.call)] for sample in calls.samples]
    return evolve(calls, samples=tuple(s for s, size in zip(calls.samples, sizes, strict=True) if covers.admit(size)))


@frozen
class First:
    """The first call that a built answered.

    Attributes:
        seconds: what a user waits for before a built is warm.
        skipped: calls before it that it handed back.
    """

    seconds: float
    skipped: int


def _first_call(run: Run, unit: Unit, calls: Calls, candidate: Candidate, built: Built) -> First | Failure:
    where = f"first call of {candidate} on {unit.path!r}"
    answer = Caught(kind="covers", reason="it covers none of the recorded calls")
    for skipped, sample in enumerate(calls.samples):
        inputs = [fresh(sample.call)]
        found = attempt(functools.partial(run.timer.block, built.call, inputs), where=where)
        if not isinstance(found, Caught):
            return First(seconds=found[0], skipped=skipped)
        answer = found
        if found.kind != DeclinedError.__name__:
            break
    return build.refused("check", candidate, unit, calls, answer)


def _check(run: Run, unit: Unit, calls: Calls, built: Built) -> tuple[Verdict, ...] | Caught:
    """Every check's verdict on the recorded samples, and on a built's claim to see changed weights."""
    actual = attempt(lambda: _observed(run, unit, calls.samples, built), where=f"check of {unit.path!r}")
    if isinstance(actual, Caught):
        return actual
    expected = [sample.expected for sample in calls.samples]
    truth = [sample.truth for sample in calls.samples]
    verdicts = run.plugins.check(calls.facts, expected, actual, truth, run.options.tolerance)
    verdicts += (covers_probe(calls, built),)
    if all(verdict.ok for verdict in verdicts) and built.weights < Weights.VALUES:
        call = calls.samples[0].call
        seen = attempt(lambda: stale_after_write(unit, built, call), where=f"weights of {unit.path!r}")
        return seen if isinstance(seen, Caught) else (*verdicts, seen)
    return verdicts


def _observed(run: Run, unit: Unit, recorded: Sequence[Sample], built: Built) -> tuple[Observation, ...]:
    return samples.observe(built.call, unit, [sample.call for sample in recorded], seed=run.options.settings.seed)


def fresh(call: Call) -> Call:
    """A copy of a recorded call, to be handed out."""
    args, kwargs = trees.replica((call.args, call.kwargs))
    return Call(*args, **kwargs)
