"""A unit's results as a flat tuple of distinct tensors, and back: what is bound, found by running the unit eager."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any

import torch
from torch import nn

from tt_core import trees
from tt_core.errors import BuildRefusedError
from tt_core.values import frozen, valued

Unpack = Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor]], Any]

_PLAIN = (
    type(None), bool, int, float, complex, str, bytes, Enum, slice, range,
    torch.dtype, torch.device, torch.layout, torch.memory_format,
)  # fmt: skip
"""Kinds of results that may be bound: their value is all they are."""


@valued
class FromOutput:
    """A result leaf that is the `index`-th distinct result tensor."""

    index: int


@valued
class FromInput:
    """A result leaf that is the `index`-th input, unchanged."""

    index: int


@frozen
class Bound:
    """A result leaf that is no tensor, with its recorded value."""

    value: Any


@frozen
class Results:
    """The recorded result, taken apart.

    Attributes:
        spec: structure and container types.
        leaves: where each leaf comes from.
        firsts: for each distinct result tensor the position of its first leaf.
        paths: a printable path of each leaf.
    """

    spec: Any
    leaves: tuple[FromOutput | FromInput | Bound, ...]
    firsts: tuple[int, ...]
    paths: tuple[str, ...]

    @property
    def inputs(self) -> tuple[int, ...]:
        """The inputs that are returned unchanged."""
        return tuple(sorted({leaf.index for leaf in self.leaves if isinstance(leaf, FromInput)}))

    def picked(self, result: Any) -> tuple[torch.Tensor, ...]:
        """The distinct tensors of `result`.

        Raises:
            BuildRefusedError: while a program is traced, a result is a number that depends on sizes or values.
        """
        leaves, spec = trees.flatten(result)
        if spec != self.spec:
            raise BuildRefusedError("the structure of its result differs between recorded calls")
        for leaf, path in zip(leaves, self.paths, strict=True):
            if isinstance(leaf, (torch.SymInt, torch.SymFloat, torch.SymBool)):
                raise BuildRefusedError(f"{_where(path)} is a number that depends on the sizes or values of its inputs")
        return tuple(leaves[first] for first in self.firsts)


def results_of(result: Any, inputs: Sequence[torch.Tensor], state: Sequence[torch.Tensor]) -> Results:
    """Takes a result of one eager run apart.

    Args:
        result: what the unit returned.
        inputs: the tensors it was given, no two of them sharing memory.
        state: parameters and buffers of the unit.

    Raises:
        BuildRefusedError: a result is a view of an input or of state, or an object of unknown kind.
    """
    leaves, spec = trees.flatten(result)
    paths = tuple(trees.names(spec))
    given = {id(tensor): i for i, tensor in enumerate(inputs)}
    owners = {_memory(t): "an input" for t in inputs} | {_memory(t): "a parameter or buffer" for t in state}
    outputs: dict[int, int] = {}
    firsts: list[int] = []
    found: list[FromOutput | FromInput | Bound] = []
    for i, (leaf, path) in enumerate(zip(leaves, paths, strict=True)):
        if not isinstance(leaf, torch.Tensor):
            found.append(_bound(leaf, path))
        elif id(leaf) in given:
            found.append(FromInput(index=given[id(leaf)]))
        else:
            _refuse_shared(leaf, path, owners)
            if id(leaf) not in outputs:
                outputs[id(leaf)] = len(firsts)
                firsts.append(i)
            found.append(FromOutput(index=outputs[id(leaf)]))
    return Results(spec=spec, leaves=tuple(found), firsts=tuple(firsts), paths=paths)


def _where(path: str) -> str:
    return f"result {path}" if path else "the result"


def _memory(tensor: torch.Tensor) -> tuple[int, str] | None:
    """What identifies a tensor's memory; None for one without."""
    if tensor.layout != torch.strided or tensor.untyped_storage().nbytes() == 0:
        return None
    return tensor.untyped_storage().data_ptr(), str(tensor.device)


def _refuse_shared(leaf: torch.Tensor, path: str, owners: Mapping[tuple[int, str] | None, str]) -> None:
    memory = _memory(leaf)
    if memory is not None and memory in owners:
        raise BuildRefusedError(f"{_where(path)} shares memory with {owners[memory]}")


def _bound(leaf: Any, path: str) -> Bound:
    if not isinstance(leaf, _PLAIN):
        raise BuildRefusedError(f"{_where(path)} is a {type(leaf).__name__}, neither a tensor nor a plain value")
    return Bound(value=leaf)


def refuse_difference(first: Results, other: Results) -> None:
    """Compares what two recorded calls returned.

    Raises:
        BuildRefusedError: structure, a value that is no tensor, or which results are the same tensor differs.
    """
    if first.spec != other.spec:
        raise BuildRefusedError("the structure of its result differs between recorded calls")
    for a, b, path in zip(first.leaves, other.leaves, first.paths, strict=True):
        if isinstance(a, Bound) and isinstance(b, Bound):
            if not _same(a.value, b.value):
                text = f"{_where(path)} is {a.value!r} in one recorded call and {b.value!r} in another"
                raise BuildRefusedError(text)
        elif a != b:
            raise BuildRefusedError(f"{_where(path)} is another tensor in some recorded calls")


def _same(a: Any, b: Any) -> bool:
    nans = isinstance(a, float) and isinstance(b, float) and a != a and b != b  # noqa: PLR0124  NaN equals itself here
    return type(a) is type(b) and (nans or bool(a == b))


def unpack_of(results: Results, example: Any) -> Unpack:
    """A function `(result tensors, inputs) -> result` with the container types of the recorded result.

    Args:
        results: the recorded result, taken apart.
        example: the recorded result itself: shows which containers can be made without a tree walk.
    """
    items = [_source(leaf, i) for i, leaf in enumerate(results.leaves)]
    scope: dict[str, Any] = {"__unflatten": trees.unflatten, "__spec": results.spec}
    scope |= {f"__bound{i}": leaf.value for i, leaf in enumerate(results.leaves) if isinstance(leaf, Bound)}
    text = _made(example, items, scope) or f"__unflatten(__spec, ({''.join(f'{item}, ' for item in items)}))"
    source = f"def unpack(tensors, inputs):\n    return {text}\n"
    exec(compile(source, "<tt_core.flat unpack>", "exec"), scope)  # noqa: S102  only our own names go into the source
    made: Unpack = scope["unpack"]
    return made


def _source(leaf: FromOutput | FromInput | Bound, i: int) -> str:
    if isinstance(leaf, Bound):
        return f"__bound{i}"
    return f"{'tensors' if isinstance(leaf, FromOutput) else 'inputs'}[{leaf.index}]"


def _made(example: Any, items: list[str], scope: dict[str, Any]) -> str | None:
    """Source that makes the result at native speed: one leaf, a tuple or list of leaves, a flat `ModelOutput`."""
    if not trees.flatten(example)[1].num_children and len(items) == 1:
        return items[0]
    if type(example) in {tuple, list} and len(example) == len(items) and all(map(_leaf, example)):
        body = "".join(f"{item}, " for item in items)
        return f"({body})" if type(example) is tuple else f"[{body}]"
    if _is_output(example) and len(example) == len(items):
        scope["__make"] = _output_maker(example)
        return f"__make(({''.join(f'{item}, ' for item in items)}))"
    return None


def _leaf(value: Any) -> bool:
    return value is None or isinstance(value, (torch.Tensor, bool, int, float, str))


def _is_output(value: Any) -> bool:
    """A dataclass that is also an ordered mapping of the fields that are not None: transformers' `ModelOutput`."""
    kind: Any = type(value)
    if not (issubclass(kind, OrderedDict) and dataclasses.is_dataclass(kind)):
        return False
    fields = vars(value)
    return (
        all(map(_leaf, value.values()))
        and set(fields) == {field.name for field in dataclasses.fields(kind)}
        and all(fields[name] is item for name, item in value.items())
        and all(item is None for name, item in fields.items() if name not in value)
    )


def _output_maker(example: Any) -> Callable[[tuple[Any, ...]], Any]:
    """Makes another of `example`'s class and keys, as its own `__init__` would, in a fifth of the time."""
    kind: Any = type(example)
    keys, blank = tuple(example), dict.fromkeys(vars(example))
    put = OrderedDict.__setitem__

    def make(items: tuple[Any, ...]) -> Any:
        made = kind.__new__(kind)
        OrderedDict.__init__(made)
        fields = made.__dict__
        fields.update(blank)
        for key, item in zip(keys, items, strict=True):
            put(made, key, item)
            fields[key] = item
        return made

    return make


def state_of(module: nn.Module) -> list[torch.Tensor]:
    """Parameters and buffers of a module."""
    return [*module.parameters(), *module.buffers()]
