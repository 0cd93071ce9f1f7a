"""A unit's arguments as a flat tuple of tensors, and back."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tt_core import trees
from tt_core.callkey import canonical
from tt_core.values import Call, frozen

Pack = Callable[..., tuple[torch.Tensor, ...]]

_STRAIGHT = (dict, tuple, list)
"""Containers whose items are read by a subscript; others are taken apart by `trees`."""


@frozen
class Arguments:
    """The canonical arguments of one call key.

    Attributes:
        signature: of the unit's forward, without self.
        given: names that the recorded call spelled out: only these are handed to forward.
        leaves: all leaves of the recorded canonical arguments; those at `places` are replaced.
        spec: the structure of the canonical arguments.
        places: positions of the tensors among the leaves.
        names: a printable name of each tensor: `x`, `state[0]`, `features['mask']`.
    """

    signature: inspect.Signature
    given: frozenset[str]
    leaves: tuple[Any, ...]
    spec: Any
    places: tuple[int, ...]
    names: tuple[str, ...]

    @property
    def constants(self) -> tuple[Any, ...]:
        """The leaves that are no tensors, in key order."""
        places = set(self.places)
        return tuple(leaf for i, leaf in enumerate(self.leaves) if i not in places)

    def rebuilt(self, tensors: Sequence[torch.Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and keyword arguments for forward, with `tensors` in key order and the constants bound."""
        leaves = list(self.leaves)
        for place, tensor in zip(self.places, tensors, strict=True):
            leaves[place] = tensor
        values = trees.unflatten(self.spec, leaves)
        bound = inspect.BoundArguments(self.signature, {k: v for k, v in values.items() if k in self.given})
        return bound.args, bound.kwargs

    def tensors(self, call: Call) -> tuple[torch.Tensor, ...]:
        """The tensors of another call of the same key, in key order."""
        leaves, _ = trees.flatten(canonical(self.signature, call))
        return tuple(leaves[place] for place in self.places)


def arguments_of(forward: Callable[..., Any], call: Call) -> Arguments:
    """The arguments of `call`, a recorded call of `forward`; all calls of its key share them."""
    signature = inspect.signature(forward)
    values = canonical(signature, call)
    leaves, spec = trees.flatten(values)
    paths = _paths(values)
    places = tuple(i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor))
    return Arguments(
        signature=signature,
        given=frozenset(signature.bind(*call.args, **call.kwargs).arguments),
        leaves=tuple(None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves),
        spec=spec,
        places=places,
        names=tuple(paths[place] for place in places),
    )


def _paths(values: dict[str, Any]) -> list[str]:
    found = []
    for name, value in values.items():
        found += [name + path for path in trees.names(trees.flatten(value)[1])]
    return found


def pack_of(arguments: Arguments, call: Call) -> Pack:
    """A function with the unit's own signature that returns the tensors of a call in key order.

    Python itself binds the arguments, so that every spelling of a call works at the speed of a plain function.
    """
    scope: dict[str, Any] = {"__flatten": trees.flatten}
    heads = _heads(arguments.signature, scope)
    items = _items(canonical(arguments.signature, call))
    body = "".join(f"{item}, " for item in items)
    source = f"def pack({heads}):\n    return ({body})\n"
    exec(compile(source, "<tt_core.flat pack>", "exec"), scope)  # noqa: S102  names come from a signature, paths from repr
    made: Pack = scope["pack"]
    return made


def _heads(signature: inspect.Signature, scope: dict[str, Any]) -> str:
    """The parameter list as source; defaults are bound through `scope`."""
    heads: list[str] = []
    kinds = [p.kind for p in signature.parameters.values()]
    slash = kinds.count(inspect.Parameter.POSITIONAL_ONLY)
    star = inspect.Parameter.VAR_POSITIONAL in kinds
    for i, p in enumerate(signature.parameters.values()):
        if p.kind is inspect.Parameter.KEYWORD_ONLY and not star:
            heads.append("*")
            star = True
        prefix = "*" if p.kind is p.VAR_POSITIONAL else "**" if p.kind is p.VAR_KEYWORD else ""
        default = ""
        if p.default is not inspect.Parameter.empty:
            scope[f"__default{i}"] = p.default
            default = f"=__default{i}"
        heads.append(prefix + p.name + default)
        if slash and i == slash - 1:
            heads.append("/")
    return ", ".join(heads)


def _items(values: dict[str, Any]) -> list[str]:
    """An expression for each tensor of the arguments."""
    return list(itertools.chain.from_iterable(_expressions(name, value) for name, value in values.items()))


def _expressions(path: str, value: Any) -> list[str]:
    if isinstance(value, torch.Tensor):
        return [path]
    if type(value) in _STRAIGHT and all(_readable(key) for key in (value if isinstance(value, dict) else ())):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        return list(itertools.chain.from_iterable(_expressions(f"{path}[{key!r}]", item) for key, item in pairs))
    leaves, _ = trees.flatten(value)
    return [f"__flatten({path})[0][{i}]" for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]


def _readable(key: Any) -> bool:
    """Whether `repr(key)` is source for an equal key."""
    return type(key) in {str, int, bool, bytes}
