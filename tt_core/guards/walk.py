"""From a call key to Python expressions: where each leaf of a call is found, and what its containers must be."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any

import attrs
from torch.utils import _pytree as torch_pytree

from tt_core import trees
from tt_core.values import CallKey, ConstLeaf, TensorLeaf, frozen

PREFIX = "tt_"
"""Every name of ours in generated code; parameters of that name are renamed around by `Names`."""
_LITERAL = (str, int)
_STARS: dict[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}


@frozen
class Slot:
    """One leaf of a call: the expression that reads it, and its identity."""

    expr: str
    leaf: TensorLeaf | ConstLeaf


@attrs.define(kw_only=True, eq=False)
class Names:
    """The objects that generated code refers to, by name."""

    prefix: str = PREFIX
    held: dict[str, Any] = attrs.field(factory=dict)

    def hold(self, stem: str, value: Any) -> str:
        """A name for `value` that no parameter has."""
        name = self.prefix + re.sub(r"\W", "_", stem)
        if name in self.held and self.held[name] is not value:
            name = f"{name}_{len(self.held)}"
        self.held[name] = value
        return name


@frozen
class Walked:
    """A key as code: conditions on the containers, and the leaves in key order."""

    conditions: tuple[str, ...]
    slots: tuple[Slot, ...]

    @property
    def tensors(self) -> tuple[Slot, ...]:
        """The slots of tensors."""
        return tuple(slot for slot in self.slots if isinstance(slot.leaf, TensorLeaf))


def prefix_for(signature: inspect.Signature) -> str:
    """A prefix that no parameter starts with."""
    prefix = PREFIX
    while any(name.startswith(prefix) for name in signature.parameters):
        prefix = f"_{prefix}"
    return prefix


def walk(key: CallKey, names: Names) -> Walked:
    """The key's tree as expressions over its parameters.

    Args:
        key: the key; the root of its tree is the dict of canonical arguments.
        names: receives classes and key lists that the conditions refer to.

    Raises:
        ValueError: an argument's name is no name.
    """
    walker = _Walker(names=names, leaves=iter(key.leaves))
    for name, spec in zip(roots(key), key.tree.children(), strict=True):
        walker.visit(spec, name)
    return Walked(conditions=tuple(walker.conditions), slots=tuple(walker.slots))


def roots(key: CallKey) -> list[str]:
    """The names of a key's arguments, which stand in generated code as they are: a key may come out of a file.

    Raises:
        ValueError: one is no name.
    """
    names = [str(name) for name in key.tree.entries()]
    odd = next((name for name in names if not name.isidentifier()), None)
    if odd is not None:
        message = f"an argument cannot be named {odd[:40]!r}"
        raise ValueError(message)
    return names


def plain_dataclass(kind: Any) -> bool:
    """Whether `trees` takes this class apart by its dataclass fields."""
    return (
        isinstance(kind, type)
        and dataclasses.is_dataclass(kind)
        and not issubclass(kind, Mapping)
        and kind not in torch_pytree.SUPPORTED_NODES
    )


@attrs.define(kw_only=True, eq=False)
class _Walker:
    names: Names
    leaves: Iterator[TensorLeaf | ConstLeaf]
    conditions: list[str] = attrs.field(factory=list)
    slots: list[Slot] = attrs.field(factory=list)

    def visit(self, spec: Any, expr: str) -> None:
        if spec.is_leaf():
            self.slots.append(Slot(expr=expr, leaf=next(self.leaves)))
        elif spec.type in (dict, OrderedDict):
            self._dict(spec, expr)
        elif spec.type in (list, tuple) or struct(spec.type):
            self._sequence(spec, expr)
        elif plain_dataclass(spec.type) and spec.entries() == [f.name for f in dataclasses.fields(spec.type)]:
            self._dataclass(spec, expr)
        else:
            self._other(spec, expr)

    def _class(self, spec: Any, expr: str) -> str:
        name = (
            spec.type.__name__ if spec.type in (dict, list, tuple) else self.names.hold(spec.type.__name__, spec.type)
        )
        return f"{expr}.__class__ is {name}"

    def _dict(self, spec: Any, expr: str) -> None:
        """The exact class and the same keys in the same order: a model may iterate over them."""
        keys = self.names.hold("keys", spec.entries())
        self.conditions.append(f"{self._class(spec, expr)} and [*{expr}] == {keys}")
        for key, child in zip(spec.entries(), spec.children(), strict=True):
            literal = repr(key) if type(key) in _LITERAL else self.names.hold("key", key)
            self.visit(child, f"{expr}[{literal}]")

    def _sequence(self, spec: Any, expr: str) -> None:
        length = "" if struct(spec.type) else f" and len({expr}) == {spec.num_children}"
        self.conditions.append(f"{self._class(spec, expr)}{length}")
        for index, child in enumerate(spec.children()):
            self.visit(child, f"{expr}[{index}]")

    def _dataclass(self, spec: Any, expr: str) -> None:
        self.conditions.append(self._class(spec, expr))
        for name, child in zip(spec.entries(), spec.children(), strict=True):
            self.visit(child, f"{expr}.{name}")

    def _other(self, spec: Any, expr: str) -> None:
        """A container that only `trees` can take apart: `ModelOutput`, a registered node, a deque."""
        flat = self.names.hold(f"flat{len(self.conditions)}", None)
        flatten, tree = self.names.hold("flatten", trees.flatten), self.names.hold("tree", spec)
        self.conditions.append(f"{self._class(spec, expr)} and ({flat} := {flatten}({expr}))[1] == {tree}")
        for index in range(spec.num_leaves):
            self.slots.append(Slot(expr=f"{flat}[0][{index}]", leaf=next(self.leaves)))


def struct(kind: Any) -> bool:
    """Whether it is a namedtuple or a struct sequence such as `torch.return_types.max`: its class fixes its length."""
    return issubclass(kind, tuple) and (hasattr(kind, "_fields") or hasattr(kind, "n_sequence_fields"))


def parameters_text(signature: inspect.Signature, names: Names) -> str:
    """The parameter list of a generated function: the unit's own, defaults by reference.

    Raises:
        ValueError: a parameter whose name is no identifier.
    """
    parts: list[str] = []
    kinds = [parameter.kind for parameter in signature.parameters.values()]
    for index, (name, parameter) in enumerate(signature.parameters.items()):
        if not name.isidentifier():
            raise ValueError(f"parameter {name!r} is no identifier")
        if parameter.kind is parameter.KEYWORD_ONLY and not (
            {parameter.VAR_POSITIONAL, parameter.KEYWORD_ONLY} & {*kinds[:index]}
        ):
            parts.append("*")
        stars = _STARS.get(parameter.kind, "")
        default = "" if parameter.default is parameter.empty else f"={names.hold(f'default_{name}', parameter.default)}"
        parts.append(f"{stars}{name}{default}")
        last = index + 1 == len(kinds) or kinds[index + 1] is not parameter.POSITIONAL_ONLY
        if parameter.kind is parameter.POSITIONAL_ONLY and last:
            parts.append("/")
    return ", ".join(parts)
