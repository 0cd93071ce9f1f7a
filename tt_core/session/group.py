"""Twins in a session: the first one searches, the others take its choice, each with a built of its own that is checked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from tt_core import state, twins
from tt_core.contain import Caught
from tt_core.install import Entry
from tt_core.session.prepare import Contender, limits, prepare, prove, settled
from tt_core.session.run import Run
from tt_core.session.units import Tuned, tune_key
from tt_core.values import EAGER, Built, Calls, Candidate, Choice, Trial, Unit, evolve

Decided = tuple[Entry | None, Choice, bool | None]


def marked(run: Run, units: Sequence[Unit], recorded: Mapping[str, Sequence[Calls]]) -> list[Unit]:
    """The units, those that have a twin among them with the fingerprint of their program and their number."""
    if all(candidate == EAGER for candidate in run.offered):
        return list(units)
    wanted = [(unit, recorded.get(unit.path, ())) for unit in units]
    found = twins.fingerprints(wanted, apart=lambda unit: id(run.own_strategy(unit)))
    counts = Counter(found.values())
    return [evolve(unit, twin=found.get(unit.path, ""), twins=counts[found.get(unit.path, "")]) for unit in units]


def tune_twin(run: Run, unit: Unit, keys: Sequence[Calls], first: Tuned) -> Tuned:
    """Takes each key's choice from the first twin: rebound where the backend can, built anew elsewhere, and checked.

    A key whose built is not right is searched as if the unit had no twin.
    """
    snapshot = state.take(unit.module)
    choices = {choice.key: choice for choice in first.choices}
    entries = {entry.key: entry for entry in first.entries}
    try:
        decided = [_decide(run, unit, calls, choices[calls.key], entries.get(calls.key), snapshot) for calls in keys]
    finally:
        snapshot.restore()
    return Tuned(
        unit=unit,
        entries=settled([entry for entry, _, _ in decided if entry is not None]),
        choices=tuple(choice for _, choice, _ in decided),
        failed=first.failed and not any(entry for entry, _, _ in decided),
        tried=first.tried,
    )


def _decide(
    run: Run, unit: Unit, calls: Calls, choice: Choice, entry: Entry | None, snapshot: state.Snapshot
) -> Decided:
    """A choice that was taken over keeps the first twin as its one member until `joined` names all."""
    if entry is None:
        return None, evolve(choice, unit=unit.path), None
    found = again(run, unit, calls, entry, snapshot)
    if isinstance(found, Trial):
        return tune_key(run, unit, calls, snapshot)
    return found, evolve(choice, unit=unit.path, covers=found.covers), False


def again(run: Run, unit: Unit, calls: Calls, entry: Entry, snapshot: state.Snapshot) -> Entry | Trial:
    """An entry by the candidate of another one (a twin's, or the unit's own that is stale); the trial that failed."""
    candidate = entry.candidate
    began = run.timer.now()
    rebound = _rebound(run, entry.built, candidate, unit)
    seconds = run.timer.now() - began
    snapshot.restore()
    if rebound is not None:
        proved = prove(run, unit, calls, candidate, rebound, seconds, snapshot)
        if isinstance(proved, Contender):
            return proved.entry
    made = prepare(run, unit, calls, candidate, snapshot)
    return made if isinstance(made, Trial) else made.entry


def _rebound(run: Run, built: Built, candidate: Candidate, unit: Unit) -> Built | None:
    """What the owner of a single backend makes of `built` for another unit; None: build it anew."""
    if len(candidate.steps) > 1:
        return None  # the parts of a chain hold on to each other
    run.tell("build", unit=unit.path, candidate=str(candidate))
    answer = run.plugins.rebind(candidate.steps[0][0], built, unit, limits(run))
    if answer is None or isinstance(answer, Caught):
        return None
    run.opened(answer)
    return answer


def joined(tuned: Sequence[Tuned]) -> list[Tuned]:
    """Twins with their choices naming all members: those that took the choice of the same first unit."""
    paths: dict[tuple[object, ...], list[str]] = {}
    for one in tuned:
        for choice in one.choices:
            paths.setdefault(_shared(one, choice), []).append(one.unit.path)
    return [
        evolve(one, choices=tuple(evolve(c, members=tuple(paths[_shared(one, c)])) for c in one.choices))
        for one in tuned
    ]


def _shared(one: Tuned, choice: Choice) -> tuple[object, ...]:
    """Equal for choices that were made once: `members` still holds the one unit that made it."""
    return one.unit.twin, choice.key, choice.members


def once(choices: Sequence[Choice]) -> tuple[Choice, ...]:
    """The choices of a cut, those of twins once."""
    seen: dict[object, Choice] = {}
    for choice in choices:
        seen.setdefault((choice.members, choice.key, choice.why), choice)
    return tuple(seen.values())
