"""What a module is made of as a guard sees it: names in dicts, tensors, and how long dicts are."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import attrs
import torch
from torch import nn

from tt_core.guards.kinds import Fall
from tt_core.values import Weights

_BOOKKEEPING = frozenset(vars(nn.Module()))
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_CONTAINERS = (("_parameters", Fall.WEIGHTS), ("_buffers", Fall.WEIGHTS), ("_modules", Fall.MODULE))
HELD = ("_parameters", "_buffers", "_modules", *_HOOKS)
"""Containers whose entries are watched, in the very dict that was there."""
_LISTS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)
_COMPILED = "_compiled_call_impl"
"""Set by `module.compile()`, which computes the same."""
MISSING: Any = object()


@attrs.define(kw_only=True, eq=False)
class Item:
    """One name in one dict of a module, and the very object it stood for."""

    holder: dict[Any, Any]
    name: Any
    value: Any
    kind: Fall
    where: str

    def now(self) -> Any:
        """What the name stands for now."""
        return self.holder.get(self.name, MISSING)


@attrs.define(kw_only=True, eq=False)
class Print:
    """One tensor as it was: all that can be read without reading its values."""

    item: Item
    tensor: torch.Tensor
    address: int
    version: int | None
    """None where it is not watched: inference tensors have none, and state that the unit writes moves by itself."""
    form: tuple[Any, ...]
    storage: Any
    """Held, so that no other storage can take its address while addresses are compared."""


@attrs.define(kw_only=True, eq=False)
class Sized:
    """A dict and how long it was; one without a `kind` is a module's own, see `hides`."""

    holder: dict[Any, Any]
    size: int
    kind: Fall | None
    where: str
    owner: type[nn.Module] = nn.Module
    known: frozenset[str] = frozenset()

    def hides(self) -> str | None:
        """What a module has got since that hides something of its class: a forward, a method, a setting."""
        new = (name for name in self.holder if name not in self.known and hasattr(self.owner, name))
        return next(new, None)


def items_of(path: str, module: nn.Module, root: bool) -> Iterator[Item]:
    """What one module's own dict and containers hold; of the unit itself not its flag, its hooks, its forward."""
    own = vars(module)
    for name, value in own.items():
        if name not in _BOOKKEEPING and not (root and name == "forward"):
            yield Item(holder=own, name=name, value=value, kind=Fall.MODULE, where=join(path, name))
    if isinstance(module, torch.jit.ScriptModule):
        yield from _scripted(path, module)
    for name, kind in _CONTAINERS:
        yield from _contents(path, own, name, kind)
    if not root:
        if "training" in own:  # scripted modules keep it elsewhere
            where = join(path, "training")
            yield Item(holder=own, name="training", value=module.training, kind=Fall.TRAINING, where=where)
        for name in _HOOKS:
            yield from _contents(join(path, name), own, name, Fall.HOOKS)


def _scripted(path: str, module: nn.Module) -> Iterator[Item]:
    """The tensors of a scripted module, whose containers are not dicts: writes are seen, replaced ones are not."""
    tensors = dict(module.named_parameters(recurse=False)) | dict(module.named_buffers(recurse=False))
    for name, value in tensors.items():
        yield Item(holder=tensors, name=name, value=value, kind=Fall.WEIGHTS, where=join(path, name))


def _contents(path: str, own: dict[str, Any], name: str, kind: Fall) -> Iterator[Item]:
    """A container that holds something, and what it holds."""
    held = own.get(name)
    if held and isinstance(held, dict):
        yield Item(holder=own, name=name, value=held, kind=kind, where=join(path, name))
        for key, value in held.items():
            yield Item(holder=held, name=key, value=value, kind=kind, where=join(path, str(key)))


def empty_of(path: str, module: nn.Module, root: bool) -> Iterator[Item]:
    """What is empty in one module, and would count if it were not."""
    own = vars(module)
    watched = [] if root else [(name, Fall.HOOKS) for name in _HOOKS]
    if isinstance(module, _LISTS):  # only these run children that they did not have when they were written
        watched.append(("_modules", Fall.MODULE))
    for name, kind in watched:
        if isinstance(own.get(name), dict) and not own[name]:
            yield Item(holder=own, name=name, value=own[name], kind=kind, where=join(path, name))


def sizes_of(path: str, module: nn.Module, root: bool) -> Iterator[Sized]:
    """The dicts of one module in which a new entry counts; what the unit's own `forward` is, a dispatcher decides."""
    own = vars(module)
    known = frozenset(own) | {_COMPILED} | ({"forward"} if root else set())
    yield Sized(holder=own, size=len(own), kind=None, where=path, owner=type(module), known=known)
    held = [] if root else [(name, Fall.HOOKS) for name in _HOOKS if own.get(name)]
    if isinstance(module, _LISTS) and own["_modules"]:
        held.append(("_modules", Fall.MODULE))
    for name, kind in held:
        yield Sized(holder=own[name], size=len(own[name]), kind=kind, where=join(path, name))


def dicts_of(modules: Sequence[tuple[str, nn.Module]]) -> Iterator[dict[Any, Any]]:
    """Each module's own dict, and the containers and hooks in it that hold something."""
    for _, module in modules:
        own = vars(module)
        yield own
        yield from (own[name] for name in HELD if own.get(name) and isinstance(own[name], dict))


def prints_of(item: Item, level: Weights, written: Collection[str]) -> Iterator[Print]:
    """The item as a tensor, where it is one whose memory can be watched."""
    tensor = item.value
    if not isinstance(tensor, torch.Tensor):
        return
    try:
        address, storage = tensor.data_ptr(), tensor.untyped_storage()
        form = form_of(tensor)
    except (RuntimeError, NotImplementedError):  # a sparse or wrapper tensor: only its identity can be watched
        return
    versioned = level is Weights.VALUES and item.where not in written and not tensor.is_inference()
    version = tensor._version if versioned else None
    yield Print(item=item, tensor=tensor, address=address, version=version, form=form, storage=storage)


def once(prints: list[Print]) -> list[Print]:
    """Each tensor under its first name: torch's own guard holds for nothing where a tensor comes twice.

    The other names of a tied weight are still compared by identity.
    """
    first: dict[int, Print] = {}
    for each in prints:
        first.setdefault(id(each.tensor), each)
    return list(first.values())


def form_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    """What else must stay as it is for the same bytes to mean the same."""
    return type(tensor), tensor.dtype, tensor.device, tensor.layout, tensor.shape, tensor.stride()


def join(path: str, name: str) -> str:
    """A dotted name."""
    return f"{path}.{name}" if path else name
