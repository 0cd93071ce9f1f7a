"""Every module inside the user's object, with its names."""

from __future__ import annotations

from collections import deque
from typing import Any

import attrs
import torch
from torch import nn

from tt_core.state.walk import join, parts, plain
from tt_core.values import frozen

_MAX_NAMES = 16
"""Names kept of one module; a chain of doubly shared modules has exponentially many."""
_STRUCTURE = frozenset({"_parameters", "_buffers", "_modules", "forward"})


@frozen
class Found:
    """One module of the user's object.

    Attributes:
        path: its name: the first path that leads to it, `""` for the object itself.
        aliases: further paths, in the order in which they are met.
        module: the module.
    """

    path: str
    aliases: tuple[str, ...]
    module: nn.Module


def find(obj: Any) -> tuple[Found, ...]:
    """Every `nn.Module` in `obj`: itself, children, and those in attributes, lists, tuples and dicts at any depth.

    A module's children come first and in the order of `named_modules`; modules hidden in plain attributes after them.
    Cycles are followed once.

    Args:
        obj: a module, a container of modules, or any object with attributes.

    Returns:
        One entry a module, in the order of first meeting; names are dotted paths, `[repr]` for keys of dicts.
    """
    search = _Search()
    search.run(obj)
    return tuple(
        Found(path=names[0], aliases=tuple(names[1:]), module=module) for module, names in search.names.values()
    )


@attrs.define
class _Search:
    """One search: names by module identity, objects still to be looked into, objects seen."""

    names: dict[int, tuple[nn.Module, list[str]]] = attrs.field(factory=dict)
    queue: deque[tuple[str, Any]] = attrs.field(factory=deque)
    seen: dict[int, Any] = attrs.field(factory=dict)

    def run(self, obj: Any) -> None:
        self.queue.append(("", obj))
        while self.queue:
            path, value = self.queue.popleft()
            if isinstance(value, nn.Module):
                self._hidden(path, value)
            elif id(value) not in self.seen:
                self.seen[id(value)] = value
                self._push(path, list(parts(value)))

    def _hidden(self, path: str, module: nn.Module) -> None:
        if id(module) in self.names:
            self._named(path, module)
        else:
            self._tree(path, module, ())

    def _tree(self, path: str, module: nn.Module, above: tuple[int, ...]) -> None:
        """A module with its children, depth first; what its plain attributes hold waits until the tree is done."""
        new = id(module) not in self.names
        if not self._named(path, module) or isinstance(module, torch.jit.ScriptModule):
            return
        if new:
            held = ((f".{name}", value) for name, value in list(vars(module).items()) if name not in _STRUCTURE)
            self._push(path, list(held))
        for name, child in list(module._modules.items()):
            if child is not None and id(child) not in above and child is not module:
                self._tree(join(path, f".{name}"), child, (*above, id(module)))

    def _named(self, path: str, module: nn.Module) -> bool:
        """Notes a name; false once there are enough."""
        names = self.names.setdefault(id(module), (module, []))[1]
        if len(names) < _MAX_NAMES and path not in names:
            names.append(path)
            return True
        return False

    def _push(self, path: str, held: list[tuple[str, Any]]) -> None:
        self.queue.extend(
            (join(path, step), value)
            for step, value in held
            if not plain(value) and not isinstance(value, torch.Tensor)
        )
