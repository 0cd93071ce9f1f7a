"""One graph: its inputs in memory of its own, the work captured from a side stream, its results."""

from __future__ import annotations

import contextlib
import gc
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import attrs
import torch

import tt_core as tt
from tt_xpugraph.interface import Interface, Pool
from tt_xpugraph.lane import Lane
from tt_xpugraph.outlet import Outlet, outlet

WARM_UPS = 3
"""Runs before a capture: libraries load kernels, choose algorithms and allocate workspaces in the first ones."""

Run = Callable[[Sequence[torch.Tensor]], Any]


@attrs.frozen(kw_only=True, eq=False)
class Captured:
    """A graph that may be replayed.

    Attributes:
        graph: torch's graph.
        inputs: what it reads: the caller's tensors are copied into these.
        outputs: what it writes, the distinct result tensors.
        take: copies the outputs.
        result: what the unit returned while it was captured, made of `outputs` and `inputs`.
    """

    graph: Any
    inputs: tuple[torch.Tensor, ...]
    outputs: tuple[torch.Tensor, ...]
    take: Outlet
    result: Any


def capture(
    interface: Interface,
    lane: Lane,
    run: Run,
    given: Sequence[torch.Tensor],
    pool: Pool | None,
    watch: Callable[[], AbstractContextManager[Any]],
) -> Captured:
    """Captures `run` for the sizes and strides of `given`. The lane's lock is held.

    Streams are ordered both ways; generators are left as they were; a capture that fails is ended, so that the device
    stays usable.

    Args:
        interface: of the device.
        lane: of the device.
        run: maps input tensors to the unit's result.
        given: the inputs of a call; only read.
        pool: the memory to share; None: memory of its own.
        watch: what stands around the run that is captured, and may stop it before the device has to.

    Raises:
        RuntimeError: whatever torch says: the work needs the host, memory is out, ...
        BuildRefusedError: what `watch` says.
    """
    caller = interface.current()
    states = interface.generators()
    try:
        with torch.inference_mode(False), torch.no_grad(), _cast_anew():
            inputs = tuple(_place_for(tensor) for tensor in given)
            lane.side.wait_stream(caller)
            with interface.on(lane.side), _calm():
                for _ in range(WARM_UPS):
                    run(inputs)
                graph, result = _captured(interface, run, inputs, pool, watch)
            caller.wait_stream(lane.side)
            outputs = _distinct(result, inputs)
            return Captured(graph=graph, inputs=inputs, outputs=outputs, take=outlet(outputs), result=result)
    finally:
        interface.restore(states)


def _place_for(tensor: torch.Tensor) -> torch.Tensor:
    """Memory for an input, with its sizes and strides, and its values: indices must be valid ones."""
    return torch.empty_like(tensor, requires_grad=False).copy_(tensor)


def _captured(
    interface: Interface,
    run: Run,
    inputs: tuple[torch.Tensor, ...],
    pool: Pool | None,
    watch: Callable[[], AbstractContextManager[Any]],
) -> tuple[Any, Any]:
    torch.clear_autocast_cache()  # a weight that was cast before would be read from memory that is freed
    own = interface.pool() if pool is None else pool
    graph = interface.begin(own)
    try:
        with watch():
            result = run(inputs)
    except BaseException:
        _abandon(interface, graph, own)
        raise
    try:
        graph.capture_end()
    except RuntimeError:
        _abandon(interface, graph, own)
        raise
    return graph, result


def _abandon(interface: Interface, graph: Any, pool: Pool) -> None:
    """Ends a capture that failed. The device may have called it invalid, and then says so once more."""
    try:
        graph.capture_end()
    except RuntimeError:
        interface.mend(pool)
    with contextlib.suppress(RuntimeError):
        graph.reset()


def _distinct(result: Any, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """The tensors of a result in order, each once, without inputs that are returned as they are."""
    known = {id(tensor) for tensor in inputs}
    found: list[torch.Tensor] = []
    for leaf in tt.flatten(result)[0]:
        if isinstance(leaf, torch.Tensor) and id(leaf) not in known:
            known.add(id(leaf))
            found.append(leaf)
    return tuple(found)


@contextlib.contextmanager
def _cast_anew() -> Iterator[None]:
    """Under autocast, weights that are cast while capturing are in the graph's memory: nobody else may find them."""
    torch.clear_autocast_cache()
    try:
        yield
    finally:
        torch.clear_autocast_cache()


@contextlib.contextmanager
def _calm() -> Iterator[None]:
    """No garbage collection, which might free another graph in the middle of a capture; no words about empty graphs."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*[Gg]raph is empty.*")
            yield
    finally:
        if collecting:
            gc.enable()
