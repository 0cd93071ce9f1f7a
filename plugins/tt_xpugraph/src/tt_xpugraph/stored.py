"""Graphs in a plan: which sizes there were, not the graphs. Nothing of a graph outlives its process; it is captured anew."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import torch
from torch import nn

import tt_core as tt
from tt_xpugraph.build import build
from tt_xpugraph.graphs import Graphs
from tt_xpugraph.options import Options

FORMAT = 1
SECONDS = 600.0
"""What a capture at load may take; it takes well under one."""
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")

Layout = tuple[tuple[int, ...], tuple[int, ...]]
"""Sizes and strides of one input."""


def dump(built: tt.Built) -> Mapping[str, Any]:
    """What `restore` needs, as JSON; no file is written.

    Args:
        built: of `build`, as it came or inside a chain; not closed.

    Returns:
        Options, constant arguments, and the sizes and strides of the inputs of each graph, those captured in service
        included. No values, no samples.

    Raises:
        BuildRefusedError: it was closed, or a constant argument cannot be said in JSON.
    """
    graphs: Graphs | None = getattr(built.call, "tt_graphs", None)
    if graphs is None or not graphs.captured:
        raise tt.BuildRefusedError("it was closed")
    return {
        "format": FORMAT,
        "options": attrs.asdict(graphs.options),
        "constants": [tt.flat.constant_form(value) for value in graphs.constants],
        "graphs": [[[list(x.shape), list(x.stride())] for x in each.inputs] for each in graphs.captured],
    }


def restore(
    unit: tt.Unit,
    key: tt.CallKey,
    covers: tt.Shapes | None,
    dumped: Mapping[str, Any],
    device: torch.device,
    inner: tt.Built | None,
) -> tt.Built:
    """Captures the graphs that `dump` saw, on made-up inputs: ones, and zeros where they are integers.

    Args:
        unit: the unit; it runs a few times.
        key: of the calls.
        covers: the sizes that the dumped built covered.
        dumped: what `dump` returned.
        device: where the unit is.
        inner: what to capture; None: the original forward.

    Raises:
        BuildRefusedError: another format, damage, or what `build` refuses.
    """
    with tt.flat.restoring(dumped, FORMAT, covers) as sizes:
        options = Options.of(dumped["options"])
        calls = _synthetic(unit, key, sizes, dumped)
    try:
        return build(unit, calls, device, options, inner, tt.Limits(seconds=SECONDS))
    except tt.BuildRefusedError:
        raise
    except Exception as error:
        reason = (
            f"it does not run on made-up inputs ({type(error).__name__}), and there are no others when it is loaded"
        )
        raise tt.BuildRefusedError(reason, "tune again") from error


def _synthetic(unit: tt.Unit, key: tt.CallKey, covers: tt.Shapes, dumped: Mapping[str, Any]) -> tt.Calls:
    constants = [tt.flat.read_constant(value) for value in dumped["constants"]]
    rows = [[_layout(*one) for one in row] for row in dumped["graphs"]]
    samples: list[tt.Sample] = []
    for row in rows:
        if not covers.admit([sizes for sizes, _ in row]):
            raise tt.BuildRefusedError("its sizes are not those that it covers")
        call = _call(unit.forward, key, row, constants)
        samples.append(tt.Sample(call=call, expected=tt.Observation(result=None), index=len(samples)))
    if not samples:
        raise tt.BuildRefusedError("it names no sizes")
    facts = tt.Facts(hooks_inside=_hooked(unit.module))
    return tt.Calls(key=key, shapes=covers, samples=tuple(samples), seen=len(samples), facts=facts)


def _hooked(module: nn.Module) -> bool:
    return any(vars(inner).get(name) for inner in module.modules() if inner is not module for name in _HOOKS)


def _layout(sizes: Sequence[Any], strides: Sequence[Any]) -> Layout:
    made = tuple(map(_count, sizes)), tuple(map(_count, strides))
    if len(made[0]) != len(made[1]):
        raise ValueError("as many strides as sizes are needed")
    return made


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError("sizes and strides are whole numbers from 0")
    return value


def _call(forward: Callable[..., Any], key: tt.CallKey, layouts: Sequence[Layout], constants: Sequence[Any]) -> tt.Call:
    tensors, others = iter(zip(key.tensors, layouts, strict=True)), iter(constants)
    leaves = [_made(*next(tensors)) if isinstance(leaf, tt.TensorLeaf) else next(others) for leaf in key.leaves]
    return tt.flat.spelled(inspect.signature(forward), tt.unflatten(key.tree, leaves))


def _made(leaf: tt.TensorLeaf, layout: Layout) -> torch.Tensor:
    """Values that any forward can take: an index must exist, a mask must let something through."""
    if len(layout[0]) != leaf.rank:
        raise ValueError("its inputs have other ranks than the call")
    whole = not (leaf.dtype.is_floating_point or leaf.dtype.is_complex or leaf.dtype is torch.bool)
    tensor = torch.empty_strided(*layout, dtype=leaf.dtype, device=leaf.device)
    return tensor.fill_(0 if whole else 1)
