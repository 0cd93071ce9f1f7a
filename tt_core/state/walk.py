"""What an object of the user's holds: the one place that knows how to look into foreign objects."""

from __future__ import annotations

import enum
import functools
import sys
import types
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

PLAIN: frozenset[type] = frozenset({
    type(None), bool, int, float, complex, str, bytes, type(...), slice, range, torch.dtype, torch.device, torch.layout,
    torch.Size, torch.memory_format, type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType,
})  # fmt: skip
"""Types of values that hold nothing which a run could change."""

_FOREIGN = frozenset(sys.stdlib_module_names - {"collections", "types", "argparse"}) | {
    "numpy",
    "tokenizers",
    "tt_core",
}
_TORCH = ("torch.nn", "torch.distributions")
"""Packages of torch whose objects hold user state; the others (fx, dynamo, utils) hold machinery."""


def plain(value: Any) -> bool:
    """Whether `value` holds nothing that can change."""
    return type(value) in PLAIN or isinstance(value, enum.Enum | type)


def step_of(key: Any) -> str:
    """A mapping key as a step of a path: `['mask']`; other keys than constants by their type."""
    return f"[{key!r}]" if type(key) in PLAIN or isinstance(key, tuple | enum.Enum) else f"[<{type(key).__name__}>]"


def join(path: str, step: str) -> str:
    """`path` one step further; the first step loses its dot."""
    return path + step if path else step.removeprefix(".")


def parts(value: Any) -> Iterator[tuple[str, Any]]:
    """What `value` holds, as (step, part): items, elements and attributes. Modules and tensors hold nothing here."""
    if isinstance(value, torch.Tensor | nn.Module):
        return
    if isinstance(value, dict):
        yield from ((step_of(key), part) for key, part in dict.items(value))
    elif isinstance(value, list | tuple | deque):
        if not set(map(type, value)) <= PLAIN:
            yield from ((f".{index}", part) for index, part in enumerate(value))
    elif isinstance(value, types.MethodType):
        yield ".__self__", value.__self__
    elif isinstance(value, functools.partial):
        yield from ((".func", value.func), (".args", value.args), (".keywords", value.keywords))
    if has_attributes(value):
        yield from ((f".{name}", part) for name, part in list(vars(value).items()))
    yield from slots_of(value)


def has_attributes(value: Any) -> bool:
    """Whether the attributes of `value` belong to the user's state."""
    return not _machinery(type(value)) and isinstance(getattr(value, "__dict__", None), dict)


def slots_of(value: Any) -> list[tuple[str, Any]]:
    """The filled `__slots__` of `value` as (step, part)."""
    names = () if plain(value) or _machinery(type(value)) else _slot_names(type(value))
    return [(f".{name}", getattr(value, name)) for name in names if hasattr(value, name)]


def _machinery(kind: type) -> bool:
    """Whether objects of `kind` are left alone: the interpreter's, loggers, locks, torch's own machinery."""
    if issubclass(kind, dict | list | tuple | deque) and kind.__module__ in {"builtins", "collections"}:
        return True  # their items are looked at, attributes they have none
    module = str(kind.__module__)
    root = module.partition(".")[0]
    return root in _FOREIGN or (root == "torch" and not module.startswith(_TORCH))


def _slot_names(kind: type) -> tuple[str, ...]:
    names: list[str] = []
    for base in kind.__mro__:
        slots = base.__dict__.get("__slots__", ()) if base.__module__ not in sys.stdlib_module_names else ()
        for name in (slots,) if isinstance(slots, str) else tuple(slots):
            private = name.startswith("__") and not name.endswith("__")
            names.append(f"_{base.__name__.lstrip('_')}{name}" if private else name)
    return tuple(name for name in names if name not in {"__dict__", "__weakref__"})
