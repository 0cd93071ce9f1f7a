"""A unit as an optimised TorchScript program."""

from __future__ import annotations

import warnings
from typing import Any

import torch

import tt_core as tt

_WARM = 3
"""Runs after which TorchScript's profiling executor has settled on a program."""


def build(unit: tt.Unit, calls: tt.Calls) -> tt.Built:
    """Traces and optimises a unit.

    Raises:
        BuildRefusedError: what it does would not be in the trace, or torch cannot trace it.
    """
    if calls.key.ambient.training or calls.key.ambient.autocast:
        raise tt.BuildRefusedError("it runs in training mode or under autocast, which a trace does not hold")
    flat = tt.flatten_unit(unit, calls)
    if not flat.inputs or not flat.outputs:
        raise tt.BuildRefusedError("it takes no tensor, or computes none")
    examples = [flat.example(sample) for sample in calls.samples]
    held = [_optimised(flat.module, examples)]

    def call(*args: Any, **kwargs: Any) -> Any:
        inputs = flat.pack(*args, **kwargs)
        return flat.unpack(list(held[0](*inputs)), inputs)

    return tt.Built(
        call=call,
        covers=calls.shapes,
        weights=tt.Weights.VALUES,
        needs_strides=bool(flat.returned),
        notes=("traced, frozen and optimised for inference",),
        close=held.clear,
    )


def _optimised(module: torch.nn.Module, examples: list[tuple[torch.Tensor, ...]]) -> Any:
    """The program, warm for the sizes of all examples."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        try:
            traced = torch.jit.trace(module, examples[-1], check_trace=False, strict=False)
            program = torch.jit.optimize_for_inference(torch.jit.freeze(traced))
        except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            raise tt.BuildRefusedError(f"torch.jit cannot trace it: {(lines or [''])[0][:200]}") from error
    if any(issubclass(warning.category, torch.jit.TracerWarning) for warning in seen):
        raise tt.BuildRefusedError("a trace would keep one side of a branch, or a size, of it")
    for _ in range(_WARM):
        for example in examples:
            program(*example)
    return program
