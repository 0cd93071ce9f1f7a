"""Whether a module still is what a built was made from: its tensors, its children, its settings, its hooks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import attrs
import torch
from torch import nn
from torch.nn.modules import module as nn_module

from tt_core.callkey import leaf_of
from tt_core.guards.kinds import Fall, Why
from tt_core.guards.quick import quick
from tt_core.guards.seen import Check, Seen, never
from tt_core.values import ConstLeaf, Weights

GLOBAL_HOOKS = (nn_module._global_forward_hooks, nn_module._global_forward_pre_hooks)
"""Hooks that run around every module; private, and the only way to see them."""
_BOOKKEEPING = frozenset(vars(nn.Module()))
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_CONTAINERS = (("_parameters", Fall.WEIGHTS), ("_buffers", Fall.WEIGHTS), ("_modules", Fall.MODULE))
_LISTS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)
_MISSING: Any = object()


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
        return self.holder.get(self.name, _MISSING)


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
    """A dict and how long it was; `kind` is None for a module's own `__dict__`, where only a new `forward` counts."""

    holder: dict[Any, Any]
    size: int
    kind: Fall | None
    where: str


@attrs.define(kw_only=True, eq=False)
class Watch:
    """What a module looked like, compared with what it looks like now.

    Tensors by identity, address, dtype, device, strides (and, for VALUES, version); children, own attributes, training
    flags, instance and class `forward`s and hooks of everything inside by identity. The unit's own hooks and training
    flag are not watched here: the first run outside its forward, the second belongs to the call key. An attribute that
    was replaced by an equal plain constant counts as unchanged.
    """

    root: nn.Module
    items: list[Item]
    empty: list[Item]
    """What was empty: hooks inside, and lists of modules."""
    prints: list[Print]
    sizes: list[Sized]
    """The `__dict__` of each inner module (a `forward` that appears makes it longer), lists of modules, hooks."""
    classes: list[tuple[type[nn.Module], Any]]
    inner: bool
    publish: Callable[[Callable[[], bool]], None] = attrs.field(default=lambda _: None)
    seen: Check = attrs.field(default=never)
    learn: Check = attrs.field(default=never)

    @classmethod
    def of(cls, root: nn.Module, level: Weights, written: Collection[str] = ()) -> Watch:
        """Takes down what `root` looks like.

        Args:
            root: the unit's module; only looked at.
            level: STORAGE, or VALUES, which watches versions too.
            written: dotted names of state that the unit itself writes, which may move.
        """
        modules = [*root.named_modules()]
        items = [item for path, module in modules for item in _items(path, module, module is root)]
        watch = cls(
            root=root,
            items=[item for item in items if item.where not in written],
            empty=[item for path, module in modules for item in _empty(path, module, module is root)],
            prints=_by_name(_once([each for item in items for each in _prints(item, level, written)])),
            sizes=[each for path, module in modules for each in _sizes(path, module, module is root)],
            classes=[(kind, kind.forward) for kind in _kinds(modules)],
            inner=len(modules) > 1,
        )
        watch._compare_forms()
        return watch

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The tensors watched."""
        return [each.tensor for each in self.prints]

    def recheck(self) -> bool:
        """The exact verdict, for when the quick one said no; what is equal by value is taken down anew."""
        if self.difference() is not None:
            return False
        for item in self.items:
            item.value = item.now()
        for each in self.sizes:
            each.size = len(each.holder)
        self.publish(quick(self))
        return True

    def difference(self) -> Why | None:
        """The first thing that is not as it was; None where nothing is."""
        return next(self._differences(), None)

    def _compare_forms(self) -> None:
        """One C call for the class, dtype, device, sizes and strides of every tensor."""
        if not self.prints:
            return
        forms = [each.form for each in self.prints]
        seen = Seen(
            exact=lambda *now: all(_form(tensor) == form for tensor, form in zip(now, forms, strict=True)),
            sizes=[list(each.tensor.shape) for each in self.prints],
            strides=[list(each.tensor.stride()) for each in self.prints],
            publish=self._publish_seen,
        )
        self.learn = seen.learn

    def _publish_seen(self, check: Check) -> None:
        self.seen = check
        self.publish(quick(self))

    def _differences(self) -> Iterator[Why]:
        for item in self.items:
            now = item.now()
            if now is not item.value and not _same_constant(now, item.value):
                yield Why(kind=item.kind, seen=f"{item.where} was {'removed' if now is _MISSING else 'replaced'}")
        yield from (Why(kind=item.kind, seen=f"{item.where} has got an entry") for item in self.empty if item.now())
        yield from self._forwards()
        if self.inner and any(GLOBAL_HOOKS):
            yield Why(kind=Fall.HOOKS, seen="a hook around all modules is set")
        for each in self.prints:
            yield from _moved(each)

    def _forwards(self) -> Iterator[Why]:
        for each in self.sizes:
            if each.kind is not None and len(each.holder) != each.size:
                yield Why(kind=each.kind, seen=f"{each.where} has got an entry")
            elif each.kind is None and "forward" in each.holder and not self._known_forward(each.holder):
                yield Why(kind=Fall.MODULE, seen=f"{each.where}.forward was replaced")
        for kind, forward in self.classes:
            if kind.forward is not forward:
                yield Why(kind=Fall.MODULE, seen=f"{kind.__name__}.forward was replaced")

    def _known_forward(self, holder: dict[str, Any]) -> bool:
        return any(item.holder is holder and item.name == "forward" for item in self.items)


def _kinds(modules: Sequence[tuple[str, nn.Module]]) -> list[type[nn.Module]]:
    """Their classes; a scripted module's class gives its forward to instances only."""
    kinds = dict.fromkeys(type(module) for _, module in modules)
    return [kind for kind in kinds if not issubclass(kind, torch.jit.ScriptModule)]


def _items(path: str, module: nn.Module, root: bool) -> Iterator[Item]:
    own = vars(module)
    for name, value in own.items():
        if name not in _BOOKKEEPING and not (root and name == "forward"):
            yield Item(holder=own, name=name, value=value, kind=Fall.MODULE, where=_join(path, name))
    if isinstance(module, torch.jit.ScriptModule):
        yield from _scripted(path, module)
    for name, kind in _CONTAINERS:
        yield from _contents(path, own, name, kind)
    if not root:
        if "training" in own:  # scripted modules keep it elsewhere
            where = _join(path, "training")
            yield Item(holder=own, name="training", value=module.training, kind=Fall.TRAINING, where=where)
        for name in _HOOKS:
            yield from _contents(_join(path, name), own, name, Fall.HOOKS)


def _scripted(path: str, module: nn.Module) -> Iterator[Item]:
    """The tensors of a scripted module, whose containers are not dicts: writes are seen, replaced ones are not."""
    tensors = dict(module.named_parameters(recurse=False)) | dict(module.named_buffers(recurse=False))
    for name, value in tensors.items():
        yield Item(holder=tensors, name=name, value=value, kind=Fall.WEIGHTS, where=_join(path, name))


def _contents(path: str, own: dict[str, Any], name: str, kind: Fall) -> Iterator[Item]:
    """A container that holds something, and what it holds."""
    held = own.get(name)
    if held and isinstance(held, dict):
        yield Item(holder=own, name=name, value=held, kind=kind, where=_join(path, name))
        for key, value in held.items():
            yield Item(holder=held, name=key, value=value, kind=kind, where=_join(path, str(key)))


def _empty(path: str, module: nn.Module, root: bool) -> Iterator[Item]:
    own = vars(module)
    watched = [] if root else [(name, Fall.HOOKS) for name in _HOOKS]
    if isinstance(module, _LISTS):  # only these run children that they did not have when they were written
        watched.append(("_modules", Fall.MODULE))
    for name, kind in watched:
        if isinstance(own.get(name), dict) and not own[name]:
            yield Item(holder=own, name=name, value=own[name], kind=kind, where=_join(path, name))


def _sizes(path: str, module: nn.Module, root: bool) -> Iterator[Sized]:
    own = vars(module)
    if not root:
        yield Sized(holder=own, size=len(own), kind=None, where=path)
    held = [] if root else [(name, Fall.HOOKS) for name in _HOOKS if own.get(name)]
    if isinstance(module, _LISTS) and own["_modules"]:
        held.append(("_modules", Fall.MODULE))
    for name, kind in held:
        yield Sized(holder=own[name], size=len(own[name]), kind=kind, where=_join(path, name))


def _prints(item: Item, level: Weights, written: Collection[str]) -> Iterator[Print]:
    tensor = item.value
    if not isinstance(tensor, torch.Tensor):
        return
    try:
        address, storage = tensor.data_ptr(), tensor.untyped_storage()
        form = _form(tensor)
    except (RuntimeError, NotImplementedError):  # a sparse or wrapper tensor: only its identity can be watched
        return
    versioned = level is Weights.VALUES and item.where not in written and not tensor.is_inference()
    version = tensor._version if versioned else None
    yield Print(item=item, tensor=tensor, address=address, version=version, form=form, storage=storage)


def _once(prints: list[Print]) -> list[Print]:
    """Each tensor under its first name: torch's own guard holds for nothing where a tensor comes twice.

    The other names of a tied weight are still compared by identity.
    """
    first: dict[int, Print] = {}
    for each in prints:
        first.setdefault(id(each.tensor), each)
    return list(first.values())


def _by_name(prints: list[Print]) -> list[Print]:
    """Tensors of one name beside each other: the order in which the quick test reads them."""
    first: dict[Any, int] = {}
    return sorted(prints, key=lambda each: first.setdefault(each.item.name, len(first)))


def _form(tensor: torch.Tensor) -> tuple[Any, ...]:
    return type(tensor), tensor.dtype, tensor.device, tensor.layout, tensor.shape, tensor.stride()


def _moved(each: Print) -> Iterator[Why]:
    if each.tensor.data_ptr() != each.address or _form(each.tensor) != each.form:
        yield Why(kind=Fall.WEIGHTS, seen=f"{each.item.where} was moved, converted or replaced")
    elif each.version is not None and each.tensor._version != each.version:
        yield Why(kind=Fall.WEIGHTS, seen=f"{each.item.where} was changed in place")


def _same_constant(now: Any, then: Any) -> bool:
    if type(now) is not type(then) or isinstance(now, torch.Tensor):
        return False
    if type(now) is tuple:
        return len(now) == len(then) and all(map(_same_constant, now, then))
    leaf = leaf_of(now)
    return isinstance(leaf, ConstLeaf) and leaf == leaf_of(then)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
