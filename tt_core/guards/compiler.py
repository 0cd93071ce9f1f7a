"""Compiles the question "may this built serve this call?" into a function with the unit's own signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from tt_core import callkey
from tt_core.guards import around
from tt_core.guards.claim import Claim
from tt_core.guards.kinds import Why
from tt_core.guards.leaves import const_text, contiguous_text, exact_text, moving_text, sizes_of
from tt_core.guards.made import made
from tt_core.guards.quick import is_small, quick
from tt_core.guards.reason import Reasons
from tt_core.guards.seen import Check, Seen
from tt_core.guards.walk import Names, Slot, Walked, parameters_text, prefix_for, walk
from tt_core.guards.weights import Watch
from tt_core.values import ConstLeaf, TensorLeaf, Unit, Weights, frozen

UNREADABLE = (TypeError, AttributeError, LookupError, ValueError, RuntimeError)
"""What a guard may raise on a call it was not made for (a shorter list, a missing attribute): it means no."""


@frozen
class Guard:
    """A compiled guard.

    Attributes:
        accepts: takes a call in any spelling; whether the built may serve it: truth, or what says no. May raise one of
            `UNREADABLE`: no. Where asked to pack, a yes is the tuple of the call's tensors in the key's order.
        explain: `explain(args, kwargs)`: every reason why a call was not accepted, at least one; slow.
        source: the text of `accepts`; also on the function, as `__source__`.
        watch: what the weights looked like; None for LIVE.
    """

    accepts: Callable[..., Any]
    explain: Callable[[tuple[Any, ...], dict[str, Any]], tuple[Why, ...]]
    source: str
    watch: Watch | None
    after: Callable[[], bool] | None = None
    """The watch's own question, where it may be asked once the work is launched: a device computes meanwhile."""

    @property
    def again(self) -> bool:
        """Whether what is asked after the launch reads so much that the guard's own records leave the nearest cache."""
        return self.after is not None and self.watch is not None and not is_small(self.watch)


def compile_guard(unit: Unit, claim: Claim, *, pack: bool = False) -> Guard:
    """Compiles the guard of one built on one unit; looks at the module and changes nothing.

    Args:
        unit: the unit, its module as it was when the built was made.
        claim: what the built may be used for.
        pack: whether a yes is to be the call's tensors, of which there is at least one.

    Raises:
        ValueError: forward's signature cannot be written down (a parameter whose name is no identifier).
    """
    signature = inspect.signature(unit.forward)
    names = Names(prefix=prefix_for(signature))
    watch = None if claim.weights is Weights.LIVE else Watch.of(unit.module, claim.weights, claim.facts.writes_state)
    later = watch is not None and _may_wait(claim)
    source = _source(unit, claim, signature, names, watch, later=later, pack=pack)
    accepts = made("guard", source, names.held)
    explain = Reasons(
        unit=unit,
        claim=claim,
        watch=watch,
        signature=signature,
        forks=around.forks[0],
        names=tuple(callkey.path_names(claim.key.tree)),
    )
    after = _question(watch) if later and watch is not None else None
    return Guard(accepts=accepts, explain=explain, source=source, watch=watch, after=after)


def _may_wait(claim: Claim) -> bool:
    """Whether a built may run before its weights were looked at: on a device, from memory that is held, writing nothing."""
    writes = claim.facts.writes_inputs or claim.facts.writes_state
    devices = {leaf.device.type for leaf in claim.key.tensors}
    return not writes and not claim.facts.random and bool(devices - {"cpu"})


def _question(watch: Watch) -> Callable[[], bool]:
    held: list[Callable[[], bool]] = []
    watch.publish = lambda check: held.__setitem__(slice(None), [check])
    watch.publish(quick(watch))
    return lambda: held[0]() or watch.recheck()


def _source(
    unit: Unit,
    claim: Claim,
    signature: inspect.Signature,
    names: Names,
    watch: Watch | None,
    *,
    later: bool,
    pack: bool,
) -> str:
    walked = walk(claim.key, names)
    conditions = [
        *_around(unit.module, claim, walked, names),
        *walked.conditions,
        *[const_text(slot.expr, slot.leaf, names) for slot in walked.slots if isinstance(slot.leaf, ConstLeaf)],
        *_tensors(claim, walked, names),
        *_grad(unit.module, walked, watch, names),
        *_weights(None if later else watch, names),
    ]
    if pack:
        conditions.append(f"({', '.join(slot.expr for slot in walked.tensors)},)")
    body = "\n        and ".join(conditions)
    title = callkey.describe(claim.key, claim.covers).encode("unicode_escape").decode()
    return f"def guard({parameters_text(signature, names)}):\n    # {title}\n    return (\n        {body}\n    )\n"


def _around(module: nn.Module, claim: Claim, walked: Walked, names: Names) -> list[str]:
    """Training, fork, autocast; the rest of what surrounds a call shows on its tensors, where it has any."""
    key = claim.key
    found = [f'{names.hold("module", vars(module))}["training"] is {key.ambient.training}']
    if not claim.fork_safe:
        found.append(f"{names.hold('forks', around.forks)}[0] == {around.forks[0]}")
    if key.ambient.autocast:
        found.append(
            f"{names.hold('ambient', callkey.ambient)}({key.ambient.training}) == {names.hold('around', key.ambient)}"
        )
    if not walked.tensors:
        devices = names.hold("devices", _devices(module))
        found.append(f"{names.hold('plain', around.plain)}({devices}, {bool(key.ambient.autocast)})")
    return found


def _devices(module: nn.Module) -> tuple[str, ...]:
    return tuple(sorted({tensor.device.type for tensor in module.parameters()} or {"cpu"}))


def _tensors(claim: Claim, walked: Walked, names: Names) -> list[str]:
    slots = walked.tensors
    if not slots:
        return []
    seen = Seen(
        exact=_exact(claim, slots),
        sizes=sizes_of(slots, claim.covers),
        strides=[[None] * len(sizes) for sizes in sizes_of(slots, claim.covers)],
        publish=_publisher(names, "seen"),
    )
    given = ", ".join(slot.expr for slot in slots)
    learn = names.hold("learn", seen.learn)
    conditions = [f"({names.prefix}seen({given}) or {learn}({given}))"]
    conditions.append(f'{names.hold("forward_ad", around.forward_ad_state)}["_current_level"] < 0')
    conditions += moving_text(slots, claim.covers, names)
    conditions += contiguous_text(slots) if claim.needs_strides else []
    if claim.facts.writes_inputs:
        conditions.append(f"{names.hold('disjoint', around.disjoint)}({given})")
    return conditions


def _exact(claim: Claim, slots: Sequence[Slot]) -> Check:
    """The predicate that `Seen` remembers: what surrounds the call, and each tensor."""
    names = Names()
    devices = tuple(sorted({slot.leaf.device.type for slot in slots if isinstance(slot.leaf, TensorLeaf)}))
    around_text = f"{names.hold('plain', around.plain)}({devices!r}, {bool(claim.key.ambient.autocast)})"
    body = "\n        and ".join([*exact_text(slots, claim.covers, names), around_text])
    parameters = ", ".join(f"t{index}" for index in range(len(slots)))
    names.held["torch"] = torch
    return made("exact", f"def exact({parameters}):\n    return (\n        {body}\n    )\n", names.held)


def _publisher(names: Names, stem: str) -> Callable[[Check], None]:
    def publish(check: Check) -> None:
        names.held[f"{names.prefix}{stem}"] = check

    return publish


def _grad(module: nn.Module, walked: Walked, watch: Watch | None, names: Names) -> list[str]:
    """No gradients wanted: grad mode off, or neither an input nor a parameter requires grad."""
    tensors = watch.tensors if watch is not None else None

    def wanted(*inputs: Any) -> bool:
        weights = module.parameters() if tensors is None else tensors
        return any(each.requires_grad for each in inputs) or any(each.requires_grad for each in weights)

    given = ", ".join(slot.expr for slot in walked.tensors)
    return [f"not ({names.hold('grad_on', around.grad_on)}() and {names.hold('wanted', wanted)}({given}))"]


def _weights(watch: Watch | None, names: Names) -> list[str]:
    if watch is None:
        return []
    watch.publish = _publisher(names, "unchanged")
    watch.publish(quick(watch))
    return [f"({names.prefix}unchanged() or {names.hold('recheck', watch.recheck)}())"]
