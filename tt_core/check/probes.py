"""Probes for claims that comparing results does not test: where weights are read from, and what sizes are covered."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from tt_core import trees
from tt_core.check.verdicts import whole
from tt_core.contain import torch_kept
from tt_core.state import kept, seed
from tt_core.values import Axis, Built, Call, Calls, Shapes, TensorLeaf, Tolerance, Unit, Verdict, Weights

_TIMES = 1.25
_FEWER = 0.75
_PLUS = 0.01
"""What the weights become: far enough to show in half precision, near enough to stay finite.

Matrices are scaled, every other column less than its neighbours, and never shifted: one number added to all weights of every
layer makes them nearly of rank one, and what was rounding before becomes a different result (seen on ViT-B, where it was
magnified fifteen times in both precisions).
"""


def stale_after_write(unit: Unit, built: Built, call: Call) -> Verdict:
    """Whether a built that claims to read its weights when it is called (LIVE, STORAGE) sees a write to them.

    All floating point parameters and buffers are written in place, eager and built run, and the old values are put
    back bit by bit. How far both were apart before the write is taken for their noise.

    Args:
        unit: the unit; its module is left as it was.
        built: what was built for it; raising is the caller's to contain.
        call: one recorded call; replicas of its tensors are used.

    Returns:
        A verdict on the results after the write. Ok with `compared=0` where nothing could be told: weights of level
        VALUES (a guard's business), no floating point weights, or results that do not depend on them.
    """
    weights = _weights(unit.module)
    if built.weights is Weights.VALUES or not weights:
        return Verdict(ok=True)
    before, candidate = _run(unit, unit.forward, call), _run(unit, built.call, call)
    noise = whole([before], [candidate], Tolerance(relative=float("inf"))).rel_l2
    with _written(weights):
        after, candidate = _run(unit, unit.forward, call), _run(unit, built.call, call)
    if whole([before], [after], Tolerance(), noise).ok:
        return Verdict(ok=True)
    verdict = whole([after], [candidate], Tolerance(), noise)
    if verdict.ok or (_half(after) and _followed(before, after, candidate)):
        return Verdict(ok=True, compared=verdict.compared)
    return _stale(verdict)


_NEAR = 1 / 8
"""Of the way that eager's result went after the write: nearer to it than this, a result has followed it."""


def _followed(before: Any, after: Any, candidate: Any) -> bool:
    """Whether every result went with eager's: in half precision, weights that are written all at once magnify rounding."""
    trios = list(zip(*(_floats(tree) for tree in (before, after, candidate)), strict=True))
    return bool(trios) and all(
        was.shape == now.shape == got.shape and bool((got - now).norm() <= _NEAR * (now - was).norm())
        for was, now, got in trios
    )


def _half(tree: Any) -> bool:
    return any(tensor.dtype in {torch.float16, torch.bfloat16} for tensor in trees.tensors(tree))


def _floats(tree: Any) -> list[torch.Tensor]:
    return [tensor.double() for tensor in trees.tensors(tree) if tensor.is_floating_point()]


def covers_probe(calls: Calls, built: Built) -> Verdict:
    """Whether the sizes that a built claims to cover stay inside what was recorded, equal axes included. Pure.

    Args:
        calls: `calls.shapes` holds the evidence: fixed sizes, ranges, and axes that were always equal.
        built: `built.covers`; None claims every size, as eager does, and is left to the comparison of results.

    Returns:
        A verdict whose `where` names the tensor and axis that admit too much.
    """
    if built.covers is None:
        return Verdict(ok=True)
    known, claimed = calls.shapes, built.covers
    if [len(leaf) for leaf in known.leaves] != [len(leaf) for leaf in claimed.leaves]:
        return Verdict.no("the built covers tensors of another number or rank than were recorded", "covers")
    names = _tensor_names(calls)
    found = next(itertools.chain(_too_wide(known, claimed, names), _unequal(known, claimed, names)), None)
    return found or Verdict(ok=True, compared=sum(len(leaf) for leaf in known.leaves))


def _stale(verdict: Verdict) -> Verdict:
    reason = f"stale after the weights were written in place: {verdict.reason}"
    return Verdict.no(reason, verdict.where)


def _weights(module: nn.Module) -> list[torch.Tensor]:
    found = itertools.chain(module.parameters(), module.buffers())
    return [
        tensor
        for tensor in found
        if tensor.is_floating_point() and tensor.layout == torch.strided and not tensor.is_inference()
    ]


@contextlib.contextmanager
def _written(weights: list[torch.Tensor]) -> Iterator[None]:
    """Other values inside the same storage; through `.data`, so that no version moves and no other built's guard falls."""
    saved = [weight.data.clone() for weight in weights]
    try:
        for weight in weights:
            _write(weight.data)
        yield
    finally:
        for weight, value in zip(weights, saved, strict=True):
            weight.data.copy_(value)


def _write(weight: torch.Tensor) -> None:
    weight.mul_(_TIMES)
    if weight.dim() < 2 or not bool(weight.any()):  # noqa: PLR2004  a bias, a scale, or weights that are all zero
        weight.add_(_PLUS)
    elif weight.shape[-1] > 1:
        weight[..., ::2].mul_(_FEWER)


def _run(unit: Unit, call: Callable[..., Any], given: Call) -> Any:
    """One run's own result: seeded, from copied inputs, nothing left behind."""
    args, kwargs = trees.replica((given.args, given.kwargs))
    with torch_kept(), kept(unit.module), torch.no_grad():
        seed(0)
        return trees.replica(call(*args, **kwargs))


def _tensor_names(calls: Calls) -> list[str]:
    leaves = zip(trees.names(calls.key.tree), calls.key.leaves, strict=True)
    return ["input" + name for name, leaf in leaves if isinstance(leaf, TensorLeaf)]


def _ends(size: int | Axis) -> tuple[int, int]:
    return (size.lo, size.hi) if isinstance(size, Axis) else (size, size)


def _axes(shapes: Shapes) -> Iterator[tuple[int, int, int | Axis]]:
    for leaf, sizes in enumerate(shapes.leaves):
        for axis, size in enumerate(sizes):
            yield leaf, axis, size


def _too_wide(known: Shapes, claimed: Shapes, names: list[str]) -> Iterator[Verdict]:
    """Axes that admit sizes outside the recorded range."""
    for (leaf, axis, seen), (_, _, says) in zip(_axes(known), _axes(claimed), strict=True):
        (low, high), (least, most) = _ends(seen), _ends(says)
        if least < low or most > high:
            where = f"{names[leaf]}, axis {axis}"
            yield Verdict.no(f"covers sizes {least} to {most} at {where}; {low} to {high} were recorded", where)


def _unequal(known: Shapes, claimed: Shapes, names: list[str]) -> Iterator[Verdict]:
    """Axes that were always equal, and that the claim lets differ."""
    groups: dict[str, tuple[int, int, int | Axis]] = {}
    for (leaf, axis, seen), (_, _, says) in zip(_axes(known), _axes(claimed), strict=True):
        if not isinstance(seen, Axis):
            continue
        first_leaf, first_axis, first = groups.setdefault(seen.symbol, (leaf, axis, says))
        if not _always_equal(first, says):
            where = f"{names[leaf]}, axis {axis}"
            other = f"{names[first_leaf]}, axis {first_axis}"
            yield Verdict.no(f"covers sizes of {where} that differ from {other}; they were always equal", where)


def _always_equal(first: int | Axis, second: int | Axis) -> bool:
    if isinstance(first, Axis) and isinstance(second, Axis) and first.symbol == second.symbol:
        return True
    low, high = _ends(first)
    return low == high and _ends(second) == (low, high)
