"""A torch.xpu, a torch.cuda or a torch.accelerator.Graph for machines without a GPU: tensors stay on the CPU.

A graph records the operators of its capture and runs them again, writing into the very tensors that the capture made:
results are overwritten, inputs are read by address, and what was computed on the host is frozen, as on a device. It raises
wherever a real one does: `test_device.py` asks a real one the same questions. That a pool cannot be opened again after its
last graph is gone was claimed of XPU only; a CUDA device refused it just so.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_HOST = {"aten::_local_scalar_dense", "aten::is_nonzero", "aten::equal", "aten::nonzero"}


class FakeStream:
    """A stream; the device's log says who waited for whom."""

    def __init__(self, device: FakeDevice, number: int) -> None:
        self._device, self.number = device, number

    def wait_stream(self, other: FakeStream) -> None:
        self._device.log.append(("wait", self.number, other.number))


class _Recorder(TorchDispatchMode):
    def __init__(self, device: FakeDevice) -> None:
        super().__init__()
        self.device = device
        self.steps: list[tuple[Any, Any, Any, Any]] = []
        self.broken = ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func._schema.name in _HOST:
            self.broken = "operation not permitted when stream is capturing"
            raise RuntimeError(self.broken)
        if kwargs.get("generator") is not None:
            self.broken = "Attempt to increase offset for a CUDA generator not in capture mode."
            raise RuntimeError(self.broken)
        result = func(*args, **kwargs)
        made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        self.device.allocate(sum(t.untyped_storage().nbytes() for t in made))
        self.steps.append((func, args, kwargs, result))
        return result

    def again(self) -> None:
        """Runs every operator once more, into the memory of the first time."""
        with torch.no_grad():
            for func, args, kwargs, result in self.steps:
                if _is_view(func, args, result):
                    continue
                new = func(*args, **kwargs)
                if not func._schema.is_mutable:
                    for old, fresh in zip(tree_leaves(result), tree_leaves(new), strict=True):
                        if isinstance(old, torch.Tensor):
                            old.copy_(fresh)


def _is_view(func: Any, args: Any, result: Any) -> bool:
    if func._schema.is_mutable:
        return False
    given = {t.untyped_storage().data_ptr() for t in tree_leaves(args) if isinstance(t, torch.Tensor)}
    made = [t for t in tree_leaves(result) if isinstance(t, torch.Tensor)]
    return any(t.untyped_storage().data_ptr() in given for t in made if t.untyped_storage().nbytes())


class FakeDevice:
    """One device: streams, pools, a log of everything in order, and a limit on memory that captures may take.

    Attributes:
        log: ("wait", a, b), ("begin", stream), ("end", stream), ("replay", stream), ("reset",), ("synchronize",).
        bytes_left: what captures may still allocate.
        astray: the pool of an invalid capture, which torch goes on sending allocations to until it is told not to.
    """

    def __init__(self) -> None:
        self.log: list[tuple[Any, ...]] = []
        self.bytes_left = 1 << 40
        self.pools: dict[tuple[int, int], int] = {}
        self.captures = 0
        self.recording: _Recorder | None = None
        self.astray: tuple[int, int] | None = None
        self._numbers, self._handles = itertools.count(), itertools.count(1)
        self._local = threading.local()
        self.default = FakeStream(self, next(self._numbers))

    def allocate(self, count: int) -> None:
        if count > self.bytes_left:
            raise torch.OutOfMemoryError("out of memory. Tried to allocate some")
        self.bytes_left -= count

    def stream(self) -> FakeStream:
        return FakeStream(self, next(self._numbers))

    def current(self) -> FakeStream:
        return getattr(self._local, "stream", self.default)

    @contextlib.contextmanager
    def on(self, stream: FakeStream) -> Any:
        before, self._local.stream = self.current(), stream
        try:
            yield
        finally:
            self._local.stream = before

    def handle(self) -> tuple[int, int]:
        return (0, next(self._handles))

    def end_allocate(self, _index: int, pool: tuple[int, int]) -> None:
        if self.astray != pool:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
        self.astray = None

    def release(self, _index: int, pool: tuple[int, int]) -> None:
        self.pools[pool] -= 1

    def synchronize(self, *_: Any) -> None:
        if self.recording is not None:
            self.recording.broken = "operation not permitted when stream is capturing"
            raise RuntimeError(self.recording.broken)
        self.log.append(("synchronize",))


class FakeGraph:
    """What `CUDAGraph` and `XPUGraph` have in common."""

    device: FakeDevice

    def __init__(self) -> None:
        self._recorder: _Recorder | None = None
        self._stream: FakeStream | None = None
        self._pool: tuple[int, int] | None = None
        self._ready = False

    def capture_begin(self, pool: tuple[int, int] | None = None, **_: Any) -> None:
        device = self.device
        if self._recorder is not None:
            raise RuntimeError("This CUDAGraph instance already owns a captured graph.")
        if device.recording is not None:
            raise RuntimeError("Cannot register the state during capturing stage.")
        if device.current() is device.default:
            raise RuntimeError("CUDA graphs must be captured on a non-default stream.")
        if device.astray is not None:
            raise RuntimeError("allocations still go to the pool of a capture that was invalid")
        self._pool = self._open(pool)
        self._stream, self._recorder = device.current(), _Recorder(device)
        device.recording = self._recorder
        self._recorder.__enter__()
        device.log.append(("begin", self._stream.number))

    def _open(self, pool: tuple[int, int] | None) -> tuple[int, int]:
        device = self.device
        if pool is None:
            pool = device.handle()
        elif pool in device.pools and not device.pools[pool]:
            raise RuntimeError("it->second->use_count > 0 INTERNAL ASSERT FAILED")
        device.pools[pool] = device.pools.get(pool, 0) + 1
        return pool

    def capture_end(self) -> None:
        device = self.device
        if self._recorder is None or device.recording is not self._recorder:
            raise RuntimeError("the operation cannot be performed in the present state")
        if device.current() is not self._stream:
            raise RuntimeError("Capture must end on the same stream it began on.")
        device.recording = None
        self._recorder.__exit__(None, None, None)
        if self._recorder.broken:
            device.astray = self._pool
            raise RuntimeError("operation failed due to a previous error during capture")
        device.captures += 1
        device.log.append(("end", self._stream.number))
        self._ready = True

    def replay(self) -> None:
        if not self._ready or self._recorder is None:
            raise RuntimeError("Called CUDAGraph::replay without a preceding successful capture.")
        if self.device.recording is not None:
            raise RuntimeError("operation not permitted when stream is capturing")
        self.device.log.append(("replay", self.device.current().number))
        self._recorder.again()

    def reset(self) -> None:
        if self._ready and self._pool is not None:  # an invalid capture gives nothing back by itself
            self.device.pools[self._pool] -= 1
            self.device.log.append(("reset",))
        self._recorder, self._ready, self._pool = None, False, None

    def pool(self) -> tuple[int, int]:
        if not self._ready or self._pool is None:
            raise RuntimeError("Called CUDAGraph::pool() without a preceding successful capture.")
        return self._pool


def namespace(device: FakeDevice, graph_name: str) -> SimpleNamespace:
    """What stands for `torch.xpu` or `torch.cuda`."""
    kind = type(graph_name, (FakeGraph,), {"device": device})
    return SimpleNamespace(
        **{
            graph_name: kind,
            "is_available": lambda: True,
            "is_initialized": lambda: False,
            "device_count": lambda: 1,
            "current_device": lambda: 0,
            "current_stream": lambda _=None: device.current(),
            "Stream": lambda _=None: device.stream(),
            "stream": device.on,
            "synchronize": device.synchronize,
            "graph_pool_handle": device.handle,
            "is_current_stream_capturing": lambda: device.recording is not None,
            "get_rng_state": lambda _=None: torch.random.get_rng_state(),
            "set_rng_state": lambda state, _=None: torch.random.set_rng_state(state),
            "memory_snapshot": lambda: [{"segment_pool_id": pool, "total_size": 4096} for pool in device.pools],
        }
    )


def common(device: FakeDevice) -> type[FakeGraph]:
    """What stands for `torch.accelerator.Graph`: the pool and the mode belong to the graph."""

    class Graph(FakeGraph):
        def __init__(self, *, pool: Any = None, capture_error_mode: str = "default") -> None:
            super().__init__()
            self.wanted, self.mode = pool, capture_error_mode

        def capture_begin(self) -> None:  # type: ignore[override]
            super().capture_begin(self.wanted)

    Graph.device = device
    return Graph
