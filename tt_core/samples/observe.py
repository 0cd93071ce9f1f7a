"""Runs a unit on recorded calls and notes all that it did."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from tt_core import trees
from tt_core.callkey import canonical, tensors_of
from tt_core.samples.overlap import Source, aliases
from tt_core.samples.same import same_tree
from tt_core.state import Snapshot, take
from tt_core.state import seed as seed_all
from tt_core.values import Call, Observation, Unit, frozen


def observe(
    run: Callable[..., Any], unit: Unit, calls: Sequence[Call], *, seed: int, like: Snapshot | None = None
) -> tuple[Observation, ...]:
    """Runs `run` on each call and observes results, inputs, state and shared memory; the unit's state is put back.

    Each call gets a replica of its arguments, the state as it is now, and generators seeded with `seed` plus its index.
    Results are held by reference until the last call ran and copied then: one that a later call overwrites is seen as
    the caller would see it. Results that share memory with the state are copied at once, since the state is put back.

    Args:
        run: the unit's forward, or a built in its place.
        unit: whose state is watched.
        calls: recorded calls; only replicas of their tensors are handed out.
        seed: an integer.
        like: a snapshot whose copies may be shared.

    Raises:
        Exception: whatever `run` raises; the state is put back then, too.
    """
    snapshot = take(unit.module, like=like)
    signature = inspect.signature(unit.forward)
    with torch.inference_mode(False), torch.no_grad():
        try:
            seen = [_one(run, unit, call, signature, snapshot, seed + index) for index, call in enumerate(calls)]
            return tuple(_observation(one) for one in seen)
        finally:
            snapshot.restore()


@frozen
class _Ran:
    """One call that ran, its result not copied yet."""

    leaves: list[Any]
    tree: Any
    early: Mapping[int, Any]
    """Leaves that had to be copied at once."""
    inputs_after: Any
    state_after: Mapping[str, Any]
    aliases: frozenset[tuple[int, Source]]


def _one(
    run: Callable[..., Any], unit: Unit, call: Call, signature: inspect.Signature, snapshot: Snapshot, seed: int
) -> _Ran:
    snapshot.restore()
    args, kwargs = trees.replica((call.args, call.kwargs))
    given = Call(*args, **kwargs)
    inputs = tensors_of(unit.forward, given)
    seed_all(seed)
    leaves, tree = trees.flatten(run(*args, **kwargs))
    changed = snapshot.changed()
    shared = aliases(leaves, inputs, _state_tensors(snapshot, changed))
    after = canonical(signature, given)
    unchanged = same_tree(after, canonical(signature, call))
    memo: dict[Any, Any] = {}
    early = {index for index, (kind, _) in shared if kind == "state"}
    return _Ran(
        leaves=leaves,
        tree=tree,
        early={index: trees.replica(leaves[index], memo) for index in early},
        inputs_after=None if unchanged else trees.replica(after, {}),
        state_after={name: trees.replica(value, {}) for name, value in changed.items()},
        aliases=shared,
    )


def _state_tensors(snapshot: Snapshot, changed: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Tensors of the state, those that the call put there included."""
    found = dict(snapshot.tensors)
    for name, value in changed.items():
        for index, tensor in enumerate(trees.tensors(value)):
            found[name if index == 0 else f"{name}[{index}]"] = tensor
    return found


def _observation(ran: _Ran) -> Observation:
    memo: dict[Any, Any] = {}
    leaves = [ran.early[i] if i in ran.early else trees.replica(leaf, memo) for i, leaf in enumerate(ran.leaves)]
    return Observation(
        result=trees.unflatten(ran.tree, leaves),
        inputs_after=ran.inputs_after,
        state_after=ran.state_after,
        aliases=ran.aliases,
    )
