"""Records the calls of units over one pass, and runs eager on each that is kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import torch

from tt_core import trees
from tt_core.callkey import Opaque, ambient, evidence, key_of, tensors_of
from tt_core.contain import Caught, attempt
from tt_core.samples.extremes import Sizes, choose
from tt_core.samples.facts import hooks_inside, tied, watched
from tt_core.samples.feed import Feed
from tt_core.state import Snapshot, patched, take
from tt_core.values import Call, CallKey, Calls, ConstLeaf, Facts, Observation, Sample, Shapes, Unit, evolve

MAX_CONSTANTS = 4
"""Keys of one unit that may differ in constants only; each would be another graph."""


def record(
    obj: Any,
    feed: Feed,
    units: Sequence[Unit],
    *,
    byte_cap: int,
    keep: int = 4,
    seed: int = 0,
    within: Snapshot | None = None,
) -> Mapping[str, tuple[Calls, ...]]:
    """Runs one pass with `forward` of the units watched, then eager on each recorded call; the state is put back.

    Args:
        obj: the user's object.
        feed: its samples.
        units: none inside another.
        byte_cap: how many bytes of recorded inputs may be held, over all units.
        keep: recorded calls kept of each key, the smallest and the largest shapes among them.
        seed: seeds the eager runs; give `observe` the same one for candidates.
        within: the caller's snapshot of `obj`, taken in the present state: saves a second copy.

    Returns:
        By path, for each unit that was called, one `Calls` a key in the order of first sight. A key that cannot be tuned
        has `untunable` set and no samples.

    Raises:
        SampleError: the object cannot run a sample.
    """
    budget = Budget(left=byte_cap)
    tapes = [Tape(unit=unit, keep=keep, budget=budget) for unit in units]
    snapshot = take(obj) if within is None else within
    try:
        with torch.no_grad(), patched([(tape.unit.module, tape.spy) for tape in tapes]):
            for _ in feed.each(obj):
                pass
    finally:
        snapshot.restore()
    return {
        tape.unit.path: tuple(_calls(tape, group, seed, snapshot) for group in tape.groups.values()) for tape in tapes
    }


@attrs.define
class Budget:
    """Bytes that may still be recorded."""

    left: int


@attrs.define
class Group:
    """The calls of one key."""

    key: CallKey
    untunable: str = ""
    sizes: dict[Sizes, int] = attrs.field(factory=dict)
    """Shapes seen, and how often."""
    kept: list[tuple[Call, Sizes, int]] = attrs.field(factory=list)
    """Recorded calls with their shapes and bytes."""


@attrs.define
class Tape:
    """What one unit was called with."""

    unit: Unit
    keep: int
    budget: Budget
    groups: dict[Any, Group] = attrs.field(factory=dict)
    families: dict[Any, int] = attrs.field(factory=dict)
    """How many keys there are of each kind of call, constants aside."""
    outside: Any = None
    """The autocast state that the pass began in."""
    active: bool = False
    recursive: bool = False

    def spy(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """A forward that records each call before it runs."""
        self.outside = ambient(False).autocast

        def recorded(*args: Any, **kwargs: Any) -> Any:
            if self.active:
                self.recursive = True
                return forward(*args, **kwargs)
            self.note(Call(*args, **kwargs), forward)
            self.active = True
            try:
                return forward(*args, **kwargs)
            finally:
                self.active = False

        return recorded

    def note(self, call: Call, forward: Callable[..., Any]) -> None:
        """Counts a call and keeps a replica of it where it is wanted."""
        training = self.unit.module.training
        key = key_of(forward, call, training=training)
        if isinstance(key, Opaque):
            bare = CallKey(tree=None, leaves=(), ambient=ambient(training))
            group = self.groups.setdefault(key, Group(bare, f"an argument cannot be compared: {key.reason}"))
            group.sizes[()] = group.sizes.get((), 0) + 1
            return
        if key not in self.groups:
            self.groups[key] = Group(key, self._why_not(key))
        sizes = tuple(tuple(tensor.shape) for tensor in tensors_of(forward, call))
        group = self.groups[key]
        group.sizes[sizes] = group.sizes.get(sizes, 0) + 1
        if not group.untunable:
            self._offer(group, call, sizes)

    def _why_not(self, key: CallKey) -> str:
        if key.ambient.autocast != self.outside:
            return "the model switches autocast on around it: a module further out can be tuned"
        family = key.tree, tuple(None if isinstance(leaf, ConstLeaf) else leaf for leaf in key.leaves), key.ambient
        self.families[family] = self.families.get(family, 0) + 1
        if self.families[family] > MAX_CONSTANTS:
            return f"its constant arguments have more than {MAX_CONSTANTS} values: those after the first ones run eager"
        return ""

    def _offer(self, group: Group, call: Call, sizes: Sizes) -> None:
        known = [shape for _, shape, _ in group.kept]
        chosen = choose([*known, sizes], self.keep)
        if len(known) not in chosen:
            return
        dropped = [index for index in range(len(known)) if index not in chosen]
        freed = sum(group.kept[index][2] for index in dropped)
        need = sum(_bytes(tensor) for tensor in trees.tensors((call.args, call.kwargs)))
        if need > self.budget.left + freed:
            return
        args, kwargs = trees.replica((call.args, call.kwargs))
        group.kept = [one for index, one in enumerate(group.kept) if index not in dropped]
        group.kept.append((Call(*args, **kwargs), sizes, need))
        self.budget.left += freed - need


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _calls(tape: Tape, group: Group, seed: int, snapshot: Snapshot) -> Calls:
    """What is known about one key, after eager ran on its recorded calls."""
    why = _why_untunable(tape, group)
    seen = sum(group.sizes.values())
    shapes = evidence(list(group.sizes)) if group.key.tree is not None else Shapes(leaves=())
    bare = Facts(hooks_inside=hooks_inside(tape.unit.module), tied=tied(tape.unit.module))
    untunable = Calls(key=group.key, shapes=shapes, samples=(), seen=seen, facts=bare, untunable=why)
    if why:
        return untunable
    recorded = [call for call, _, _ in group.kept]
    where = f"eager run of {tape.unit.path!r}"
    answer = attempt(lambda: watched(tape.unit, recorded, seed=seed, like=snapshot), where=where)
    if isinstance(answer, Caught):
        return evolve(untunable, untunable=f"it cannot be run again on its own: {answer.kind}: {answer.reason}")
    observed, facts = answer
    samples = tuple(_sample(tape.unit, group, index, one) for index, one in enumerate(observed))
    return Calls(key=group.key, shapes=shapes, samples=samples, seen=seen, facts=facts)


def _why_untunable(tape: Tape, group: Group) -> str:
    if tape.recursive:
        return "the module calls itself"
    if group.untunable:
        return group.untunable
    return "" if group.kept else "its recorded inputs would exceed the byte cap: raise settings.record_bytes"


def _sample(unit: Unit, group: Group, index: int, expected: Observation) -> Sample:
    from tt_core.truth import truth_of

    call, sizes, _ = group.kept[index]
    truth = truth_of(unit, call, expected)
    return Sample(call=call, expected=expected, truth=truth, index=index, count=group.sizes[sizes])
