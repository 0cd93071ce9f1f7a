"""Several keys on one unit: a generated function that says, in one dictionary look-up, which may serve a call."""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import attrs
import torch

from tt_core import callkey
from tt_core.guards.made import made
from tt_core.guards.walk import Names, parameters_text, plain_dataclass, prefix_for, roots, struct
from tt_core.values import CallKey, ConstLeaf, TensorLeaf, Unit, frozen

_PLAIN = frozenset({type(None), bool, int, float, str, bytes, torch.dtype, torch.device, torch.layout})
"""Constants whose own hash and equality tell them apart well enough for a look-up."""


@frozen
class Pick:
    """Which keys may fit a call.

    Attributes:
        of: takes a call in any spelling; a cheap hashable. May raise one of `UNREADABLE`.
        table: that hashable to the indices of the keys it may stand for.
        source: the text of `of`.
    """

    of: Callable[..., Hashable]
    table: Mapping[Hashable, tuple[int, ...]]
    source: str


def compile_pick(unit: Unit, keys: Sequence[CallKey]) -> Pick:
    """Compiles what tells `keys` apart and nothing more: a guard still decides.

    Args:
        unit: the unit.
        keys: the keys of its builts.

    Raises:
        ValueError: forward's signature cannot be written down, or an argument's name is no name.
    """
    signature = inspect.signature(unit.forward)
    names = Names(prefix=prefix_for(signature))
    search = _Search(names=names, keys=keys)
    search.ambient(unit)
    places = [_Place(spec=key.tree, leaves=key.leaves) for key in keys]
    search.below(places, roots(keys[0]))
    body = ", ".join(feature for feature, _ in search.features)
    source = f"def pick({parameters_text(signature, names)}):\n    return ({body}{',' * bool(body)})\n"
    table: dict[Hashable, tuple[int, ...]] = {}
    for index in range(len(keys)):
        value = tuple(values[index] for _, values in search.features)
        table[value] = (*table.get(value, ()), index)
    return Pick(of=made("pick", source, names.held), table=table, source=source)


@frozen
class _Place:
    """One node of one key's tree, with the leaves below it."""

    spec: Any
    leaves: tuple[TensorLeaf | ConstLeaf, ...]

    @property
    def kind(self) -> Any:
        return self.leaves[0].type if self.spec.is_leaf() else self.spec.type

    @property
    def children(self) -> list[_Place]:
        found, start = [], 0
        for child in self.spec.children():
            found.append(_Place(spec=child, leaves=self.leaves[start : start + child.num_leaves]))
            start += child.num_leaves
        return found


@attrs.define(kw_only=True, eq=False)
class _Search:
    """Collects features: an expression, and its value for each key."""

    names: Names
    keys: Sequence[CallKey]
    features: list[tuple[str, list[Any]]] = attrs.field(factory=list)

    def ambient(self, unit: Unit) -> None:
        states = [key.ambient for key in self.keys]
        module = self.names.hold("module", vars(unit.module))
        self._add(f'{module}["training"]', [state.training for state in states])
        if len({state.autocast for state in states}) > 1:
            read = self.names.hold("ambient", callkey.ambient)
            self._add(f"{read}(False).autocast", [state.autocast for state in states])

    def visit(self, places: Sequence[_Place], expr: str) -> None:
        kinds = [place.kind for place in places]
        if len(set(kinds)) > 1:
            self._add(f"{expr}.__class__", kinds)
        leaves = [place.leaves[0] if place.spec.is_leaf() else None for place in places]
        if all(isinstance(leaf, TensorLeaf) for leaf in leaves):
            self._add(f"{expr}.dtype", [leaf.dtype for leaf in leaves if isinstance(leaf, TensorLeaf)])
            self._add(f"{expr}.ndim", [leaf.rank for leaf in leaves if isinstance(leaf, TensorLeaf)])
        elif any(isinstance(leaf, ConstLeaf) for leaf in leaves):
            self._constant(leaves, expr)
        elif len(set(kinds)) == 1:
            self._node(places, expr)

    def below(self, places: Sequence[_Place], exprs: Sequence[str]) -> None:
        columns = zip(*[place.children for place in places], strict=True)
        for expr, column in zip(exprs, columns, strict=True):
            self.visit(column, expr)

    def _node(self, places: Sequence[_Place], expr: str) -> None:
        kind = places[0].kind
        entries = [tuple(place.spec.entries()) for place in places]
        if kind in (dict, OrderedDict):
            self._add(f"tuple({expr})", entries)
        elif kind in (list, tuple):
            self._add(f"len({expr})", [len(each) for each in entries])
        elif not (struct(kind) or plain_dataclass(kind)):
            return
        if len(set(entries)) == 1:
            dotted = plain_dataclass(kind)
            self.below(places, [f"{expr}.{e}" if dotted else f"{expr}[{self._key(e)}]" for e in entries[0]])

    def _key(self, entry: Any) -> str:
        return repr(entry) if type(entry) in (str, int) else self.names.hold("key", entry)

    def _constant(self, leaves: Sequence[TensorLeaf | ConstLeaf | None], expr: str) -> None:
        """A constant by itself where it can be hashed; all else (tensors, slices, NaN) shares None."""
        constants = [leaf if isinstance(leaf, ConstLeaf) else None for leaf in leaves]
        plain = _PLAIN - {float} if any(leaf is not None and leaf.value == "nan" for leaf in constants) else _PLAIN
        values = [_value(leaf) if leaf is not None and leaf.type in plain else None for leaf in constants]
        self._add(f"{expr} if {expr}.__class__ in {self.names.hold('plain', plain)} else None", values)

    def _add(self, expr: str, values: list[Any]) -> None:
        if len(set(values)) > 1:
            self.features.append((expr, values))


def _value(leaf: ConstLeaf) -> Any:
    return float.fromhex(leaf.value) if leaf.type is float else leaf.value
