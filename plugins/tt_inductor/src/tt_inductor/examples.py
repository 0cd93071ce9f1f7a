"""What a unit is traced with: its largest recorded call."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch

import tt_core as tt


def largest(forward: Callable[..., Any], samples: Sequence[tt.Sample]) -> tt.Sample:
    """The largest sample, its tensors contiguous: a program is right for the strides it was exported with."""
    signature = inspect.signature(forward)
    trees = []
    for sample in samples:
        made = signature.bind(*sample.call.args, **sample.call.kwargs)
        trees.append(tt.flatten(dict(made.arguments)))
    at = max(range(len(trees)), key=lambda i: sum(x.numel() for x in trees[i][0] if isinstance(x, torch.Tensor)))
    leaves, spec = trees[at]
    dense = [leaf.contiguous() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    made = inspect.BoundArguments(signature, tt.unflatten(spec, dense))
    call = tt.Call(*made.args, **made.kwargs)
    return tt.Sample(call=call, expected=samples[at].expected, index=samples[at].index)


def constants_in(forward: Callable[..., Any], calls: tt.Calls) -> tuple[Any, ...]:
    """The arguments that are no tensors, in the key's order."""
    made = inspect.signature(forward).bind(*calls.samples[0].call.args, **calls.samples[0].call.kwargs)
    made.apply_defaults()
    leaves, _ = tt.flatten(dict(made.arguments))
    return tuple(leaf for leaf in leaves if not isinstance(leaf, torch.Tensor))
