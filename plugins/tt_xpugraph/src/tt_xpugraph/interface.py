"""What torch offers for graphs on one device, under one face: two device types, and two generations of the interface."""

from __future__ import annotations

import contextlib
import functools
import random
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import attrs
import torch

Pool = Any
"""An opaque token of torch: graphs that name one pool share memory."""

_OWN_GRAPHS = {"cuda": "CUDAGraph", "xpu": "XPUGraph"}
_ERROR_MODE = {"cuda": "thread_local"}
"""What other threads do must not break a capture, nor a capture break them. XPU has one mode only."""


@attrs.frozen(kw_only=True)
class Interface:
    """Graphs, streams and memory of one device.

    Attributes:
        device: the device, with its index.
        name: what makes graphs, for people: `torch.accelerator.Graph`, `torch.cuda.CUDAGraph`, `torch.xpu.XPUGraph`.
        begin: `begin(pool)` makes a graph that captures the current stream from now on.
        module: torch's module of the device type.
    """

    device: torch.device
    name: str
    begin: Callable[[Pool], Any]
    module: Any

    def current(self) -> Any:
        """The caller's stream on this device."""
        return self.module.current_stream(self.device)

    def raw(self) -> Callable[[], int]:
        """What tells the caller's stream as a number, ten times as fast as an object: what Inductor's own code asks.

        0 is CUDA's default stream, which nobody can capture; -1 is unknown, as on an XPU, where nobody could try it.
        """
        ask = getattr(torch._C, "_cuda_getCurrentRawStream", None) if self.device.type == "cuda" else None
        return (lambda: -1) if ask is None else functools.partial(ask, self.device.index)

    def stream(self) -> Any:
        """A side stream."""
        return self.module.Stream(self.device)

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """A block in which `stream` is the current one."""
        context: AbstractContextManager[Any] = self.module.stream(stream)
        return context

    def capturing(self) -> bool:
        """Whether somebody captures the current stream."""
        return bool(self.module.is_current_stream_capturing())

    def pool(self) -> Pool:
        """A pool that no graph has used."""
        return self.module.graph_pool_handle()

    def mend(self, pool: Pool) -> None:
        """After a capture that the device called invalid: puts right what torch leaves behind. On a side stream.

        Ending such a capture raises before torch stops sending allocations to the pool, gives the pool back, and tells
        the random generators that nothing is captured any more. The first two are asked for by the functions that torch
        itself uses for them; the third is what a capture that succeeds does at its end.

        Args:
            pool: of the failed capture, whose hold on it is given back.
        """
        for what in ("endAllocateToPool", "releasePool"):
            undo = getattr(torch._C, f"_{self.device.type}_{what}", None)
            if undo is not None:
                with contextlib.suppress(RuntimeError):  # it was done already
                    undo(self.device.index, pool)
        with contextlib.suppress(RuntimeError):
            graph = self.begin(self.pool())  # an empty one does
            graph.capture_end()
            graph.reset()

    def synchronize(self) -> None:
        """Waits for all work of the device."""
        self.module.synchronize(self.device)

    def generators(self) -> tuple[Any, ...]:
        """The states of the generators that a forward may draw from; `restore` takes them."""
        numpy = sys.modules.get("numpy")
        return (
            torch.random.get_rng_state(),
            self.module.get_rng_state(self.device),
            random.getstate(),
            None if numpy is None else numpy.random.get_state(legacy=False),
        )

    def restore(self, states: tuple[Any, ...]) -> None:
        """Puts the generators back."""
        host, own, python, array = states
        torch.random.set_rng_state(host)
        self.module.set_rng_state(own, self.device)
        random.setstate(python)
        if array is not None:
            sys.modules["numpy"].random.set_state(array)

    def bytes_of(self, pool: Pool) -> int | None:
        """Bytes that the device holds for a pool, None where torch does not tell."""
        snapshot = getattr(self.module, "memory_snapshot", None)
        if snapshot is None:
            return None
        mine = [each for each in snapshot() if tuple(each.get("segment_pool_id", ())) == tuple(pool)]
        return sum(int(each["total_size"]) for each in mine)


def interface_of(device: torch.device) -> Interface | None:
    """The graph interface for `device`: the common one where torch has it for this device type, else the type's own.

    Returns:
        None where torch has neither.
    """
    module = getattr(torch, device.type, None)
    own = getattr(module, _OWN_GRAPHS.get(device.type, ""), None)
    common = getattr(torch.accelerator, "Graph", None)
    if common is not None and _is_current(device):
        name, begin = "torch.accelerator.Graph", _common(common, _ERROR_MODE.get(device.type, "default"))
    elif own is not None:
        name, begin = f"torch.{device.type}.{_OWN_GRAPHS[device.type]}", _own(own, _ERROR_MODE.get(device.type))
    else:
        return None
    return Interface(device=_indexed(device, module), name=name, begin=begin, module=module)


def is_on(place: torch.device, device: torch.device) -> bool:
    """Whether a tensor at `place` is where the graph runs."""
    return place == device


def _is_current(device: torch.device) -> bool:
    """Whether torch's common interface means this device type: it serves one type a process."""
    current = torch.accelerator.current_accelerator()
    return current is not None and current.type == device.type


def _indexed(device: torch.device, module: Any) -> torch.device:
    return device if device.index is not None else torch.device(device.type, module.current_device())


def _common(kind: Any, mode: str) -> Callable[[Pool], Any]:
    def begin(pool: Pool) -> Any:
        graph = kind(pool=pool, capture_error_mode=mode)
        graph.capture_begin()
        return graph

    return begin


def _own(kind: Any, mode: str | None) -> Callable[[Pool], Any]:
    extra = {} if mode is None else {"capture_error_mode": mode}

    def begin(pool: Pool) -> Any:
        graph = kind()
        graph.capture_begin(pool=pool, **extra)
        return graph

    return begin
