"""Observations compared: the walk over all leaves of all samples, and the judgement over the pools."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import attrs
import torch

from tt_core import trees
from tt_core.check.leaves import Numbers, constants_equal, kind_mismatch, numbers, plain
from tt_core.check.places import Difference, at, labels, structure
from tt_core.check.pools import Pool, first_unequal, pour, usable_truth
from tt_core.check.scores import score_of
from tt_core.values import Facts, Observation, Tolerance, Verdict


def compare(
    facts: Facts,
    expected: Sequence[Observation],
    actual: Sequence[Observation],
    truth: Sequence[Observation | None],
    tolerance: Tolerance,
) -> Verdict:
    """Whether a candidate did on every sample what eager did.

    Structure, container types, dtypes, shapes, devices, integers, constants, aliases and the places of NaN and
    infinities must be equal. Floating point numbers are pooled over the samples, leaf by leaf, and judged by their
    relative L2 distance to the float64 truth beside eager's own distance (design: `docs/correctness.md`).

    Args:
        facts: what eager runs of the unit showed; random units are compared with eager, never with float64.
        expected: eager's observation of each sample, on the unit's device.
        actual: the candidate's, in the same order, read after the last sample ran.
        truth: the float64 run's, None where float64 could not run.
        tolerance: loosens or tightens the floating point limits, nothing else.

    Returns:
        A verdict whose `where` names leaf, index, row and sample, `output[0][4,17], row 4, sample 2`: the wrong place,
        or the worst one of a candidate that is right.
    """
    walk = _Walk(tolerance=tolerance)
    if not len(expected) == len(actual) == len(truth):
        return Verdict.no(f"{len(actual)} results of {len(expected)} calls can be compared", "samples")
    truths = [None] * len(expected) if facts.random else truth
    for sample, (want, got, true) in enumerate(zip(expected, actual, truths, strict=True)):
        found = next(walk.differences(sample, facts, want, got, true), None)
        if found is not None:
            return walk.veto(found)
    return walk.judged(noise=0.0)


def whole(expected: Sequence[Any], actual: Sequence[Any], tolerance: Tolerance, noise: float | None = None) -> Verdict:
    """Whether the whole object gives the results that it gave before, over one pass.

    Args:
        expected: the untuned object's result of each sample, any pytree; numpy arrays count as tensors.
        actual: the tuned object's, in the same order.
        tolerance: as in `compare`.
        noise: relative L2 distance that the units themselves showed to float64 (the worst `Verdict.eager_error`); there is
            no truth for the whole object, and what is inside rounding for its units adds up.

    Returns:
        A verdict; leaves of kinds that cannot be compared are in `skipped`. Not ok when nothing could be compared:
        then `compared` is 0.
    """
    walk = _Walk(tolerance=tolerance)
    if len(expected) != len(actual):
        return Verdict.no(f"{len(actual)} results of {len(expected)} samples can be compared", "samples")
    for sample, (want, got) in enumerate(zip(expected, actual, strict=True)):
        found = next(walk.tree(sample, "output", want, got, None), None)
        if found is not None:
            return walk.veto(found)
    return walk.judged(noise=noise or 0.0)


@attrs.define(kw_only=True)
class _Walk:
    """One comparison under way: what was pooled, counted and left out so far."""

    tolerance: Tolerance
    pools: dict[tuple[str, torch.dtype, bool], Pool] = attrs.field(factory=dict)
    compared: int = 0
    skipped: dict[str, None] = attrs.field(factory=dict)

    def differences(
        self, sample: int, facts: Facts, want: Observation, got: Observation, true: Observation | None
    ) -> Iterator[Difference]:
        """All that one sample did: results, inputs and state after it, and what shares memory."""
        yield from self.tree(sample, "output", want.result, got.result, true and true.result)
        if want.inputs_after is not None and got.inputs_after is not None:
            yield from self.tree(sample, "input", want.inputs_after, got.inputs_after, true and true.inputs_after)
        else:
            yield from _inputs(sample, want, got)
        yield from self._state(sample, want, got, true)
        yield from _aliases(sample, facts, want, got)

    def tree(self, sample: int, name: str, want: Any, got: Any, true: Any) -> Iterator[Difference]:
        """Two trees, leaf by leaf."""
        left, spec = trees.flatten(want)
        right, other = trees.flatten(got)
        found = structure(spec, other, name, sample)
        if found is not None:
            yield found
            return
        third, spec_true = trees.flatten(true)
        third = third if spec_true == spec else [None] * len(left)
        for label, a, b, c in zip(labels(spec, name), left, right, third, strict=True):
            yield from self._leaf(sample, label, a, b, c)

    def _state(
        self, sample: int, want: Observation, got: Observation, true: Observation | None
    ) -> Iterator[Difference]:
        for name in sorted({*want.state_after, *got.state_after}):
            label = f"state.{name}"
            if name not in got.state_after:
                yield Difference(reason=f"{label} is not changed, eager changes it", where=at(label, sample))
            elif name not in want.state_after:
                yield Difference(reason=f"{label} is changed, eager leaves it alone", where=at(label, sample))
            else:
                exact = None if true is None else true.state_after.get(name)
                yield from self.tree(sample, label, want.state_after[name], got.state_after[name], exact)

    def _leaf(self, sample: int, name: str, want: Any, got: Any, true: Any) -> Iterator[Difference]:
        why = kind_mismatch(want, got)
        left, right = plain(want), plain(got)
        why = why or kind_mismatch(left, right)
        if why:
            yield Difference(reason=f"{name}: {why}", where=at(name, sample))
        elif isinstance(left, torch.Tensor):
            yield from self._tensor(sample, name, left, right, true)
        else:
            yield from self._constant(sample, name, left, right, true)

    def _tensor(self, sample: int, name: str, want: torch.Tensor, got: torch.Tensor, true: Any) -> Iterator[Difference]:
        if want.is_meta:
            self.skipped[f"{name} (a meta tensor)"] = None
            return
        self.compared += 1
        for piece in numbers(name, want, got, true):
            found = self._poured(piece, sample) if piece.dtype.is_floating_point or piece.paired else None
            found = found or (first_unequal(piece, sample) if not piece.want.is_floating_point() else None)
            if found is not None:
                yield found

    def _poured(self, piece: Numbers, sample: int) -> Difference | None:
        true = usable_truth(piece)
        key = (piece.name, piece.dtype, true is not None)
        pool = self.pools.setdefault(key, Pool(piece.name, piece.dtype, true is not None))
        return pour(pool, piece, true, sample)

    def _constant(self, sample: int, name: str, want: Any, got: Any, true: Any) -> Iterator[Difference]:
        same = constants_equal(want, got, plain(true), self.tolerance)
        if same is None:
            self.skipped[f"{name} ({type(want).__name__})"] = None
            return
        self.compared += 1
        if not same:
            yield Difference(reason=f"{name} is {got!r} where eager gives {want!r}", where=at(name, sample))

    def veto(self, found: Difference) -> Verdict:
        """A verdict from a difference that no tolerance allows."""
        return self._verdict(ok=False, reason=found.reason, where=found.where)

    def _verdict(self, **figures: Any) -> Verdict:
        return Verdict(compared=self.compared, skipped=tuple(self.skipped), **figures)

    def judged(self, *, noise: float) -> Verdict:
        """The verdict over the pools, when all else was equal."""
        if self.compared == 0 and self.skipped:
            return self._verdict(ok=False, reason="nothing in the results could be compared", where="output")
        scores = [score_of(pool, self.tolerance, noise) for pool in self.pools.values()]
        if not scores:
            return self._verdict(ok=True)
        worst = max(scores, key=lambda score: score.share)
        ok = worst.share <= 1.0
        return self._verdict(
            ok=ok,
            reason="" if ok else worst.reason,
            error=worst.error,
            eager_error=worst.own,
            max_abs=max(pool.max_abs for pool in self.pools.values()),
            rel_l2=max(pool.rel_l2 for pool in self.pools.values()),
            where=worst.where,
        )


def _inputs(sample: int, want: Observation, got: Observation) -> Iterator[Difference]:
    """Inputs that only one side wrote to."""
    written = got.inputs_after if want.inputs_after is None else want.inputs_after
    if written is None:
        return
    leaves, spec = trees.flatten(written)
    tensors = [label for label, leaf in zip(labels(spec, "input"), leaves, strict=True) if torch.is_tensor(leaf)]
    name = tensors[0] if len(tensors) == 1 else "input"
    reason = (
        "was changed in place, eager leaves it alone"
        if want.inputs_after is None
        else "was not changed, eager writes to it"
    )
    yield Difference(reason=f"{name} {reason}", where=at(name, sample))


def _aliases(sample: int, facts: Facts, want: Observation, got: Observation) -> Iterator[Difference]:
    """Memory shared where eager shares none, or, where sharing is a fact of the unit, not shared where eager does."""
    extra = sorted(got.aliases - want.aliases, key=repr)
    missing = sorted(want.aliases - got.aliases, key=repr) if facts.aliases else []
    if not extra and not missing:
        return
    names = labels(trees.flatten(want.result)[1], "output")
    leaf, (kind, source) = (extra or missing)[0]
    name = names[leaf] if leaf < len(names) else f"output leaf {leaf}"
    other = names[source] if kind == "result" and source < len(names) else f"{kind} {source}"
    word = "shares memory with" if extra else "does not share memory with"
    tail = "in eager it does not" if extra else "in eager it does"
    yield Difference(reason=f"{name} {word} {other}, {tail}", where=at(name, sample))
