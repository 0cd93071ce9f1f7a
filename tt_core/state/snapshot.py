"""The state of an object at one moment: by value, and put back as the very objects."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from tt_core.state import rng
from tt_core.state.bits import identical
from tt_core.state.find import find
from tt_core.state.nodes import Elements, Items, Node, Slots, equal_values, is_array, value_node
from tt_core.state.tensors import TensorState
from tt_core.state.walk import has_attributes, join, parts, plain, slots_of, step_of

_ENTRIES = ("_parameters", "_buffers", "_modules")


def take(obj: Any, *, like: Snapshot | None = None) -> Snapshot:
    """The state of `obj` now.

    Seen are parameters, buffers (non-persistent too), tensors in plain attributes, scalar attributes, containers,
    attributes of objects inside, training flags, hook dictionaries, `requires_grad`, `grad`, the identity of every
    entry, and the generators of random numbers (CPU, devices in use, Python, NumPy). Not seen: variables in closures,
    objects of the standard library and of torch's machinery, an instance's `forward`.

    Args:
        obj: a module or any object.
        like: a snapshot of the same tensors; its copies are shared where they are still right.

    Returns:
        A snapshot that holds one copy of every tensor, on the tensor's device.
    """
    return Snapshot(obj, like)


@contextlib.contextmanager
def kept(obj: Any) -> Iterator[Snapshot]:
    """Leaves the state of `obj` as it was, also when the block raises."""
    snapshot = take(obj)
    try:
        yield snapshot
    finally:
        snapshot.restore()


class Snapshot:
    """The state of an object as it was when taken. Made by `take`."""

    def __init__(self, obj: Any, like: Snapshot | None = None) -> None:
        self._like = like._tensors if like is not None else {}
        self._tensors: dict[int, TensorState] = {}
        self._nodes: list[Node] = []
        self._content: dict[int, Any] = {}
        self._queue: deque[tuple[str, Any]] = deque([("", obj)])
        self._seen: dict[int, Any] = {}  # holds what it names: an id is only unique while its object lives
        for found in find(obj):
            self._module(found.path, found.module)
        while self._queue:
            self._value(*self._queue.popleft())
        self._like = {}
        self._rng = rng.states()

    def changed(self) -> Mapping[str, Any]:
        """What differs by value from when the snapshot was taken: dotted name -> the value now (not a copy).

        A grown or shrunk container counts as a whole; a deleted attribute has the value `"<deleted>"`. Generators of
        random numbers that belong to no attribute are not reported.
        """
        found: dict[str, Any] = {}
        for node in self._nodes:
            found |= node.changed(self._alike)
        for state in self._tensors.values():
            if state.name not in found and state.changed():
                found[state.name] = state.tensor
        return found

    def restore(self) -> None:
        """Puts everything back: the very objects in their places, values in place, generators of random numbers.

        Compares first and writes only what differs, so storage addresses stay, and versions where nothing was written.
        """
        for node in self._nodes:
            node.restore()
        for state in self._tensors.values():
            state.restore()
        rng.restore(self._rng)

    @property
    def tensors(self) -> Mapping[str, torch.Tensor]:
        """The tensors of the object by dotted name, as objects: what a result may share memory with."""
        return MappingProxyType({state.name: state.tensor for state in self._tensors.values()})

    def _module(self, path: str, module: nn.Module) -> None:
        self._seen[id(module)] = module
        if isinstance(module, torch.jit.ScriptModule):
            named = [*module.named_parameters(prefix=path), *module.named_buffers(prefix=path)]
            self._queue.extend((name.removeprefix("."), tensor) for name, tensor in named)
            return
        self._add(Items(path, module, attributes=True, step=_attribute))
        for name in _ENTRIES:
            entries = vars(module).get(name)
            if isinstance(entries, dict):
                self._seen[id(entries)] = entries
                self._add(Items(path, entries, attributes=False, step=_attribute))
                for key, value in entries.items():
                    self._tensor_or_later(join(path, f".{key}"), value)
        for name, value in list(vars(module).items()):
            if name not in _ENTRIES and name != "forward":
                self._later(join(path, f".{name}"), value)

    def _tensor_or_later(self, name: str, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            self._tensor(name, value)
        else:
            self._later(name, value)

    def _later(self, name: str, value: Any) -> None:
        if not plain(value) and id(value) not in self._seen:
            self._queue.append((name, value))

    def _value(self, name: str, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            self._tensor(name, value)
            return
        if id(value) in self._seen:
            return
        self._seen[id(value)] = value
        for node in _nodes_of(name, value):
            self._add(node)
        for step, part in parts(value):
            self._later(join(name, step), part)

    def _tensor(self, name: str, tensor: torch.Tensor) -> None:
        if id(tensor) in self._tensors:
            return
        if hasattr(tensor, "__tensor_flatten__"):  # a wrapper: its values are in the tensors inside
            for inner in tensor.__tensor_flatten__()[0]:
                self._tensor(f"{name}.{inner}", getattr(tensor, inner))
            self._seen[id(tensor)] = tensor
            return
        known = self._like.get(id(tensor))
        shared = known.copy if known is not None and known.tensor is tensor else None
        self._tensors[id(tensor)] = state = TensorState(name, tensor, shared)
        if state.grad is not None:
            self._tensor(f"{name}.grad", state.grad)

    def _add(self, node: Any) -> None:
        self._nodes.append(node)
        self._content.setdefault(id(node.owner), []).append(node.content)

    def _alike(self, was: Any, now: Any) -> bool:
        """Whether a value held before equals one held now. The very same object reports its own changes."""
        if was is now:
            return True
        if type(was) is not type(now) and not isinstance(was, torch.Tensor):
            return False
        if isinstance(was, torch.Tensor):
            state = self._tensors.get(id(was))
            return isinstance(now, torch.Tensor) and identical(state.copy if state else was, now.detach())
        return self._alike_objects(was, now)

    def _alike_objects(self, was: Any, now: Any) -> bool:
        content = self._content.get(id(was), ())
        if is_array(was):
            return equal_values(content[0] if content else was, now)
        if isinstance(was, dict | list | tuple | deque | set | frozenset):
            return self._alike_contents(content[0] if content else was, now)
        if plain(was) or isinstance(was, nn.Module) or not has_attributes(was):
            return equal_values(was, now)
        return self._alike_contents(content[0] if content else vars(was), vars(now))

    def _alike_contents(self, was: Any, now: Any) -> bool:
        if len(was) != len(now):
            return False
        if isinstance(was, dict):
            return all(key in now and self._alike(value, now[key]) for key, value in was.items())
        if isinstance(was, set | frozenset):
            return bool(was == now)
        return all(self._alike(x, y) for x, y in zip(was, now, strict=True))


def _nodes_of(name: str, value: Any) -> Iterator[Node]:
    if isinstance(value, dict):
        yield Items(name, value, attributes=False)
    elif isinstance(value, list | deque | set):
        yield Elements(name, value)
    if has_attributes(value):
        yield Items(name, value, attributes=True, step=_attribute)
    if slots := slots_of(value):
        yield Slots(name, value, tuple(step[1:] for step, _ in slots))
    node = value_node(name, value)
    if node is not None:
        yield node


def _attribute(name: str, key: Any) -> str:
    return join(name, f".{key}" if isinstance(key, str) else step_of(key))
