"""Dynamo's guards, without those that ask what the dispatcher's own guard has asked just before.

A built that claims STORAGE or VALUES runs behind a guard that has looked at all the modules of its unit. Dynamo would look
at them again, and more slowly: at 1,600 things for a BERT of six layers.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

FORWARD = "_tt_forward"
"""The global of an entry that is the unit's forward: what Dynamo reads of the unit, it reads through it."""
_OURS = f"G['{FORWARD}']"
_TORCHS = ("G['__builtins_dict__", "G['__import_torch']", "G['__import_torch_dot_")
"""How the names of what belongs to Python and to torch begin: nobody replaces that while a model serves."""
_CONSTANTS = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.layout, torch.Size)
_BY_IDENTITY = frozenset({"TYPE_MATCH", "ID_MATCH", "CLOSURE_MATCH", "FUNCTION_MATCH", "BUILTIN_MATCH", "CLASS_MATCH"})
"""Kinds of guards that hold for as long as a name stands for the same object."""

Values = Mapping[str, Any]
Filter = Callable[[Sequence[Any]], list[bool]]


def filter_for(module: nn.Module) -> Filter | None:
    """Which of Dynamo's guards to keep: those on the call, on torch's global state, and on what else the unit reads.

    That is the globals of whoever wrote it, its classes, and what lies inside of its attributes (a configuration); where
    several modules hold one object, it is looked at once.

    Args:
        module: the unit's; not held.

    Returns:
        For `torch.compile(options={"guard_filter_fn": ...})`; None where this torch has no such option.
    """
    if not hasattr(torch.compiler, "skip_guard_on_all_nn_modules_unsafe"):
        return None
    held = weakref.ref(module)

    def keep(guards: Sequence[Any]) -> list[bool]:
        root = held()
        return [True] * len(guards) if root is None else _kept(guards, _Tree(root))

    return keep


class _Tree:
    """What the dispatcher's guard looks at, by identity."""

    def __init__(self, root: nn.Module) -> None:
        modules = [*root.modules()]
        self.modules = {id(module) for module in modules}
        self.parts = self.modules | {id(each) for each in (*root.parameters(), *root.buffers())}
        for module in modules:
            own = vars(module)
            containers = [value for name, value in own.items() if name.startswith("_") and isinstance(value, dict)]
            self.parts |= {id(own), *map(id, containers)}

    def knows(self, guard: Any, values: Values) -> bool:
        """Whether a guard asks nothing new: about a module, its dicts and tensors, or which object an attribute is."""
        if not guard.has_value or _OURS not in guard.name:
            return False
        if id(guard.value) in self.parts or (isinstance(guard.value, type) and guard.guard_type == "DUPLICATE_INPUT"):
            return True
        base = values.get(_name(getattr(guard.orig_guard.originating_source, "base", None)))
        if id(base) not in self.modules or not any(value is guard.value for value in vars(base).values()):
            return False
        return guard.guard_type in _BY_IDENTITY or _constant(guard.value)


def _kept(guards: Sequence[Any], tree: _Tree) -> list[bool]:
    values = {each.name: each.value for each in guards if each.has_value}
    found: list[bool] = []
    seen: set[Any] = set()
    for each in guards:
        what = _what(each, values, tree)
        found.append(what not in seen and not each.name.startswith(_TORCHS) and not tree.knows(each, values))
        seen.add(what)
    return found


def _what(guard: Any, values: Values, tree: _Tree) -> Any:
    """Equal for two guards that ask the same of one object, which modules hold under several names."""
    given = getattr(guard.orig_guard.create_fn, "keywords", {})
    source = guard.orig_guard.originating_source
    while (base := getattr(source, "base", None)) is not None:
        name = _name(source)
        if (
            id(values.get(_name(base))) in tree.modules
            and name in values
            and all(type(v) is str for v in given.values())
        ):
            return guard.guard_type, id(values[name]), guard.name.replace(name, ""), *sorted(given.items())
        source = base
    return id(guard)


def _constant(value: Any) -> bool:
    """Whether a value stays as it is, so that the same object says the same."""
    return type(value) in _CONSTANTS or (type(value) is tuple and all(map(_constant, value)))


def _name(source: Any) -> str:
    name = getattr(source, "name", "")
    return name() if callable(name) else name
