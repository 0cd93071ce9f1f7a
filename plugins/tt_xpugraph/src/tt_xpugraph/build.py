"""A unit, or what another backend made of it, as a set of graphs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

import tt_core as tt
from tt_xpugraph.graphs import Graphs
from tt_xpugraph.interface import Interface, interface_of, is_on
from tt_xpugraph.lane import lane_of
from tt_xpugraph.options import Options
from tt_xpugraph.preflight import Seen, preflight

_UNUSUAL = {"sparse", "quantized", "subclass", "nested", "mkldnn"}


def build(
    unit: tt.Unit,
    calls: tt.Calls,
    device: torch.device,
    options: Options,
    inner: tt.Built | None,
    limits: tt.Limits,
) -> tt.Built:
    """Captures a graph for the sizes of each recorded call.

    Args:
        unit: its module runs the original forward.
        calls: the recorded calls; sizes between them are captured when they are first called.
        device: where the unit is.
        options: see `Options`.
        inner: what to capture; None: the original forward.
        limits: bytes that the graphs may hold.

    Returns:
        A built that reads weights at their addresses.

    Raises:
        BuildRefusedError: the unit cannot be captured, and why; the device is as usable as before.
    """
    interface = interface_of(device)
    if interface is None:
        raise tt.BuildRefusedError(f"torch {torch.__version__} has no graphs for {device.type}")
    if interface.capturing():
        raise tt.BuildRefusedError("the current stream is being captured", "tune before capturing a graph of your own")
    _refuse(unit, calls, interface)
    with _ambient(calls.key), _plain(interface):
        flat = tt.flatten_unit(unit, calls)
        seen = _watched(unit, calls, flat, interface)
        captured = unit.forward if inner is None else inner.call
        fixed = not calls.shapes.moving  # other sizes are not covered, and never come here
        graphs = Graphs(unit, flat, captured, interface, lane_of(interface), options, fixed=fixed)
        graphs.hold(seen.outside)
        taken = _fill(graphs, calls, flat, seen)
    return _built(graphs, calls, options, limits, taken, inner)


def _built(
    graphs: Graphs, calls: tt.Calls, options: Options, limits: tt.Limits, taken: int, inner: tt.Built | None
) -> tt.Built:
    held = graphs.bytes_held
    if limits.bytes is not None and held is not None and held > limits.bytes:
        graphs.close()
        raise tt.BuildRefusedError(f"the graphs hold {held:,} bytes, the limit is {limits.bytes:,}")
    call, packed, overlapped = graphs.service()
    return tt.Built(
        call=call,
        packed=packed,
        overlapped=overlapped,
        covers=calls.shapes,
        weights=tt.Weights.STORAGE,
        concurrent=options.outputs == "owned",
        fork_safe=False,
        bytes_held=held,
        notes=_notes(graphs, calls, options, taken),
        close=graphs.close,
        inner=inner,
    )


def _refuse(unit: tt.Unit, calls: tt.Calls, interface: Interface) -> None:
    """Refuses what is known to be wrong in a graph before anything runs."""
    facts = calls.facts
    if not calls.samples:
        raise tt.BuildRefusedError("no call was recorded: there are no sizes to capture for")
    if facts.writes_inputs:
        raise tt.BuildRefusedError("it writes to its inputs")
    if facts.hooks_inside:
        raise tt.BuildRefusedError("hooks inside would run once, while capturing", "remove them, or tune the parts")
    if kinds := sorted(facts.tensor_kinds & _UNUSUAL):
        raise tt.BuildRefusedError(f"it handles tensors of a kind that graphs do not hold: {', '.join(kinds)}")
    named = [*unit.module.named_parameters(), *unit.module.named_buffers()]
    places = [(name, tensor.device) for name, tensor in named] + [
        ("an input", leaf.device) for leaf in calls.key.tensors
    ]
    for name, place in places:
        if not is_on(place, interface.device):
            raise tt.BuildRefusedError(f"{name} is on {place}, not on {interface.device}")


def _watched(unit: tt.Unit, calls: tt.Calls, flat: tt.Flat, interface: Interface) -> Seen:
    """Watches the original forward on the first recorded call.

    Raises:
        BuildRefusedError: a tensor that it reads is not on the device.
    """
    inputs = flat.example(calls.samples[0])
    args, kwargs = flat.arguments.rebuilt(inputs)
    seen = preflight(lambda: unit.forward(*args, **kwargs), interface.device, inputs)
    if seen.host:
        raise tt.BuildRefusedError(seen.host[0], "a graph would hold its value: move it to the device as a buffer")
    return seen


def _fill(graphs: Graphs, calls: tt.Calls, flat: tt.Flat, seen: Seen) -> int:
    """Captures for every recorded call, the largest first, whose memory the others fit into; how many fitted the limit.

    Raises:
        BuildRefusedError: torch could not capture one of them.
    """
    inputs = sorted((flat.tensors(sample) for sample in calls.samples), key=_elements, reverse=True)
    try:
        return sum(graphs.add(given) for given in inputs)
    except tt.BuildRefusedError:
        graphs.close()
        raise
    except RuntimeError as error:
        graphs.close()
        raise _refusal(error, seen) from error


def _refusal(error: RuntimeError, seen: Seen) -> tt.BuildRefusedError:
    if isinstance(error, torch.OutOfMemoryError):
        return tt.BuildRefusedError(f"memory was out while capturing: {_line(error)}")
    said = f"it cannot be captured: {_line(error)}"
    return tt.BuildRefusedError(f"it cannot be captured: {seen.stops[0]}" if seen.stops else said)


def _line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def _elements(tensors: tuple[torch.Tensor, ...]) -> int:
    return sum(tensor.numel() for tensor in tensors)


def _notes(graphs: Graphs, calls: tt.Calls, options: Options, taken: int) -> tuple[str, ...]:
    count = len(graphs.captured)
    found = [f"{count} graph{'s' if count > 1 else ''}, {taken} of {len(calls.samples)} recorded calls"]
    if calls.shapes.moving:
        found.append(f"other sizes are captured when first called, up to {options.graphs} graphs; the rest run without")
    if options.outputs == "borrowed":
        found.append("results are borrowed: the next call overwrites them")
    return tuple(found)


@contextlib.contextmanager
def _ambient(key: tt.CallKey) -> Iterator[None]:
    """The autocast under which calls of `key` arrive; no gradients."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.no_grad())
        for kind, dtype in key.ambient.autocast:
            stack.enter_context(torch.autocast(kind, dtype))
        yield


@contextlib.contextmanager
def _plain(interface: Interface) -> Iterator[None]:
    """Generators are left as they were, whatever the runs of a build draw."""
    states = interface.generators()
    try:
        yield
    finally:
        interface.restore(states)
