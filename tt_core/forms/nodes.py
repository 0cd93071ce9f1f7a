"""The containers of a call key as JSON, with the leaves in their places.

A dict is written as pairs, so that its order survives a reader that sorts. Classes are resolved by name among imported
modules, and only those that `tt_core.trees` takes apart; their constructors are not run.
"""

from __future__ import annotations

import dataclasses
import math
from collections import OrderedDict, UserDict, deque
from collections.abc import Callable, Iterator
from typing import Any

import optree
import torch
from torch.utils import _pytree as torch_pytree

from tt_core import trees
from tt_core.errors import StoreError
from tt_core.forms.reading import (
    DEEPEST,
    MOST,
    Json,
    as_fields,
    as_int,
    as_list,
    as_pair,
    as_text,
    class_form,
    read_class,
    shown,
)

_KEY = 256
"""Characters of a key of a dict, or of a parameter's name."""
_DEEP = 4
"""Levels of what a registered node keeps beside its children."""
_REFUSALS = (TypeError, ValueError, KeyError, AttributeError, IndexError, RuntimeError)
"""What taking a foreign node apart, or putting it together, may raise."""
_PLAIN = ("Size", "tuple", "list", "dict", "OrderedDict", "deque", "namedtuple", "node", "dataclass", "mapping")


class Place:
    """Stands in a tree where a leaf goes."""


def tree_form(  # noqa: PLR0911  one return a kind
    spec: optree.PyTreeSpec, leaves: Iterator[Json], depth: int = 0
) -> Json:
    """A tree as JSON.

    Args:
        spec: the tree.
        leaves: forms of its leaves, in order.
        depth: of `spec` in the whole.

    Raises:
        StoreError: it holds a node that has no form.
    """
    if spec.is_leaf():
        return next(leaves)
    if depth >= DEEPEST:
        raise StoreError(f"arguments nested more than {DEEPEST} deep have no form")
    items = [tree_form(child, leaves, depth + 1) for child in spec.children()]
    kind: Any = spec.type
    if kind in (tuple, list):
        return {kind.__name__: items}
    if kind in (dict, OrderedDict):
        return {kind.__name__: _pairs(spec.entries(), items)}
    if kind is torch.Size:
        return {"Size": items}
    if kind is deque:
        return {"deque": items, "maxlen": _node(spec).maxlen}
    if optree.is_namedtuple_class(kind) or optree.is_structseq_class(kind):
        return {"namedtuple": class_form(kind), "items": items}
    return _custom_form(spec, kind, items)


def _pairs(names: list[Any], items: list[Json]) -> list[Json]:
    return [[_name_form(name), item] for name, item in zip(names, items, strict=True)]


def _custom_form(spec: optree.PyTreeSpec, kind: Any, items: list[Json]) -> Json:
    """In the order in which `trees` decides how a class is taken apart."""
    if kind in torch_pytree.SUPPORTED_NODES and spec.kind == optree.PyTreeKind.CUSTOM:
        try:
            _, context = torch_pytree.SUPPORTED_NODES[kind].flatten_fn(_node(spec))
        except _REFUSALS as error:
            raise StoreError(f"an argument of class {kind.__qualname__!r} has no form: {error}") from error
        return {"node": class_form(kind), "context": _context_form(context, 0), "items": items}
    if spec.kind != optree.PyTreeKind.CUSTOM:
        raise StoreError(f"a {kind.__name__} among the arguments has no form")
    word = "dataclass" if dataclasses.is_dataclass(kind) else "mapping"
    return {word: class_form(kind), "items": _pairs(spec.entries(), items)}


def _node(spec: optree.PyTreeSpec) -> Any:
    """The container of one level, with places for its children."""
    level: Any = spec.one_level()  # never None: a leaf has no form of its own
    try:
        return trees.unflatten(level, [Place() for _ in range(spec.num_children)])
    except _REFUSALS as error:
        raise StoreError(f"an argument of class {level.type.__qualname__!r} has no form: {error}") from error


def _name_form(name: Any) -> Json:
    """A key of a dict."""
    if name is None or type(name) is bool or (type(name) is int and abs(name) < 2**53):
        return name
    if type(name) is float:
        return {"float": name.hex()}
    if type(name) is str and len(name) <= _KEY and not any("\ud800" <= letter <= "\udfff" for letter in name):
        return name
    raise StoreError(f"a dict with the key {shown(name)} has no form")


def _read_name(form: Json, where: str) -> Any:
    if form is None or type(form) is bool:
        return form
    if type(form) is int:
        return as_int(form, where, -(2**53), 2**53)
    if not isinstance(form, dict):
        return as_text(form, where, _KEY)
    text = as_text(as_fields(form, where, ("float",))["float"], where, _KEY)
    try:
        value = float.fromhex(text)
    except (ValueError, OverflowError):
        value = None
    if value is None or value.hex() != text:
        raise StoreError(f"{where} is {shown(text)}, which is no floating point number in hexadecimal")
    return value


def read_tree(form: Json, read_leaf: Callable[[Json, str], Any]) -> tuple[optree.PyTreeSpec, list[Any]]:
    """The tree of a form, and its leaves in order.

    Args:
        form: what `tree_form` made.
        read_leaf: reads a leaf, called with its form and a name of its place.
    """
    places: list[Any] = []
    leaves: list[Any] = []

    def leaf(form: Json, where: str, place: Any = None) -> Any:
        if len(places) >= MOST:
            raise StoreError(f"a key of more than {MOST} leaves is not read")
        leaves.append(read_leaf(form, where))
        places.append(Place() if place is None else place)
        return places[-1]

    made = _read(form, "the arguments", leaf, 0)
    try:
        found, spec = trees.flatten(made)
    except _REFUSALS as error:
        raise StoreError(f"the arguments are no tree: {error}") from error
    if len(found) != len(places) or any(a != b for a, b in zip(found, places, strict=True)):
        raise StoreError("the arguments do not come apart as they were put together")
    return spec, leaves


Leaf = Callable[..., Any]
"""Takes the form of a leaf and the name of its place, and gives what stands there."""


def _read(form: Json, where: str, leaf: Leaf, depth: int) -> Any:
    word = next((word for word in _PLAIN if word in form), None) if isinstance(form, dict) else None
    if word is None:
        return leaf(form, where)
    if depth >= DEEPEST:
        raise StoreError(f"arguments nested more than {DEEPEST} deep are not read")
    if word == "Size":
        sizes = as_list(as_fields(form, where, (word,))[word], where)
        return torch.Size([leaf(size, where, as_int(size, where)) for size in sizes])  # holds numbers, no places
    if word in {"tuple", "list", "deque"}:
        return _read_sequence(form, word, where, leaf, depth)
    if word in {"dict", "OrderedDict"}:
        pairs = _read_pairs(as_fields(form, where, (word,))[word], where, leaf, depth)
        return dict(pairs) if word == "dict" else OrderedDict(pairs)
    fields = as_fields(form, where, (word, "items", *(("context",) if word == "node" else ())))
    kind = read_class(fields[word], f"the class of {where}")
    if word in {"namedtuple", "node"}:
        items = _read_items(fields["items"], where, leaf, depth)
        return _named(kind, items, where) if word == "namedtuple" else _joined(kind, fields["context"], items, where)
    pairs = _read_pairs(fields["items"], where, leaf, depth)
    return _dataclass(kind, pairs, where) if word == "dataclass" else _mapping(kind, pairs, where)


def _read_items(form: Json, where: str, leaf: Leaf, depth: int) -> list[Any]:
    return [_read(item, f"{where}[{index}]", leaf, depth + 1) for index, item in enumerate(as_list(form, where))]


def _read_pairs(form: Json, where: str, leaf: Leaf, depth: int) -> list[tuple[Any, Any]]:
    pairs = []
    for item in as_list(form, where):
        name, value = as_pair(item, f"an entry of {where}")
        name = _read_name(name, f"a key of {where}")
        pairs.append((name, _read(value, f"{where}[{shown(name)}]", leaf, depth + 1)))
    if len(dict(pairs)) != len(pairs):
        raise StoreError(f"{where} has one key twice")
    return pairs


def _read_sequence(form: Json, word: str, where: str, leaf: Leaf, depth: int) -> Any:
    fields = as_fields(form, where, (word, *(("maxlen",) if word == "deque" else ())))
    items = _read_items(fields[word], where, leaf, depth)
    if word == "list":
        return items
    if word == "tuple":
        return tuple(items)
    most = fields["maxlen"]
    return deque(items, maxlen=None if most is None else as_int(most, f"the maxlen of {where}", len(items), 2**31))


def _named(kind: Any, items: list[Any], where: str) -> Any:
    if optree.is_namedtuple_class(kind) and len(kind._fields) == len(items):
        return tuple.__new__(kind, items)  # not the class's own __new__, which may do anything
    if optree.is_structseq_class(kind) and kind.n_sequence_fields == len(items):
        return kind(items)
    raise StoreError(f"{where}: {kind.__qualname__} is no named tuple of {len(items)}")


def _joined(kind: Any, context: Json, items: list[Any], where: str) -> Any:
    known = torch_pytree.SUPPORTED_NODES.get(kind)
    if known is None:
        raise StoreError(f"{where}: {kind.__qualname__} is not registered with torch's pytree")
    try:
        made = known.unflatten_fn(items, _read_context(context, where, 0))
    except _REFUSALS as error:
        raise StoreError(f"{where}: {kind.__qualname__} cannot be put together: {error}") from error
    if type(made) is not kind:
        raise StoreError(f"{where}: {kind.__qualname__} was put together as a {type(made).__qualname__}")
    return made


def _dataclass(kind: Any, pairs: list[tuple[Any, Any]], where: str) -> Any:
    known: Any = getattr(kind, "__dataclass_fields__", None)
    if not isinstance(known, dict) or issubclass(kind, dict) or not {name for name, _ in pairs} <= set(known):
        raise StoreError(f"{where}: {kind.__qualname__} is no dataclass with these fields")
    try:
        made: Any = object.__new__(kind)
        for name, value in pairs:
            object.__setattr__(made, name, value)
    except _REFUSALS as error:
        raise StoreError(f"{where}: {kind.__qualname__} cannot be put together: {error}") from error
    return made


def _mapping(kind: Any, pairs: list[tuple[Any, Any]], where: str) -> Any:
    if kind in {dict, OrderedDict, UserDict} or not issubclass(kind, dict | UserDict):
        raise StoreError(f"{where}: {kind.__qualname__} is no class of mappings")
    base: Any = next(one for one in (OrderedDict, dict, object) if issubclass(kind, one))
    try:
        made: Any = base.__new__(kind)
        if issubclass(kind, UserDict):
            made.data = dict(pairs)
        for name, value in pairs if base is not object else ():
            base.__setitem__(made, name, value)
    except _REFUSALS as error:
        raise StoreError(f"{where}: {kind.__qualname__} cannot be put together: {error}") from error
    return made


def _context_form(value: Any, depth: int) -> Json:
    """What a registered node keeps beside its children: plain constants, lists, tuples, dicts."""
    if depth > _DEEP:
        raise StoreError("a registered class keeps too deep a structure beside its tensors to have a form")
    if isinstance(value, float) and not math.isfinite(value):
        raise StoreError(f"a registered class keeps {value} beside its tensors, which has no form")
    if value is None or type(value) in {bool, int, float} or (type(value) is str and len(value) <= _KEY):
        return value
    if type(value) in {list, tuple}:
        return {type(value).__name__: [_context_form(one, depth + 1) for one in value]}
    if type(value) is dict:
        return {"dict": [[_context_form(k, depth + 1), _context_form(v, depth + 1)] for k, v in value.items()]}
    raise StoreError(f"a registered class keeps a {type(value).__name__} beside its tensors, which has no form")


def _read_context(form: Json, where: str, depth: int) -> Any:
    if depth > _DEEP:
        raise StoreError(f"the context of {where} is nested too deep")
    if form is None or type(form) in {bool, int, float}:
        return form
    if not isinstance(form, dict):
        return as_text(form, f"the context of {where}", _KEY)
    if set(form) not in ({"list"}, {"tuple"}, {"dict"}):
        raise StoreError(f"the context of {where} is of no known kind")
    ((word, items),) = form.items()
    listed = as_list(items, f"the context of {where}")
    if word != "dict":
        values = [_read_context(one, where, depth + 1) for one in listed]
        return tuple(values) if word == "tuple" else values
    pairs = [as_pair(one, f"the context of {where}") for one in listed]
    names = [_read_name(name, f"the context of {where}") for name, _ in pairs]
    return {name: _read_context(value, where, depth + 1) for name, (_, value) in zip(names, pairs, strict=True)}
