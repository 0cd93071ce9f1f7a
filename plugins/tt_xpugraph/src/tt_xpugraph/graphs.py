"""All graphs of one unit and call key: one for each combination of sizes and strides, up to a limit."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch

import tt_core as tt
from tt_xpugraph.capture import Captured, capture
from tt_xpugraph.interface import Interface
from tt_xpugraph.lane import Lane
from tt_xpugraph.options import Options
from tt_xpugraph.preflight import strict

Key = tuple[Any, ...]
_CAPTURING = "the caller captures a graph of their own"
Fits = Callable[..., bool]
Packed = Callable[[tuple[torch.Tensor, ...]], Any]
Overlapped = Callable[[Callable[[], object], tuple[torch.Tensor, ...]], Any]
_NOTHING = (None, lambda *_: False)
"""No call before."""


class Graphs:
    """Captures and replays. Calls that no graph may serve run what the graphs were captured from: another backend's
    callable, or the original forward, which is the dispatcher's to call (`tt.DeclinedError`).

    Attributes:
        without: how many calls in service ran without a graph.
        options: how many graphs, and whose the results are.
    """

    def __init__(
        self,
        unit: tt.Unit,
        flat: tt.Flat,
        inner: Callable[..., Any],
        interface: Interface,
        lane: Lane,
        options: Options,
        *,
        fixed: bool,
    ) -> None:
        """See the class.

        Args:
            unit: the unit.
            flat: the unit as a function of tensors.
            inner: what is captured, with the unit's own signature.
            interface: of the device.
            lane: of the device.
            options: how many graphs, and whose the results are.
            fixed: whether all calls have the same sizes: whoever calls sees to that.
        """
        self.without, self.options, self._fixed = 0, options, fixed
        self._path, self._flat, self._inner = unit.path, flat, inner
        # compiled code that is watched is not what was compiled
        self._eager = inner == unit.forward
        self._interface, self._lane = interface, lane
        self._known: dict[Key, Captured | str] = {}  # a string: why calls of these sizes run without a graph
        self._last: list[Any] = [_NOTHING]
        self._held: tuple[Any, ...] = ()
        self._warned = self._closed = False

    @property
    def captured(self) -> list[Captured]:
        """The graphs there are."""
        return [each for each in self._known.values() if isinstance(each, Captured)]

    @property
    def constants(self) -> tuple[Any, ...]:
        """The arguments that are no tensors, in key order."""
        arguments = self._flat.arguments
        return tuple(leaf for i, leaf in enumerate(arguments.leaves) if i not in arguments.places)

    @property
    def bytes_held(self) -> int | None:
        """Bytes of the graphs' pool and of their inputs, None where torch does not tell."""
        graphs = self.captured
        pool = self._interface.bytes_of(graphs[0].graph.pool()) if graphs else 0
        inputs = sum(tensor.untyped_storage().nbytes() for each in graphs for tensor in each.inputs)
        return None if pool is None else pool + inputs

    def hold(self, tensors: Sequence[torch.Tensor]) -> None:
        """Keeps tensors alive whose addresses are in the graphs."""
        self._held = (*self._held, *tensors)

    def add(self, given: tuple[torch.Tensor, ...]) -> bool:
        """Captures a graph for the sizes and strides of `given`; False where the limit is reached.

        Raises:
            RuntimeError: what torch said to the capture.
            BuildRefusedError: the result is put together in another way than in eager.
        """
        with self._lane.lock:
            key = _key(given)
            if key not in self._known:
                if len(self._known) >= self.options.graphs:
                    return False
                self._known[key] = self._capture(given)
            return True

    def service(self) -> tuple[Callable[..., Any], Packed, Overlapped]:
        """What serves calls in every spelling that the unit takes, what takes their tensors, and what has time meanwhile."""
        pack, unpack = self._flat.pack, self._flat.unpack
        lane, lock, enter, find = self._lane, self._lane.lock, self._lane.enter, self._find
        raw = lane.raw
        owned, eager = self.options.outputs == "owned", self._eager
        last = self._last

        def overlapped(meanwhile: Callable[[], object], given: tuple[torch.Tensor, ...]) -> Any:
            with lock:
                found, fits = last[0]
                if not fits(*given):  # the graph of the call before, in a third of the time of a look-up
                    found = find(given)
                if found.__class__ is Captured and ((lane.default and raw() == 0) or enter()):
                    for place, tensor in zip(found.inputs, given):  # noqa: B905  one length by construction; 0.1 us
                        place.copy_(tensor)
                    found.graph.replay()
                    meanwhile()
                    return unpack(found.take() if owned else found.outputs, given)
            self.without += 1
            if eager:
                raise tt.DeclinedError(found if isinstance(found, str) else _CAPTURING)
            result = self._run(given)
            meanwhile()
            return result

        packed = partial(overlapped, _idle)

        def call(*args: Any, **kwargs: Any) -> Any:
            return packed(pack(*args, **kwargs))

        service: Any = call
        service.tt_graphs = self  # whom `stored.dump` asks
        return call, packed, overlapped

    def close(self) -> None:
        """Gives the graphs' memory back to torch, once the device has finished with it."""
        with self._lane.lock:
            graphs = self.captured
            self._known.clear()
            self._last[0] = _NOTHING
            self._held, self._closed = (), True
            if graphs:
                self._interface.synchronize()
            for each in graphs:
                each.graph.reset()

    def _find(self, given: tuple[torch.Tensor, ...]) -> Captured | str:
        """The graph for sizes other than the last ones, or why there is none; captured now if need be."""
        key = _key(given)
        found = self._known.get(key)
        if found is None:
            found = self._late(key, given)
        if isinstance(found, Captured):
            self._last[0] = (found, _fits(given, fixed=self._fixed))
        return found

    def _late(self, key: Key, given: tuple[torch.Tensor, ...]) -> Captured | str:
        """A graph for sizes that were not recorded, captured in service; or why the call runs without one."""
        if self._closed:
            raise tt.TTError("this built was closed")
        if self._interface.capturing():
            return _CAPTURING
        if len(self._known) >= self.options.graphs:
            return self._say(
                f"its {self.options.graphs} graphs are taken; calls of other sizes or strides run without one; "
                "the option graphs= sets how many are captured"
            )
        try:
            self._known[key] = self._capture(given)
        except RuntimeError as error:
            self._known[key] = self._say(f"calls of some sizes run without a graph: {_line(error)}")
        return self._known[key]

    def _capture(self, given: tuple[torch.Tensor, ...]) -> Captured:
        graphs = self.captured
        # XPU cannot open a pool again whose last graph is gone: the pool is asked of a graph that lives
        pool = graphs[0].graph.pool() if graphs else None
        self._lane.enter()
        made = capture(self._interface, self._lane, self._run, given, pool, self._watch)
        try:
            self._same_shape_of_result(made)
        except tt.BuildRefusedError:
            made.graph.reset()
            raise
        return made

    def _watch(self) -> AbstractContextManager[Any]:
        return strict(self._interface.device) if self._eager else contextlib.nullcontext()

    def _run(self, tensors: Sequence[torch.Tensor]) -> Any:
        args, kwargs = self._flat.arguments.rebuilt(tensors)
        return self._inner(*args, **kwargs)

    def _same_shape_of_result(self, made: Captured) -> None:
        """Whether `unpack` puts the outputs together as the unit itself did.

        Raises:
            BuildRefusedError: it does not: containers, constants, or which results are one tensor, differ.
        """
        if not made.outputs:
            raise tt.BuildRefusedError("there is nothing to capture: it computes no tensor")
        leaves, tree = tt.flatten(made.result)
        if len(made.outputs) != len(self._flat.outputs):
            raise tt.BuildRefusedError("its results share tensors in another way than in eager")
        again, other = tt.flatten(self._flat.unpack(made.outputs, made.inputs))
        if tree != other or not all(map(_same, leaves, again)):
            raise tt.BuildRefusedError("its result is put together in another way than in eager")

    def _say(self, why: str) -> str:
        """Warns once, unless the call is handed back: then the dispatcher does."""
        if not self._warned and not self._eager:
            self._warned = True
            warnings.warn(f"unit {self._path!r}: {why}", tt.FallbackWarning, stacklevel=6)
        return why


def _idle() -> None:
    """What the host does meanwhile, where nobody has anything to do."""


def _fits(like: Sequence[torch.Tensor], *, fixed: bool) -> Fits:
    """Whether tensors have the sizes and strides of `like`: a question of every call, before anything is launched.

    Reading sizes and strides takes 1 us of a call whose graph takes 130 us; whether memory is contiguous is one flag.
    """
    if fixed and all(tensor.is_contiguous() for tensor in like):
        if len(like) == 1:
            return torch.Tensor.is_contiguous
        return lambda *given: all([tensor.is_contiguous() for tensor in given])  # noqa: C419  a generator takes longer
    sizes, strides = [tensor.shape for tensor in like], [tensor.stride() for tensor in like]
    return lambda *given: [t.shape for t in given] == sizes and [t.stride() for t in given] == strides


def _key(given: Sequence[torch.Tensor]) -> Key:
    return tuple([(tensor.shape, tensor.stride()) for tensor in given])


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
        return a is b
    return type(a) is type(b) and (bool(a == b) or (a != a and b != b))  # noqa: PLR0124  NaN equals itself here


def _line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:200] if lines else type(error).__name__
