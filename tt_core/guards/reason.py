"""Why a call was not accepted: the slow, exact account that a fall is counted and explained by."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from tt_core import callkey, trees
from tt_core.guards import around
from tt_core.guards.kinds import Fall, Why
from tt_core.guards.weights import Watch
from tt_core.values import Axis, Call, CallKey, ConstLeaf, TensorLeaf, Unit

if TYPE_CHECKING:
    from tt_core.guards.compiler import Claim

_FIELDS = ((Fall.TYPE, "type"), (Fall.DTYPE, "dtype"), (Fall.DEVICE, "device"), (Fall.LAYOUT, "layout"))


def reason(
    unit: Unit, claim: Claim, watch: Watch | None, forks: int, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Why:
    """The first reason, in the order of `Fall`, why the built of `claim` may not serve a call.

    Args:
        unit: the unit.
        claim: what its built may be used for.
        watch: what its module looked like; None for LIVE.
        forks: `around.forks[0]` when the guard was compiled.
        args: the call's positional arguments, as spelled.
        kwargs: its keyword arguments.
    """
    call = Call(*args, **kwargs)
    found = next(_outside(unit, claim, forks, call), None)
    if found is not None:
        return found
    key = callkey.key_of(unit.forward, call, training=claim.key.ambient.training)
    if isinstance(key, callkey.Opaque):
        kind = Fall.SIGNATURE if "signature" in key.reason else Fall.OPAQUE
        return Why(kind=kind, seen=key.reason)
    tensors = callkey.tensors_of(unit.forward, call)
    changed = watch.difference() if watch is not None else None
    return next(_inside(claim, key, tensors), changed or Why(kind=Fall.OTHER, seen="the guard could not read the call"))


def _outside(unit: Unit, claim: Claim, forks: int, call: Call) -> Iterator[Why]:
    """What surrounds the call."""
    leaves = trees.flatten((call.args, call.kwargs))[0]
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


def _inside(claim: Claim, key: CallKey, tensors: Sequence[torch.Tensor]) -> Iterator[Why]:
    """The arguments."""
    if key.tree != claim.key.tree:
        yield Why(kind=Fall.STRUCTURE, seen="its arguments have a structure that was not tuned")
        return
    for name, was, now in zip(callkey.path_names(key.tree), claim.key.leaves, key.leaves, strict=True):
        yield from _leaf(name, was, now)
    yield from _sizes(claim, tensors)
    if claim.needs_strides and not all(tensor.is_contiguous() for tensor in tensors):
        yield Why(kind=Fall.STRIDES, seen="an input is not contiguous")
    if any(tensor.is_conj() or tensor.is_neg() for tensor in tensors):
        yield Why(kind=Fall.STRIDES, seen="an input is a lazy conjugate or negative")
    if claim.facts.writes_inputs and not around.disjoint(*tensors):
        yield Why(kind=Fall.OVERLAP, seen="two inputs share memory")


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


def _sizes(claim: Claim, tensors: Sequence[torch.Tensor]) -> Iterator[Why]:
    if claim.covers is None:
        return
    sizes = [tuple(tensor.shape) for tensor in tensors]
    if claim.covers.admit(sizes):
        return
    names = [
        n
        for n, leaf in zip(callkey.path_names(claim.key.tree), claim.key.leaves, strict=True)
        if isinstance(leaf, TensorLeaf)
    ]
    for name, given, tuned in zip(names, sizes, claim.covers.leaves, strict=True):
        if len(given) != len(tuned) or not all(_within(n, size) for n, size in zip(given, tuned, strict=True)):
            text = ", ".join(f"{s.lo}..{s.hi}" if isinstance(s, Axis) else str(s) for s in tuned)
            yield Why(kind=Fall.SHAPE, seen=f"{name} has sizes {list(given)}, tuned for [{text}]")
    yield Why(kind=Fall.SHAPE, seen="axes differ that were equal in every tuned call")


def _within(n: int, size: int | Axis) -> bool:
    return size.lo <= n <= size.hi if isinstance(size, Axis) else n == size
