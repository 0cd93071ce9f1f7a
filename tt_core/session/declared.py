"""Axes that the caller declares, in `torch.export`'s own form: for the inputs of the root, by parameter."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.export import Dim

from tt_core import trees
from tt_core.callkey import canonical
from tt_core.errors import KindError, UsageError
from tt_core.values import Axis, Call, Calls, Shapes, evolve, frozen

_MOST = 2**31 - 1
"""The largest size of an axis that was declared without an upper bound."""
_HINTS = ("AUTO", "DYNAMIC")
_FORM = "a dict from axis to torch.export.Dim, a tuple with an entry for each axis, or None"


@frozen
class Bound:
    """What was declared of one axis.

    Attributes:
        lo: the smallest size.
        hi: the largest one.
        name: axes of one name are equal; empty for a hint, which names none.
    """

    lo: int
    hi: int
    name: str = ""


@frozen
class Placed:
    """A declared axis: which tensor of a call in key order, which of its axes, what for people, and what was said."""

    tensor: int
    axis: int
    label: str
    bound: Bound


@frozen
class Declared:
    """`dynamic_shapes=` for one signature. Made by `declare`."""

    signature: inspect.Signature
    given: Any

    def check(self, call: Call, place: str) -> None:
        """Holds a call of the root to what was declared.

        Args:
            call: any spelling.
            place: `sample 3`, for messages.

        Raises:
            UsageError: a size outside its bounds, axes of one `Dim` that differ, or a declaration that does not fit the call.
            KindError: an entry of a kind that says nothing about a size.
        """
        tensors = trees.tensors(canonical(self.signature, call))
        sizes = [tuple(tensor.shape) for tensor in tensors]
        named: dict[str, tuple[int, str]] = {}
        for one in self._placed(call):
            size, bound = sizes[one.tensor][one.axis], one.bound
            if not bound.lo <= size <= bound.hi:
                raise UsageError(f"{place} has size {size} at {one.label}, declared were {bound.lo} to {bound.hi}")
            other, label = named.setdefault(bound.name or one.label, (size, one.label))
            if other != size:
                text = f"{place} has size {size} at {one.label} and {other} at {label}"
                raise UsageError(f"{text}, both declared as {bound.name!r}")

    def widen(self, calls: Calls) -> tuple[Calls, tuple[str, ...]]:
        """The root's calls with declared ranges for their sizes, and the axes whose range no sample fills.

        An axis that moved together with a declared one in all samples is declared with it. A key whose calls the
        declaration does not fit is left alone.

        Raises:
            UsageError: a recorded call lies outside (its samples were run by an `inference_function`).
        """
        if calls.untunable or not calls.samples:
            return calls, ()
        for sample in calls.samples:
            self.check(sample.call, "a recorded call")
        return self._wide(calls, list(self._placed(calls.samples[0].call)))

    def _wide(self, calls: Calls, placed: Sequence[Placed]) -> tuple[Calls, tuple[str, ...]]:
        seen = [list(leaf) for leaf in calls.shapes.leaves]
        made: dict[str, Axis] = {}
        unseen: list[str] = []
        for one in placed:
            was = seen[one.tensor][one.axis]
            symbol = f"d_{one.bound.name}" if one.bound.name else _symbol(was, one)
            axis = Axis(lo=one.bound.lo, hi=one.bound.hi, symbol=symbol)
            if isinstance(was, Axis):
                made.setdefault(was.symbol, axis)
            seen[one.tensor][one.axis] = axis if axis.lo < axis.hi else axis.lo
            unseen += [f"{one.label}: {axis.lo} to {axis.hi}"] if axis.lo < axis.hi and not _filled(was, axis) else []
        leaves = tuple(
            tuple(made.get(size.symbol, size) if isinstance(size, Axis) else size for size in leaf) for leaf in seen
        )
        return evolve(calls, shapes=Shapes(leaves=leaves)), tuple(unseen)

    def _placed(self, call: Call) -> Iterator[Placed]:
        values = canonical(self.signature, call)
        start = 0
        for name, value in values.items():
            for tensor, axis, label, bound in _walk(name, value, self._entry(name, values)):
                if bound is not None:
                    yield Placed(tensor=start + tensor, axis=axis, label=label, bound=bound)
            start += len(trees.tensors(value))

    def _entry(self, name: str, values: Mapping[str, Any]) -> Any:
        if isinstance(self.given, Mapping):
            kind = self.signature.parameters[name].kind
            if kind is inspect.Parameter.VAR_KEYWORD and name not in self.given:
                return {key: self.given[key] for key in values[name] if key in self.given}
            return self.given.get(name)
        place = list(self.signature.parameters).index(name)
        return self.given[place] if place < len(self.given) else None


def declare(given: Any, obj: Any) -> Declared | None:
    """Reads `dynamic_shapes=`.

    Args:
        given: by parameter name, or in the order of the parameters; None: nothing is declared.
        obj: the root.

    Raises:
        UsageError: `obj` is no module, a parameter that it does not have, or more entries than parameters.
        KindError: neither a mapping nor a sequence.
    """
    if given is None:
        return None
    if not isinstance(obj, torch.nn.Module):
        raise UsageError(
            f"dynamic_shapes= declares the inputs of a module's forward; {type(obj).__name__!r} is no module"
        )
    if not isinstance(given, Mapping | tuple | list):
        raise KindError(f"dynamic_shapes={given!r}: a dict by parameter name is needed, or a tuple in their order")
    signature = inspect.signature(obj.forward)
    names = list(signature.parameters)
    free = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in signature.parameters.values())
    unknown = [name for name in given if name not in names] if isinstance(given, Mapping) and not free else []
    if unknown:
        raise UsageError(f"dynamic_shapes: forward has no parameter {unknown[0]!r}; it has {', '.join(names)}")
    if len(given) > len(names) and not free:
        raise UsageError(f"dynamic_shapes has {len(given)} entries, forward {len(names)} parameters")
    return Declared(signature=signature, given=given)


Step = tuple[int, int, str, Bound | None]


def _walk(label: str, value: Any, said: Any) -> Iterator[Step]:
    """(tensor within `value`, axis, label, bound) of every declared axis."""
    if said is None:
        return
    if isinstance(value, torch.Tensor):
        for axis, entry in _axes(label, value, said):
            yield 0, axis, f"{label}, axis {axis}", _bound(label, entry)
        return
    start = 0
    for step, part, entry in _parts(label, value, said):
        for tensor, axis, name, bound in _walk(f"{label}[{step!r}]", part, entry):
            yield start + tensor, axis, name, bound
        start += len(trees.tensors(part))


def _parts(label: str, value: Any, said: Any) -> list[tuple[Any, Any, Any]]:
    if isinstance(value, Mapping) and isinstance(said, Mapping):
        unknown = [key for key in said if key not in value]
        if unknown:
            raise UsageError(f"dynamic_shapes: {label} has no {unknown[0]!r}; it has {', '.join(map(repr, value))}")
        return [(key, part, said.get(key)) for key, part in value.items()]
    if isinstance(value, tuple | list) and isinstance(said, tuple | list) and len(value) == len(said):
        return [(index, part, entry) for index, (part, entry) in enumerate(zip(value, said, strict=True))]
    raise UsageError(
        f"dynamic_shapes: what is said about {label} does not have the structure of a {type(value).__name__}"
    )


def _axes(label: str, tensor: torch.Tensor, said: Any) -> list[tuple[int, Any]]:
    if isinstance(said, Mapping):
        axes = list(said.items())
    elif isinstance(said, tuple | list) and len(said) == tensor.dim():
        axes = list(enumerate(said))
    else:
        raise UsageError(f"dynamic_shapes: {label} is a tensor of {tensor.dim()} axes; give {_FORM}")
    for axis, _ in axes:
        if not isinstance(axis, int) or not 0 <= axis < tensor.dim():
            raise UsageError(f"dynamic_shapes: {label} has {tensor.dim()} axes, there is no axis {axis!r}")
    return axes


def _bound(label: str, entry: Any) -> Bound | None:
    """What an entry says; None for one that says that the axis does not move."""
    if entry is None:
        return None
    if type(entry) is int:
        return Bound(lo=entry, hi=entry)
    if hasattr(entry, "root"):
        raise UsageError(
            f"dynamic_shapes: {label}: {entry.__name__!r} is derived from another Dim; declare each on its own"
        )
    if isinstance(entry, Dim):
        return Bound(lo=_end(entry.min, 1), hi=_end(entry.max, _MOST), name=entry.__name__)
    hint = getattr(getattr(entry, "type", None), "name", "")  # torch.export gives the class of its hints no public name
    if hint == "STATIC":
        return None
    if hint in _HINTS:
        return Bound(lo=_end(entry.min, 1), hi=_end(entry.max, _MOST))
    raise KindError(f"dynamic_shapes: {label}: {entry!r} is neither a torch.export.Dim nor a size nor None")


def _end(value: Any, otherwise: int) -> int:
    return value if type(value) is int and value > 0 else otherwise


def _symbol(was: int | Axis, one: Placed) -> str:
    return was.symbol if isinstance(was, Axis) else f"d_{one.tensor}_{one.axis}"


def _filled(was: int | Axis, axis: Axis) -> bool:
    """Whether the samples reach both ends of a declared range."""
    return isinstance(was, Axis) and was.lo <= axis.lo and was.hi >= axis.hi


__all__ = ["Bound", "Declared", "declare"]
