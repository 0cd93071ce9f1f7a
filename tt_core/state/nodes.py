"""What one container, attribute dictionary, array or generator held, and how it is put back."""

from __future__ import annotations

import random
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import torch
from torch import nn

Alike = Callable[[Any, Any], bool]
"""Whether a value that was held equals one that is held now, by value."""
GONE = "<deleted>"
"""The value, in a report of changes, of an attribute that no longer exists."""
_UNWATCHED = "forward"
"""A module's instance `forward` is the dispatcher's place: `install` alone puts it there and takes it away."""


class Node(Protocol):
    """One thing that can change."""

    content: Any

    def changed(self, alike: Alike) -> Mapping[str, Any]:
        """Dotted name -> value now, of what differs by value."""
        ...

    def restore(self) -> None:
        """Puts back the very objects that were held, in their order; writes nothing when nothing changed."""
        ...

    def now(self) -> Any:
        """The present content, in the form of `content`."""
        ...


def same_objects(a: Iterable[Any], b: Iterable[Any]) -> bool:
    """Whether two sequences of one length hold the very same objects."""
    return all(x is y for x, y in zip(a, b, strict=True))


class Items:
    """The items of a dict, or (`attributes`) what `vars(owner)` holds."""

    def __init__(
        self, name: str, owner: Any, *, attributes: bool, step: Callable[[str, Any], str] | None = None
    ) -> None:
        self.name, self.owner, self.attributes, self.step = name, owner, attributes, step
        self.content: dict[Any, Any] = self.now()

    @property
    def _target(self) -> dict[Any, Any]:
        return vars(self.owner) if self.attributes else self.owner

    def now(self) -> dict[Any, Any]:
        """The content at present."""
        target = self._target
        held = dict(OrderedDict.items(target) if isinstance(target, OrderedDict) else dict.items(target))
        if self.attributes and isinstance(self.owner, nn.Module):
            held.pop(_UNWATCHED, None)
        return held

    def changed(self, alike: Alike) -> Mapping[str, Any]:
        """What differs by value."""
        now = self.now()
        if self._as_it_was(now) or (self.step is None and alike(self.content, now)):
            return {}
        if self.step is None:
            return {self.name: self.owner}
        names = {**dict.fromkeys(self.content), **dict.fromkeys(now)}
        values = ((key, self.content.get(key, GONE), now.get(key, GONE)) for key in names)
        return {self.step(self.name, key): value for key, was, value in values if not alike(was, value)}

    def restore(self) -> None:
        """Puts the very objects back."""
        now = self.now()
        if self._as_it_was(now):
            return
        target = self._target
        kind = OrderedDict if isinstance(target, OrderedDict) else dict
        for key in now:
            if key not in self.content:
                kind.__delitem__(target, key)
        for key, value in self.content.items():
            if now.get(key, GONE) is not value:
                kind.__setitem__(target, key, value)
        if list(map(id, self.now())) != list(map(id, self.content)):
            for key, value in self.content.items():
                kind.pop(target, key, None)
                kind.__setitem__(target, key, value)

    def _as_it_was(self, now: dict[Any, Any]) -> bool:
        was = self.content
        return len(was) == len(now) and same_objects(was, now) and same_objects(was.values(), now.values())


class Elements:
    """The elements of a list, deque or set."""

    def __init__(self, name: str, owner: Any) -> None:
        self.name, self.owner = name, owner
        self.content: Any = self.now()

    def now(self) -> Any:
        """The content at present."""
        return set(self.owner) if isinstance(self.owner, set) else list(self.owner)

    def changed(self, alike: Alike) -> Mapping[str, Any]:
        """What differs by value."""
        return {} if self._as_it_was() or alike(self.content, self.now()) else {self.name: self.owner}

    def restore(self) -> None:
        """Puts the very objects back."""
        if self._as_it_was():
            return
        if isinstance(self.owner, list):
            list.__setitem__(self.owner, slice(None), self.content)
            return
        kind: Any = set if isinstance(self.owner, set) else deque
        kind.clear(self.owner)
        (kind.update if kind is set else kind.extend)(self.owner, self.content)

    def _as_it_was(self) -> bool:
        owner, was = self.owner, self.content
        if isinstance(was, set):
            return {id(x) for x in owner} == {id(x) for x in was}
        return len(owner) == len(was) and same_objects(owner, was)


class Slots:
    """The `__slots__` of an object."""

    def __init__(self, name: str, owner: Any, names: tuple[str, ...]) -> None:
        self.name, self.owner, self.names = name, owner, names
        self.content: dict[str, Any] = self.now()

    def now(self) -> dict[str, Any]:
        """The content at present."""
        return {name: getattr(self.owner, name, GONE) for name in self.names}

    def changed(self, alike: Alike) -> Mapping[str, Any]:
        """What differs by value."""
        now = self.now()
        return {f"{self.name}.{key}": now[key] for key, was in self.content.items() if not alike(was, now[key])}

    def restore(self) -> None:
        """Puts the very objects back."""
        for key, value in self.now().items():
            was = self.content[key]
            if was is not value:  # object's own setter: the class may be frozen
                if was is GONE:
                    object.__delattr__(self.owner, key)
                else:
                    object.__setattr__(self.owner, key, was)


class Value:
    """An object with a state that is read and written as one value: arrays, generators of random numbers."""

    def __init__(self, name: str, owner: Any, read: Callable[[Any], Any], write: Callable[[Any, Any], Any]) -> None:
        self.name, self.owner, self.read, self.write = name, owner, read, write
        self.content = read(owner)

    def now(self) -> Any:
        """The content at present."""
        return self.read(self.owner)

    def changed(self, alike: Alike) -> Mapping[str, Any]:
        """What differs by value."""
        return {} if alike(self.content, self.now()) else {self.name: self.owner}

    def restore(self) -> None:
        """Puts the very objects back."""
        if not equal_values(self.content, self.now()):
            self.write(self.owner, self.content)


def equal_values(a: Any, b: Any) -> bool:
    """Equality of states: arrays bit for bit, tensors and constants by value, NaN equal to NaN."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and torch.equal(a, b)
    if is_array(a):
        return is_array(b) and (a.dtype, a.shape) == (b.dtype, b.shape) and a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(equal_values(a[k], b[k]) for k in a)
    return type(a) is type(b) and bool(a == b or (a != a and b != b))  # noqa: PLR0124  NaN


def is_array(value: Any) -> bool:
    """Whether `value` is a NumPy array; does not import NumPy."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def value_node(name: str, value: Any) -> Value | None:
    """The node of an array or a generator, None for other objects. Arrays that cannot be written need none."""
    if is_array(value):
        return Value(name, value, lambda a: a.copy(), _write_array) if value.flags.writeable else None
    if isinstance(value, torch.Generator):
        return Value(name, value, torch.Generator.get_state, torch.Generator.set_state)
    if isinstance(value, random.Random):
        return Value(name, value, lambda r: r.getstate(), lambda r, state: r.setstate(state))
    bits = getattr(value, "bit_generator", None)
    if type(value).__module__.startswith("numpy.random") and bits is not None:
        return Value(name, bits, lambda b: b.state, _write_bits)
    return None


def _write_array(array: Any, saved: Any) -> None:
    array[...] = saved


def _write_bits(bits: Any, saved: Any) -> None:
    bits.state = saved
