"""Why a call was not accepted: the slow, exact account that a fall is counted and explained by."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx

from tt_core import callkey, trees
from tt_core.guards import around
from tt_core.guards.claim import Claim
from tt_core.guards.kinds import Fall, Why
from tt_core.guards.weights import Watch
from tt_core.values import Axis, Call, ConstLeaf, Shapes, TensorLeaf, Unit, frozen

_FIELDS = ((Fall.TYPE, "type"), (Fall.DTYPE, "dtype"), (Fall.DEVICE, "device"), (Fall.LAYOUT, "layout"))


@frozen
class Reasons:
    """Says why the built of `claim` may not serve a call.

    Attributes:
        unit: the unit.
        claim: what its built may be used for.
        watch: what its module looked like; None for LIVE.
        signature: of the unit's forward.
        forks: `around.forks[0]` when the guard was compiled.
        names: a printable path of each leaf of the key.
    """

    unit: Unit
    claim: Claim
    watch: Watch | None
    signature: inspect.Signature
    forks: int
    names: tuple[str, ...]

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Why, ...]:
        """At least one reason, what surrounds the call before the rest.

        Args:
            args: the call's positional arguments, as spelled.
            kwargs: its keyword arguments.
        """
        try:
            arguments = callkey.canonical(self.signature, Call(*args, **kwargs))
        except TypeError as error:
            return (Why(kind=Fall.SIGNATURE, seen=f"the call does not fit the signature of forward ({error})"),)
        leaves, tree = trees.flatten(arguments)
        outside = next(_outside(self.unit, self.claim, self.forks, leaves), None)
        if outside is not None:
            return (outside,)
        found = [*self._inside(leaves, tree)]
        changed = self.watch.difference() if self.watch is not None else None
        found += [changed] if changed is not None else []
        return tuple(found) or (Why(kind=Fall.OTHER, seen="the guard could not read the call"),)

    def _inside(self, values: Sequence[Any], tree: Any) -> Iterator[Why]:
        """The arguments."""
        leaves = [callkey.leaf_of(value) for value in values]
        if None in leaves:
            yield Why(kind=Fall.OPAQUE, seen=callkey.opaque_text(tree, leaves.index(None), values))
            return
        if tree != self.claim.key.tree:
            yield Why(kind=Fall.STRUCTURE, seen="its arguments have a structure that was not tuned")
            return
        for name, was, now in zip(self.names, self.claim.key.leaves, leaves, strict=True):
            if now is not None:
                yield from _leaf(name, was, now)
        yield from self._memory([value for value in values if isinstance(value, torch.Tensor)])

    def _memory(self, tensors: Sequence[torch.Tensor]) -> Iterator[Why]:
        """Sizes, strides, and memory shared."""
        named = [n for n, leaf in zip(self.names, self.claim.key.leaves, strict=True) if isinstance(leaf, TensorLeaf)]
        yield from _sizes(self.claim.covers, named, [tuple(tensor.shape) for tensor in tensors])
        if self.claim.needs_strides and not all(tensor.is_contiguous() for tensor in tensors):
            yield Why(kind=Fall.STRIDES, seen="an input is not contiguous")
        if any(tensor.is_conj() or tensor.is_neg() for tensor in tensors):
            yield Why(kind=Fall.STRIDES, seen="an input is a lazy conjugate or negative")
        if self.claim.facts.writes_inputs and not around.disjoint(*tensors):
            yield Why(kind=Fall.OVERLAP, seen="two inputs share memory")


def _outside(unit: Unit, claim: Claim, forks: int, leaves: Sequence[Any]) -> Iterator[Why]:
    """What surrounds the call."""
    traced = around.traced() or ("torch.fx is at work" if any(isinstance(leaf, fx.Proxy) for leaf in leaves) else "")
    if traced:
        yield Why(kind=Fall.TRACING, seen=f"called while {traced}")
    if not claim.fork_safe and around.forks[0] != forks:
        yield Why(kind=Fall.PROCESS, seen="called in a forked process, which its backend does not survive")
    wanted = claim.key.ambient
    if unit.module.training != wanted.training:
        modes = ("evaluation", "training")
        yield Why(
            kind=Fall.TRAINING,
            seen=f"called in {modes[unit.module.training]} mode, tuned in {modes[wanted.training]} mode",
        )
    now = callkey.ambient(wanted.training)
    if now != wanted and _matters(claim, now.autocast):
        yield Why(kind=Fall.AUTOCAST, seen=f"called under {_text(now.autocast)}, tuned under {_text(wanted.autocast)}")
    if torch.is_grad_enabled() and _wants_grad(unit, leaves):
        yield Why(kind=Fall.GRAD, seen="called with gradients enabled")


def _matters(claim: Claim, now: tuple[tuple[str, torch.dtype], ...]) -> bool:
    """A key without autocast is only disturbed by autocast on a device that its tensors are on."""
    devices = {leaf.device.type for leaf in claim.key.tensors}
    return bool(claim.key.ambient.autocast) or not devices or any(device in devices for device, _ in now)


def _text(autocast: tuple[tuple[str, torch.dtype], ...]) -> str:
    return ", ".join(f"autocast to {dtype} on {device}" for device, dtype in autocast) or "no autocast"


def _wants_grad(unit: Unit, leaves: Sequence[Any]) -> bool:
    inputs = any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in leaves)
    return inputs or any(parameter.requires_grad for parameter in unit.module.parameters())


def _leaf(name: str, was: TensorLeaf | ConstLeaf, now: TensorLeaf | ConstLeaf) -> Iterator[Why]:
    if type(was) is not type(now):
        yield Why(kind=Fall.STRUCTURE, seen=f"{name} is {_kind(now)}, tuned with {_kind(was)}")
    elif isinstance(was, ConstLeaf) and was != now:
        yield Why(kind=Fall.CONSTANT, seen=f"{name} has a value that was not tuned")
    elif isinstance(was, TensorLeaf) and isinstance(now, TensorLeaf):
        for kind, field in _FIELDS:
            one, other = getattr(was, field), getattr(now, field)
            if one != other:
                yield Why(kind=kind, seen=f"{name} has {field} {other}, tuned with {one}")
        if was.rank != now.rank:
            yield Why(kind=Fall.SHAPE, seen=f"{name} has {now.rank} axes, tuned with {was.rank}")


def _kind(leaf: TensorLeaf | ConstLeaf) -> str:
    return "a tensor" if isinstance(leaf, TensorLeaf) else f"a constant of type {leaf.type.__name__}"


def _sizes(covers: Shapes | None, names: Sequence[str], sizes: Sequence[tuple[int, ...]]) -> Iterator[Why]:
    if covers is None or covers.admit(sizes):
        return
    for name, given, tuned in zip(names, sizes, covers.leaves, strict=True):
        if len(given) != len(tuned) or not all(_within(n, size) for n, size in zip(given, tuned, strict=True)):
            text = ", ".join(f"{s.lo}..{s.hi}" if isinstance(s, Axis) else str(s) for s in tuned)
            yield Why(kind=Fall.SHAPE, seen=f"{name} has sizes {list(given)}, tuned for [{text}]")
            return
    yield Why(kind=Fall.SHAPE, seen="axes differ that were equal in every tuned call")


def _within(n: int, size: int | Axis) -> bool:
    return size.lo <= n <= size.hi if isinstance(size, Axis) else n == size
