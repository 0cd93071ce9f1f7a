"""Whether a module still is what a built was made from: its tensors, its children, its settings, its hooks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import attrs
import torch
from torch import nn
from torch.nn.modules import module as nn_module

from tt_core.callkey import leaf_of
from tt_core.guards.items import (
    HELD,
    MISSING,
    Item,
    Print,
    Sized,
    dicts_of,
    empty_of,
    form_of,
    items_of,
    join,
    once,
    prints_of,
    sizes_of,
)
from tt_core.guards.kinds import Fall, Why
from tt_core.guards.quick import quick
from tt_core.guards.seen import Check, Seen, never
from tt_core.guards.versions import Versions, versions_of
from tt_core.values import ConstLeaf, Weights

GLOBAL_HOOKS = (nn_module._global_forward_hooks, nn_module._global_forward_pre_hooks)
"""Hooks that run around every module; private, and the only way to see them."""
_ALARMS = 4
"""A dict that moved so often for nothing is compared item by item: some models count their own calls."""


@attrs.define(kw_only=True, eq=False)
class Watch:
    """What a module looked like, compared with what it looks like now.

    Tensors by identity, address, dtype, device, strides (and, for VALUES, version); children, own attributes, training
    flags, instance and class `forward`s and hooks of everything inside by identity. The unit's own hooks and training
    flag are not watched here: the first run outside its forward, the second belongs to the call key. An attribute that
    was replaced by an equal plain constant, or an equal list, tuple or dict of such, counts as unchanged: `torch.export`
    puts copies in the place of a module's containers.
    """

    root: nn.Module
    items: list[Item]
    empty: list[Item]
    """What was empty: hooks inside, and lists of modules."""
    prints: list[Print]
    sizes: list[Sized]
    """The `__dict__` of each module (a `forward` that appears makes it longer), lists of modules, hooks."""
    classes: list[tuple[type[nn.Module], Any]]
    inner: bool
    versions: Versions
    """The dicts, each with its version when it was last compared; empty where dicts have none."""
    alarms: Counter[int] = attrs.field(factory=Counter)
    """How often a dict moved and nothing of weight had changed, by its id."""
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
        versions = versions_of(dicts_of(modules))  # first: what changes while the rest is taken down will show
        items = [item for path, module in modules for item in items_of(path, module, module is root)]
        watch = cls(
            root=root,
            items=[item for item in items if item.where not in written],
            empty=[item for path, module in modules for item in empty_of(path, module, module is root)],
            prints=once([each for item in items for each in prints_of(item, level, written)]),
            sizes=[each for path, module in modules for each in sizes_of(path, module, module is root)],
            classes=[(kind, kind.forward) for kind in _kinds(modules)],
            inner=len(modules) > 1,
            versions=versions,
        )
        watch._compare_forms()
        return watch

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The tensors watched."""
        return [each.tensor for each in self.prints]

    @property
    def calm(self) -> Versions:
        """The dicts whose version may answer for them: those that do not move all the time for nothing."""
        return {key: each for key, each in self.versions.items() if self.alarms[key] < _ALARMS}

    def recheck(self) -> bool:
        """The exact verdict, for when the quick one said no; what is equal by value is taken down anew."""
        versions = versions_of(holder for holder, _ in self.versions.values())
        if self.difference() is not None:
            return False
        self.alarms.update(key for key, (_, number) in versions.items() if number != self.versions[key][1])
        self.versions = versions
        for item in (*self.items, *self.empty):  # an empty dict too may have been replaced by another one
            item.value = item.now()
        for each in self.sizes:
            each.size = len(each.holder)
        self.publish(quick(self))
        return True

    def difference(self) -> Why | None:
        """The first thing that is not as it was; None where nothing is."""
        return next(self._differences(), None)

    def moved(self) -> bool:
        """Whether a tensor is not as it was, or the `forward` of a class."""
        return any(kind.forward is not then for kind, then in self.classes) or any(
            any(_moved(each)) for each in self.prints
        )

    def _compare_forms(self) -> None:
        """One C call for the class, dtype, device, sizes and strides of every tensor."""
        if not self.prints:
            return
        forms = [each.form for each in self.prints]
        seen = Seen(
            exact=lambda *now: all(form_of(tensor) == form for tensor, form in zip(now, forms, strict=True)),
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
            # an equal container of watched entries is another: they would be looked for in the old one
            if now is not item.value and (item.name in HELD or not _alike(now, item.value)):
                yield Why(kind=item.kind, seen=f"{item.where} was {'removed' if now is MISSING else 'replaced'}")
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
            elif each.kind is None and (name := each.hides()) is not None:
                yield Why(kind=Fall.MODULE, seen=f"{join(each.where, name)} was replaced")
        for kind, forward in self.classes:
            if kind.forward is not forward:
                yield Why(kind=Fall.MODULE, seen=f"{kind.__name__}.forward was replaced")


def _kinds(modules: Sequence[tuple[str, nn.Module]]) -> list[type[nn.Module]]:
    """Their classes; a scripted module's class gives its forward to instances only."""
    kinds = dict.fromkeys(type(module) for _, module in modules)
    return [kind for kind in kinds if not issubclass(kind, torch.jit.ScriptModule)]


def _moved(each: Print) -> Iterator[Why]:
    if each.tensor.data_ptr() != each.address or form_of(each.tensor) != each.form:
        yield Why(kind=Fall.WEIGHTS, seen=f"{each.item.where} was moved, converted or replaced")
    elif each.version is not None and each.tensor._version != each.version:
        yield Why(kind=Fall.WEIGHTS, seen=f"{each.item.where} was changed in place")


def _alike(now: Any, then: Any) -> bool:
    """The very same object, an equal constant, or an equal container of such."""
    if now is then:
        return True
    if type(now) is not type(then) or isinstance(now, torch.Tensor):
        return False
    if type(now) in (tuple, list):
        return len(now) == len(then) and all(map(_alike, now, then))
    if type(now) is dict:
        return _alike([*now.items()], [*then.items()])
    leaf = leaf_of(now)
    return isinstance(leaf, ConstLeaf) and leaf == leaf_of(then)
