"""Nested containers of tensors (pytrees): flattened, rebuilt, named, and copied with their sharing kept.

One private optree namespace, where dicts keep their insertion order (a model may iterate over one) and where
dataclasses, mapping subclasses and the nodes known to torch's own pytree are registered when they are met.
"""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections import OrderedDict, UserDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any

import optree
import torch
from torch.utils import _pytree as torch_pytree

from tt_core import quiet

NAMESPACE = "tt_core"
_order = optree.dict_insertion_ordered(True, namespace=NAMESPACE)
_order.__enter__()  # for our own namespace, for good

_PASSED_ON = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    Enum,
    type,
    torch.dtype,
    torch.device,
    torch.layout,
    slice,
    range,
)
_REFUSALS = (TypeError, ValueError, AttributeError, RuntimeError, copy.Error, pickle.PickleError)
"""What objects raise that cannot be copied."""
_BUILTIN = (dict, OrderedDict, defaultdict, deque, tuple, list)
_known: set[type] = set(_BUILTIN)


def flatten(tree: Any) -> tuple[list[Any], optree.PyTreeSpec]:
    """The leaves of `tree` in order and its structure; None is a leaf."""
    leaves, spec = optree.tree_flatten(tree, none_is_leaf=True, namespace=NAMESPACE)
    if any(_learn(type(leaf), leaf) for leaf in leaves):
        return flatten(tree)
    return leaves, spec


def unflatten(spec: optree.PyTreeSpec, leaves: Iterable[Any]) -> Any:
    """The tree of `spec` with other leaves; containers are new objects of the same types."""
    return optree.tree_unflatten(spec, leaves)


def names(spec: optree.PyTreeSpec) -> list[str]:
    """A printable path of each leaf: `[0]['mask']`, `.logits`; empty for a tree that is one leaf."""
    return [accessor.codify("") for accessor in spec.accessors()]


def tensors(tree: Any) -> list[torch.Tensor]:
    """The tensor leaves of `tree`, in order."""
    return [leaf for leaf in flatten(tree)[0] if isinstance(leaf, torch.Tensor)]


def mapped(fn: Callable[[torch.Tensor], Any], tree: Any) -> Any:
    """`tree` with `fn` applied to its tensors; other leaves are passed on."""
    leaves, spec = flatten(tree)
    return unflatten(spec, [fn(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves])


def replica(tree: Any, memo: dict[Any, Any] | None = None) -> Any:
    """A deep copy of `tree`: tensors that share memory share it in the copy too.

    Leaves that can change (arrays, generators of random numbers, objects such as a key-value cache) are copied with
    `copy.deepcopy`, the tensors inside them like all others; modules, callables, constants, and what refuses to be
    copied (locks, iterators) are passed on as they are.

    Args:
        tree: any pytree of tensors on any device. Sizes, strides, offsets, `requires_grad` are kept; no history.
        memo: shared between calls whose trees share tensors.
    """
    memo = {} if memo is None else memo
    leaves, spec = flatten(tree)
    with torch.inference_mode(False), torch.no_grad():
        return unflatten(spec, [_copied_leaf(leaf, memo) for leaf in leaves])


def _copied_leaf(leaf: Any, memo: dict[Any, Any]) -> Any:
    if isinstance(leaf, torch.Tensor):
        return _copied(leaf, memo)
    if isinstance(leaf, _PASSED_ON) or callable(leaf):
        return leaf
    copies = memo.setdefault("objects", {})
    memo.setdefault("originals", []).append(leaf)  # an id in `copies` is only unique while its object lives
    try:
        _fill(leaf, copies, memo)
        return copy.deepcopy(leaf, copies)
    except _REFUSALS:
        return leaf


def _fill(obj: Any, copies: dict[Any, Any], memo: dict[Any, Any]) -> None:
    """Notes for `deepcopy` what it must not copy its own way: tensors inside `obj` keep their sharing, modules stay."""
    todo, seen = [obj], {id(obj)}
    while todo:
        value = todo.pop()
        if isinstance(value, torch.Tensor):
            copies[id(value)] = _copied(value, memo)
        elif isinstance(value, torch.nn.Module):
            copies[id(value)] = value
        elif isinstance(value, torch.Generator):
            copies.setdefault(id(value), value.clone_state())
        elif not isinstance(value, _PASSED_ON):
            inner = [part for part in _inside(value) if id(part) not in seen]
            seen.update(map(id, inner))
            todo.extend(inner)


def _inside(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, list | tuple | set | frozenset | deque):
        return list(value)
    slots = (name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ()) if hasattr(value, name))
    return [*getattr(value, "__dict__", {}).values(), *(getattr(value, name) for name in slots)]


def _copied(tensor: torch.Tensor, memo: dict[Any, Any]) -> torch.Tensor:
    if id(tensor) not in memo:
        memo[id(tensor)] = (_copy_of(tensor, memo), tensor)  # holds the original: an id is only unique while it lives
    made: torch.Tensor = memo[id(tensor)][0]
    return made


def _copy_of(tensor: torch.Tensor, memo: dict[Any, Any]) -> torch.Tensor:
    if tensor.layout != torch.strided or type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.is_quantized:
        return tensor.detach().clone()
    source = tensor.detach()
    storage = source.untyped_storage()
    place = (storage.data_ptr(), storage.nbytes(), str(source.device))
    if storage.nbytes() == 0 or storage.nbytes() > 2 * source.numel() * source.element_size():
        made = quiet.dense_copy(source)  # a small view of a large storage: its sharing is not worth the memory
    else:
        if place not in memo:
            memo[place] = quiet.storage_copy(storage)
        made = torch.empty(0, dtype=source.dtype, device=source.device)
        made = made.set_(memo[place], source.storage_offset(), source.size(), source.stride())
        made = made.conj() if source.is_conj() else made
        made = torch._neg_view(made) if source.is_neg() else made
    return made.requires_grad_(True) if tensor.requires_grad and not tensor.is_inference() else made


def _learn(kind: type, leaf: Any) -> bool:
    """Registers the container class of `leaf` in our namespace; whether that was needed."""
    if kind in _known:
        return False
    _known.add(kind)
    functions = _functions(kind, leaf)
    if functions is None:
        return False
    optree.register_pytree_node(kind, *functions, namespace=NAMESPACE)
    return True


def _functions(kind: type, leaf: Any) -> tuple[Callable[..., Any], Callable[..., Any]] | None:
    """How to take a container class apart and put it together, or None for what is no container."""
    known = torch_pytree.SUPPORTED_NODES.get(kind)
    if known is not None:
        return _torch_functions(known)
    if dataclasses.is_dataclass(kind) and not isinstance(leaf, Mapping):
        return _dataclass_functions(kind)
    if isinstance(leaf, (dict, UserDict)):
        return _mapping_functions(kind)
    return None


def _torch_functions(known: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    def split(node: Any) -> tuple[Any, Any]:
        children, context = known.flatten_fn(node)
        return tuple(children), _Context(context)

    return split, lambda context, children: known.unflatten_fn(list(children), context.value)


class _Context:
    """A torch pytree context made hashable: optree compares it by equality."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Context) and bool(self.value == other.value)

    def __hash__(self) -> int:
        return hash(repr(self.value))


def _dataclass_functions(kind: type) -> tuple[Callable[..., Any], Callable[..., Any]]:
    fields = tuple(field.name for field in dataclasses.fields(kind))

    def split(node: Any) -> tuple[Any, Any, Any]:
        present = tuple(name for name in fields if hasattr(node, name))
        return tuple(getattr(node, name) for name in present), present, present

    def join(present: Any, children: Any) -> Any:
        made: Any = object.__new__(kind)  # no __init__, no __post_init__: the fields are all there is
        for name, child in zip(present, children, strict=True):
            object.__setattr__(made, name, child)
        return made

    return split, join


def _mapping_functions(kind: type) -> tuple[Callable[..., Any], Callable[..., Any]]:
    def split(node: Any) -> tuple[Any, Any, Any]:
        keys = tuple(node.keys())
        return tuple(_item(node, key) for key in keys), keys, keys

    def join(keys: Any, children: Any) -> Any:
        made: Any = kind.__new__(kind)  # type: ignore[call-overload]  # a mapping class, whose __new__ takes nothing
        if isinstance(made, OrderedDict | dict):
            dict.__init__(made)
        else:
            made.data = {}
        for key, child in zip(keys, children, strict=True):
            made[key] = child
        return made

    return split, join


def _item(node: Any, key: Any) -> Any:
    """`node[key]`, past a subclass that gives item access another meaning."""
    return dict.__getitem__(node, key) if isinstance(node, dict) else node[key]
