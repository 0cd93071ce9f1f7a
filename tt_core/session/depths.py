"""The loop over cuts: record, tune every unit, switch it on, race it end to end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import attrs

from tt_core import install, samples, state
from tt_core.clock import PassTiming, TooSlowError
from tt_core.contain import Caught
from tt_core.session.group import joined, marked, once, tune_twin
from tt_core.session.passes import Cutting, race_cuts
from tt_core.session.run import Run
from tt_core.session.units import Tuned, tune_unit
from tt_core.values import EAGER, Calls, Choice, Cut, DepthResult, Failure, Unit, evolve, frozen

LATE = "time budget used up"
"""The error of a depth that was not started."""
_REASONS = 3
"""Reasons for a failed depth that are told in its line."""


@frozen
class Measured:
    """One cut after tuning: its result so far, and what can be switched on."""

    result: DepthResult
    cutting: Cutting | None = None


@attrs.define(kw_only=True, eq=False)
class Untuned:
    """What all races saw of the untuned object: the lowest latency of each sample, and its latest passes."""

    sample_s: tuple[float, ...] = ()
    latest: PassTiming | None = None

    def see(self, timing: PassTiming) -> None:
        """Takes another race's figures."""
        self.latest = timing
        self.sample_s = lowest(self.sample_s, timing.sample_s)


def lowest(a: Sequence[float], b: Sequence[float]) -> tuple[float, ...]:
    """Per sample the lower of two latencies, seconds; an empty side gives way."""
    return tuple(min(pair) for pair in zip(a, b, strict=True)) if a and b else tuple(a or b)


def tune_cut(
    run: Run, cut: Cut, units: Mapping[str, Unit], memo: dict[str, Tuned], snapshot: state.Snapshot
) -> Measured:
    """Records and tunes the units of one cut; units met at another depth before are reused.

    Everything is off afterwards, and tensors that a backend moved are back.
    """
    new = [units[path] for path in cut.units if path not in memo]
    run.tell("record", depth=cut.depths[0], total=len(cut.units))
    recorded = _recorded(run, new, snapshot)
    if run.planned is not None:
        recorded, run.strange = run.planned.known(recorded)
    tuned: dict[str, Tuned] = {}
    for index, unit in enumerate(marked(run, new, recorded)):
        done = len(cut.units) - len(new) + index
        run.tell("unit", depth=cut.depths[0], unit=unit.path, done=done, total=len(cut.units))
        keys = recorded.get(unit.path, ())
        first = next((one for one in tuned.values() if unit.twin and one.unit.twin == unit.twin), None)
        tuned[unit.path] = tune_unit(run, unit, keys) if first is None else tune_twin(run, unit, keys, first)
        snapshot.restore()
    memo |= {one.unit.path: one for one in joined(list(tuned.values()))}
    return _measured(run, cut, [memo[path] for path in cut.units])


def _recorded(run: Run, new: Sequence[Unit], snapshot: state.Snapshot) -> Mapping[str, Sequence[Calls]]:
    """The calls of the wanted units over one pass; the root's with the sizes that the caller declared."""
    settings = run.options.settings
    recorded = samples.record(
        run.obj,
        run.feed,
        [unit for unit in new if run.wants(unit)],
        byte_cap=settings.record_bytes,
        keep=settings.samples_per_key,
        seed=settings.seed,
        within=snapshot,
    )
    if run.options.declared is None or "" not in recorded:
        return recorded
    widened = [run.options.declared.widen(calls) for calls in recorded[""]]
    unseen = [text for _, texts in widened for text in texts]
    if unseen:
        run.notes.append(f"declared sizes that no sample has are not checked: {'; '.join(dict.fromkeys(unseen))}")
    return {**recorded, "": tuple(calls for calls, _ in widened)}


def _measured(run: Run, cut: Cut, tuned: Sequence[Tuned]) -> Measured:
    entries = [entry for one in tuned for entry in one.entries]
    choices = once([choice for one in tuned for choice in one.choices])
    result = DepthResult(
        cut=cut,
        wrapped=len(cut.units),
        tuned=sum(bool(one.entries) for one in tuned),
        failed=sum(one.failed for one in tuned),
        choices=choices,
        error="" if entries else _why_none(run, tuned, choices),
    )
    if not entries:
        return Measured(result=result)
    installed = install.install(entries, fingerprint=False)
    run.switched.append(installed)
    installed.off()
    foreign = any(run.own_threads(entry.candidate) for entry in entries)
    name = f"depth {cut.depths[0]}"
    return Measured(result=result, cutting=Cutting(name=name, installed=installed, foreign_threads=foreign))


def _why_none(run: Run, tuned: Sequence[Tuned], choices: Sequence[Choice]) -> str:
    if not any(run.wants(one.unit) for one in tuned):
        return "select= and skip= leave none of its units to tune"
    if all(candidate == EAGER for candidate in run.offered):
        return f"no backend but eager is ready on {run.options.device} (`python -m tt_core doctor` says why)"
    tried = [one for one in tuned if one.tried]
    if run.planned is not None and not tried:
        return "the plan has no candidate for any call of the dataset"
    if tried and all(one.failed for one in tried):
        return f"every unit failed to tune: {'; '.join(_failures(run, tried))}"
    reasons = {choice.why for choice in choices}
    return f"no unit won: {reasons.pop()}" if len(reasons) == 1 else "no unit is faster than eager"


def _failures(run: Run, tuned: Sequence[Tuned]) -> list[str]:
    """The distinct reasons, the most frequent first; three at most, the trials have all."""
    paths = {one.unit.path for one in tuned}
    counted = Counter(
        f"{trial.candidate}: {trial.outcome.reason}"
        for trial in run.trials
        if trial.unit in paths and isinstance(trial.outcome, Failure)
    )
    more = [f"and {len(counted) - _REASONS} more"] if len(counted) > _REASONS else []
    return [reason for reason, _ in counted.most_common(_REASONS)] + more


def race_depth(
    run: Run, measured: Sequence[Measured], new: int, untuned: Untuned, snapshot: state.Snapshot
) -> list[Measured]:
    """Races `measured[new]` against untuned and the best cut so far; returns all with what the race saw."""
    best = _best([one for i, one in enumerate(measured) if i != new])
    racers = [one for one in (measured[new], best) if one is not None and one.cutting is not None]
    run.tell("passes", depth=measured[new].result.cut.depths[0])
    cuttings = [one.cutting for one in racers if one.cutting is not None]
    raced = race_cuts(run, cuttings, snapshot, won_before=measured[new].result.origin == "cache")
    return _seen(measured, racers, raced, untuned)


def race_final(run: Run, measured: Sequence[Measured], untuned: Untuned, snapshot: state.Snapshot) -> list[Measured]:
    """The race after the last depth: untuned once more, and every cut that was measured."""
    racers = [one for one in measured if one.cutting is not None and one.result.timing is not None]
    if not racers:
        return list(measured)
    run.tell("passes", note="the last race: untuned and every cut once more")
    raced = race_cuts(run, [one.cutting for one in racers if one.cutting is not None], snapshot)
    return _seen(measured, racers, raced, untuned)


def _best(measured: Sequence[Measured]) -> Measured | None:
    able = [one for one in measured if one.cutting is not None and one.result.timing is not None]
    return min(able, key=lambda one: one.result.timing.interval.mid if one.result.timing else 0.0, default=None)


def _seen(
    measured: Sequence[Measured],
    racers: Sequence[Measured],
    raced: Sequence[PassTiming | Caught],
    untuned: Untuned,
) -> list[Measured]:
    """Every cut with the figures of the latest race that it was in."""
    baseline = raced[0]
    if isinstance(baseline, PassTiming):
        untuned.see(baseline)
    found = {id(racer): timing for racer, timing in zip(racers, raced[1:], strict=True)}
    return [_with(one, found.get(id(one))) for one in measured]


def _with(one: Measured, timing: PassTiming | Caught | None) -> Measured:
    if timing is None:
        return one
    if isinstance(timing, Caught):
        error = f"its passes failed: {timing.kind}: {timing.reason}"
        result = evolve(one.result, timing=None, error=error)
        slow = timing.kind == TooSlowError.__name__  # not wrong: who asked for it by name gets it
        return evolve(one, result=result) if slow else evolve(one, result=result, cutting=None)
    low = lowest(one.result.sample_s, timing.sample_s)
    return evolve(one, result=evolve(one.result, timing=timing.timing, sample_s=low))
