"""One pass over the dataset with every module watched."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import attrs
import torch
from torch import nn
from torch.nn.utils.parametrize import ParametrizationList

from tt_core.callkey import Opaque, describe, evidence, key_of, tensors_of
from tt_core.state import Found, Snapshot, find, patched, take
from tt_core.survey.inspection import Inspection, Seen
from tt_core.values import Call, CallKey, Unit

_MAX_KEYS = 64
"""Call keys noted of one module."""


class Passes(Protocol):
    """What a survey needs of a dataset."""

    @property
    def samples(self) -> tuple[Any, ...]:
        """One entry a sample."""
        ...

    def each(self, obj: Any) -> Iterator[Any]:
        """Runs one pass from a fresh copy, sample by sample."""
        ...


def inspect(obj: Any, feed: Passes, now: Callable[[], float], *, within: Snapshot | None = None) -> Inspection:
    """Runs one pass with the `forward` of every module watched, under `torch.no_grad()`; no trace is left.

    Hooks would miss `self.model.forward(...)`. Parametrizations count as part of the module whose weights they compute,
    scripted modules as part of what calls them. The state is put back, and so it is when the pass raises.

    Args:
        obj: the user's object.
        feed: its samples.
        now: seconds of a monotonic clock; on a device it should synchronise.
        within: the caller's snapshot of `obj`, taken in the present state: saves a second copy.

    Raises:
        SampleError: the object cannot run a sample.
    """
    found = find(obj)
    watch = _Watch(now=now, notes={f.path: _Note(found=f, forward=f.module.forward) for f in found if _watchable(f)})
    snapshot = take(obj) if within is None else within
    try:
        with torch.no_grad(), patched([(note.found.module, watch.spy(note)) for note in watch.notes.values()]):
            watch.run(feed, obj)
        changed = tuple(sorted(snapshot.changed()))
    finally:
        snapshot.restore()
    return _inspection(found, watch, len(feed.samples), changed)


def _watchable(found: Found) -> bool:
    inner = ".parametrizations." in f".{found.path}."
    return not inner and not isinstance(found.module, torch.jit.ScriptModule | ParametrizationList)


@attrs.define
class _Note:
    """What is seen of one module."""

    found: Found
    forward: Callable[..., Any]
    calls: int = 0
    total_s: float = 0.0
    own_s: float = 0.0
    depth: int = -1
    parent: str | None = None
    parents: dict[str, None] = attrs.field(factory=dict)
    children_executed: bool = False
    recursive: bool = False
    keys: dict[CallKey | Opaque, set[tuple[tuple[int, ...], ...]]] = attrs.field(factory=dict)


@attrs.define
class _Frame:
    """One running call: seconds of the modules inside it, and seconds that watching them cost."""

    note: _Note
    inner_s: float = 0.0
    watching_s: float = 0.0


@attrs.define
class _Watch:
    """The call stack of a pass, one of each thread; a thread that the model starts begins where the model is."""

    now: Callable[[], float]
    notes: dict[str, _Note]
    seconds: float = 0.0
    outside_s: float = 0.0
    root: _Frame = attrs.field(init=False)
    main: list[_Frame] = attrs.field(init=False)
    threads: dict[int, list[_Frame]] = attrs.field(factory=dict)

    def run(self, feed: Passes, obj: Any) -> None:
        """One pass; `seconds` and `outside_s` are known afterwards. The copy of the dataset is not counted."""
        self.root = _Frame(note=_Note(found=Found(path="", aliases=(), module=nn.Module()), forward=id))
        self.main = [self.root]
        self.threads = {threading.get_ident(): self.main}
        results = iter(feed.each(obj))
        began = self.now()
        for _ in results:
            pass
        self.seconds = self.now() - began - self.root.watching_s
        self.outside_s = max(0.0, self.seconds - self.root.inner_s)

    def spy(self, note: _Note) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """What wraps the forward of one module."""

        def wrap(forward: Callable[..., Any]) -> Callable[..., Any]:
            def watched(*args: Any, **kwargs: Any) -> Any:
                return self._call(note, forward, args, kwargs)

            return watched

        return wrap

    def _call(self, note: _Note, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        entered = self.now()
        stack = self.threads.get(threading.get_ident())
        if stack is None:
            stack = self.threads[threading.get_ident()] = list(self.main)
        _place(note, stack)
        _key(note, forward, Call(*args, **kwargs))
        frame, outer = _Frame(note=note), stack[-1]
        stack.append(frame)
        began = self.now()
        try:
            return forward(*args, **kwargs)
        finally:
            ended = self.now()
            stack.pop()
            total = ended - began - frame.watching_s
            note.calls += 1
            note.own_s += total - frame.inner_s
            if not any(other.note is note for other in stack):
                note.total_s += total  # seconds of a module inside itself are counted already
            outer.inner_s += total
            outer.watching_s += frame.watching_s + (began - entered) + (self.now() - ended)


def _place(note: _Note, stack: Sequence[_Frame]) -> None:
    """Where in the calls of the others this call is."""
    around = [frame.note for frame in stack[1:]]
    if any(other is note for other in around):
        note.recursive = True
    depth = len({id(other) for other in around} - {id(note)})
    outer = next((other for other in reversed(around) if other is not note), None)
    if outer is not None:
        outer.children_executed = True
        note.parents.setdefault(outer.found.path)
    if note.depth < 0 or depth < note.depth:
        note.depth, note.parent = depth, None if outer is None else outer.found.path


def _key(note: _Note, forward: Callable[..., Any], call: Call) -> None:
    key = key_of(forward, call, training=note.found.module.training)
    if key not in note.keys and len(note.keys) >= _MAX_KEYS:
        return
    sizes = note.keys.setdefault(key, set())
    if not isinstance(key, Opaque):
        sizes.add(tuple(tuple(tensor.shape) for tensor in tensors_of(forward, call)))


def _inspection(found: Iterable[Found], watch: _Watch, samples: int, changed: tuple[str, ...]) -> Inspection:
    ran = [note for note in watch.notes.values() if note.calls]
    executed = {note.found.path for note in ran}
    return Inspection(
        modules=tuple(_seen(note) for note in ran),
        idle=tuple(each.path for each in found if each.path not in executed),
        samples=samples,
        seconds=watch.seconds,
        outside_s=watch.outside_s,
        changed=changed,
        live=tuple(_unit(note) for note in ran),
    )


def _unit(note: _Note) -> Unit:
    found = note.found
    return Unit(
        path=found.path,
        aliases=found.aliases,
        module=found.module,
        forward=note.forward,
        depth=note.depth,
        parent=note.parent,
    )


def _seen(note: _Note) -> Seen:
    return Seen(
        path=note.found.path,
        aliases=note.found.aliases,
        kind=type(note.found.module).__name__,
        depth=note.depth,
        parent=note.parent,
        parents=tuple(note.parents),
        children_executed=note.children_executed,
        calls=note.calls,
        total_s=note.total_s,
        own_s=note.own_s,
        parameters=sum(parameter.numel() for parameter in note.found.module.parameters()),
        dtypes=_dtypes(note.found.module),
        keys=tuple(_text(key, sizes) for key, sizes in note.keys.items()),
        recursive=note.recursive,
    )


def _dtypes(module: nn.Module) -> tuple[str, ...]:
    elements: Counter[str] = Counter()
    for tensor in (*module.parameters(), *module.buffers()):
        elements[str(tensor.dtype).removeprefix("torch.")] += max(1, tensor.numel())
    return tuple(name for name, _ in elements.most_common())


def _text(key: CallKey | Opaque, sizes: Iterable[tuple[tuple[int, ...], ...]]) -> str:
    return key.reason if isinstance(key, Opaque) else describe(key, evidence(sorted(sizes)))
