"""Twins: units of the same program with other weights. What does not export has no twins."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Hashable, Mapping, Sequence

import torch
from torch import nn

from tt_core import trees
from tt_core.contain import Caught, attempt
from tt_core.flat import flatten_unit, program_print
from tt_core.values import Calls, Sample, Unit

Recorded = tuple[Unit, Sequence[Calls]]


def fingerprints(recorded: Sequence[Recorded], apart: Callable[[Unit], Hashable] = lambda _: None) -> Mapping[str, str]:
    """The units that have a twin among the others, with the fingerprint of their program.

    Class, parameters and buffers by name, shape, dtype and stride, call keys and sizes are a filter; then the exported
    graphs decide, which hold every operation and every constant, but no weight. Only what passes the filter is exported.

    Args:
        recorded: units with their recorded calls.
        apart: units for which this differs are never twins.

    Returns:
        By path; equal fingerprints are twins. Units without one are left out.
    """
    likely: dict[Hashable, list[Recorded]] = {}
    for unit, keys in recorded:
        if any(not calls.untunable for calls in keys):
            likely.setdefault((apart(unit), _likeness(unit.module, keys)), []).append((unit, keys))
    found: dict[str, list[str]] = {}
    for unit, keys in (one for group in likely.values() if len(group) > 1 for one in group):
        answer = attempt(functools.partial(_fingerprint, unit, keys), where=f"fingerprint of {unit.path!r}")
        if not isinstance(answer, Caught):
            found.setdefault(answer, []).append(unit.path)
    return {path: fingerprint for fingerprint, paths in found.items() if len(paths) > 1 for path in paths}


def _likeness(module: nn.Module, keys: Sequence[Calls]) -> Hashable:
    named = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    weights = tuple((name, _form(tensor)) for name, tensor in named)
    inside = tuple((name, type(one), one.training) for name, one in module.named_modules())
    return inside, weights, tuple((calls.key, calls.shapes, calls.facts, calls.untunable) for calls in keys)


def _form(tensor: torch.Tensor) -> Hashable:
    strides = tensor.stride() if tensor.layout == torch.strided else ()
    return tensor.shape, tensor.dtype, strides, tensor.device, type(tensor)


def _fingerprint(unit: Unit, keys: Sequence[Calls]) -> str:
    """Raises where a key does not export."""
    digest = hashlib.sha256()
    for calls in keys:
        if not calls.untunable:
            exported = flatten_unit(unit, calls).export(_largest(calls.samples), calls.shapes)
            digest.update(repr((exported.leaves, exported.ranges)).encode())
            digest.update(program_print(exported.program).encode())
    return digest.hexdigest()


def _largest(samples: Sequence[Sample]) -> Sample:
    """A sample whose sizes are the largest: its branches are those of every other size but 0 and 1."""
    return max(samples, key=lambda one: sum(t.numel() for t in trees.tensors((one.call.args, one.call.kwargs))))
