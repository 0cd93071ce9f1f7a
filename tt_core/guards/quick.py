"""The fast test of a `Watch`: compiled where tt-native is installed; else spelled out for a small module, C loops over
lists for a large one.

Either may say no where nothing of weight changed; `Watch.recheck` then looks closely.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from operator import attrgetter, is_, itemgetter
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules import module as nn_module

from tt_core.guards.made import made
from tt_core.guards.native import Snapshot, snapshot
from tt_core.guards.seen import never
from tt_core.guards.versions import dict_version

if TYPE_CHECKING:
    from tt_core.guards.items import Item
    from tt_core.guards.weights import Watch

_SMALL_ITEMS = 64
"""Up to so many items spelling them out is faster, by a fifth to a half: measured on units of 22 to 103, between calls too."""
_version = attrgetter("_version")
_forward = attrgetter("forward")
_address = torch.Tensor.data_ptr


def quick(watch: Watch) -> Callable[[], bool]:
    """A fast test of `watch.difference() is None`; False may be a false alarm."""
    if snapshot is not None:
        return _compiled(watch, snapshot)
    return _spelled(watch) if is_small(watch) else _mapped(watch)


def is_small(watch: Watch) -> bool:
    """Whether the test reads so little that it does not drive everything else out of the nearest cache."""
    return len(watch.items) + len(watch.empty) + len(watch.prints) <= _SMALL_ITEMS


def _compiled(watch: Watch, take: Snapshot) -> Callable[[], bool]:
    """One compiled call for all tensors all dicts that have versions and all classes; the rest as in `_mapped`."""
    calm = watch.calm
    empty = [item.value for item in watch.empty if id(item.holder) in calm]
    if watch.inner:
        empty += [nn_module._global_forward_hooks, nn_module._global_forward_pre_hooks]
    tensors = [each.tensor for each in watch.prints if each.version is not None]
    written = [each.tensor for each in watch.prints if each.version is None]
    same = take(tensors, written, [each for each, _ in calm.values()], empty, [kind for kind, _ in watch.classes])
    if watch.moved() or not _mapped_dicts(watch)():  # what moved before it was taken is in it, and would never show
        return never
    items = _mapped_items(watch)
    return same if items is None else lambda: same() and items()


def _spelled(watch: Watch) -> Callable[[], bool]:
    """One comparison after the other, as source text.

    Tensors are read anew each time. One that has the address, form and version of the one that stood there before has
    its values too, since the storage is held and cannot have been replaced: its identity need not be asked.
    """
    held: dict[str, Any] = {"seen": watch.seen}
    printed = {id(each.item) for each in watch.prints}
    rest = [item for item in watch.items if id(item) not in printed]
    conditions = [f"{_read(item, held)} is {_hold('value', item.value, held)}" for item in rest]
    conditions += [f"not {_read(item, held)}" for item in watch.empty]
    conditions += [f"len({_hold('holder', each.holder, held)}) == {each.size}" for each in watch.sizes]
    conditions += [f"{_hold('kind', kind, held)}.forward is {_hold('value', fw, held)}" for kind, fw in watch.classes]
    for index, each in enumerate(watch.prints):
        conditions.append(f"(t{index} := {_read(each.item, held)}).data_ptr() == {each.address}")
        conditions += [] if each.version is None else [f"t{index}._version == {each.version}"]
    if watch.prints:
        held["learn"] = watch.learn
        tensors = ", ".join(f"t{index}" for index in range(len(watch.prints)))
        conditions.append(f"(seen({tensors}) or learn({tensors}))")
    if watch.inner:
        held["hooks"], held["pre_hooks"] = nn_module._global_forward_hooks, nn_module._global_forward_pre_hooks
        conditions += ["not hooks", "not pre_hooks"]
    body = "\n        and ".join(conditions or ["True"])
    return made("unchanged", f"def unchanged():\n    return (\n        {body}\n    )\n", held)


def _read(item: Item, held: dict[str, Any]) -> str:
    key = repr(item.name) if type(item.name) in (str, int) else _hold("key", item.name, held)
    return f"{_hold('holder', item.holder, held)}[{key}]"


def _hold(stem: str, value: Any, held: dict[str, Any]) -> str:
    """One name an object: by identity, since the values may be tensors."""
    for name, known in held.items():
        if known is value and name.rstrip("0123456789") == stem:
            return name
    name = f"{stem}{len(held)}"
    held[name] = value
    return name


def _mapped(watch: Watch) -> Callable[[], bool]:
    """The same over lists: the interpreter's loop costs more than the comparisons.

    Where dicts have versions, one number stands for all that a dict holds: a large model's dicts are not in the caches
    when its guard is asked, and reading them took longer than comparing.
    """
    tensors, dicts, items = _mapped_tensors(watch), _mapped_dicts(watch), _mapped_items(watch) or (lambda: True)
    hooks, pre_hooks = nn_module._global_forward_hooks, nn_module._global_forward_pre_hooks
    kinds, forwards = [kind for kind, _ in watch.classes], [forward for _, forward in watch.classes]

    def unchanged() -> bool:
        return (
            not (hooks or pre_hooks)
            and dicts()
            and items()
            and tensors()
            and all(map(is_, map(_forward, kinds), forwards))
        )

    return unchanged


def _mapped_tensors(watch: Watch) -> Callable[[], bool]:
    """The tensors themselves; that they still are the ones in use is up to the dicts that hold them.

    Their forms come first: that is a tight loop, which waits for the memory of several tensors at once.
    """
    now = [each.tensor for each in watch.prints]
    addresses = [each.address for each in watch.prints]
    versioned = [each.tensor for each in watch.prints if each.version is not None]
    versions = [each.version for each in watch.prints if each.version is not None]
    seen, learn = watch.seen, watch.learn

    def unchanged() -> bool:
        return (
            (not now or seen(*now) or learn(*now))
            and [*map(_address, now)] == addresses
            and [*map(_version, versioned)] == versions
        )

    return unchanged


def _mapped_dicts(watch: Watch) -> Callable[[], bool]:
    """Dicts by their version, and what was empty by its truth."""
    version, calm = dict_version, watch.calm
    if version is None or not calm:
        return lambda: True
    dicts, versions = [holder for holder, _ in calm.values()], [number for _, number in calm.values()]
    empty = [item.value for item in watch.empty if id(item.holder) in calm]

    def unchanged() -> bool:
        _touch(dicts)
        return [*map(version, dicts)] == versions and not any(empty)

    return unchanged


def _touch(objects: list[Any]) -> None:
    """Fetches objects into the caches: to count one reference more of each is a loop that does not wait for any of them.

    Measured on 215 dicts and 105 tensors behind a call of 5 ms: 9 us for what saves 40.
    """
    tuple(objects)


def _mapped_items(watch: Watch) -> Callable[[], bool] | None:
    """What no version stands for, item by item: flags and empty hooks by truth, the rest by identity; as a rule nothing."""
    calm = watch.calm
    items = [item for item in watch.items if id(item.holder) not in calm]
    flags = [item for item in items if item.name == "training"]
    rest = [item for item in items if item.name != "training"]
    alike = not any(item.value for item in flags)
    empty = [item for item in watch.empty if id(item.holder) not in calm]
    falsy = tuple(zip(*_rows([*empty, *(flags if alike else [])]), strict=True))
    by_equality = [item for item in rest if _equal_is_identical(item.value)]
    by_identity = [item for item in rest if not _equal_is_identical(item.value)] + ([] if alike else flags)
    equal, equal_values = _rows(by_equality), _values(by_equality)
    same, same_values = _rows(by_identity), _values(by_identity)
    sized = [each for each in watch.sizes if id(each.holder) not in calm]
    holders, sizes = [each.holder for each in sized], [each.size for each in sized]
    if not (items or falsy or sized):
        return None  # to find that out in every call took 7 us of a guard of 60

    def unchanged() -> bool:
        for read, dicts in falsy:
            if any(map(read, dicts)):
                return False
        return (
            [*map(len, holders)] == sizes
            and [*chain.from_iterable(map(map, *equal))] == equal_values
            and all(map(is_, chain.from_iterable(map(map, *same)), same_values))
        )

    return unchanged


def _equal_is_identical(value: Any) -> bool:
    """Whether `==` on this value says no more and no less than `is`, but faster in a list."""
    return value is None or type(value).__eq__ is object.__eq__  # type: ignore[comparison-overlap]


def _groups(items: Sequence[Item]) -> dict[Any, list[Item]]:
    groups: dict[Any, list[Item]] = {}
    for item in items:
        groups.setdefault(item.name, []).append(item)
    return groups


def _rows(items: Sequence[Item]) -> tuple[list[itemgetter[Any]], list[list[Any]]]:
    """Items grouped by name, for one `itemgetter` over many dicts."""
    groups = _groups(items)
    return [itemgetter(name) for name in groups], [[item.holder for item in group] for group in groups.values()]


def _values(items: Sequence[Item]) -> list[Any]:
    """Their values, in the order in which `_rows` reads them."""
    return [item.value for group in _groups(items).values() for item in group]
