"""`flatten_unit`: a unit and its recorded calls as a `Flat`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tt_core.errors import BuildRefusedError
from tt_core.flat.arguments import Arguments, Pack, arguments_of, pack_of
from tt_core.flat.dims import dynamic_shapes
from tt_core.flat.exported import Exported, export
from tt_core.flat.results import Results, Unpack, refuse_difference, results_of, state_of, unpack_of
from tt_core.values import Calls, Sample, Shapes, Unit, frozen


class FlatModule(nn.Module):
    """Runs a unit's original forward on a flat tuple of tensors and returns its distinct result tensors.

    Args:
        module: the unit's module; held as a submodule, so that exporters see its parameters.
        forward: the original forward, called whatever `module.forward` is now.
        arguments: how tensors become arguments.
        results: how results become tensors.
    """

    def __init__(self, module: nn.Module, forward: Callable[..., Any], arguments: Arguments, results: Results) -> None:
        super().__init__()
        self.training = module.training  # without .train(): the module's own flags stay as they are
        self.unit = module
        self._original = forward
        self._arguments = arguments
        self._results = results

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Maps the inputs, in key order, to the distinct result tensors."""
        args, kwargs = self._arguments.rebuilt(tensors)
        return self._results.picked(self._original(*args, **kwargs))


@frozen
class Flat:
    """A unit under one call key as a function from tensors to tensors.

    Attributes:
        module: what to export: `forward(*tensors)` returns the distinct result tensors as a flat tuple.
        inputs: a printable name of each input, in key order (that of `Shapes.leaves`).
        outputs: a printable path of each distinct result tensor.
        returned: indices of inputs that are returned unchanged; they are bound, and no outputs.
        pack: `pack(*args, **kwargs)`, with the unit's own signature: the input tensors.
        unpack: `unpack(result tensors, input tensors)`: the result, container types as recorded.
    """

    module: FlatModule
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    returned: tuple[int, ...]
    pack: Pack
    unpack: Unpack
    arguments: Arguments

    def tensors(self, sample: Sample) -> tuple[torch.Tensor, ...]:
        """The recorded inputs of a sample themselves: look, do not write."""
        return self.arguments.tensors(sample.call)

    def sizes(self, sample: Sample) -> tuple[tuple[int, ...], ...]:
        """The sizes of a sample's inputs."""
        return tuple(tuple(tensor.shape) for tensor in self.tensors(sample))

    def example(self, sample: Sample) -> tuple[torch.Tensor, ...]:
        """Copies of a sample's inputs that share no memory."""
        return tuple(_copy(tensor) for tensor in self.tensors(sample))

    def dynamic_shapes(self, shapes: Shapes, *, auto: bool = False) -> tuple[Any, ...] | None:
        """What `torch.export.export(flat.module, …, dynamic_shapes=)` takes; see `tt_core.flat.dims`."""
        return dynamic_shapes(shapes, auto=auto)

    def export(self, sample: Sample, shapes: Shapes) -> Exported:
        """Exports the unit with one sample as the example.

        Args:
            sample: its sizes decide branches; sizes 0 and 1 of moving axes become fixed.
            shapes: the ranges wanted.

        Returns:
            The program, what it specialised on, and the sizes of its results.

        Raises:
            BuildRefusedError: the unit does not export; the exporter's reason in one line.
        """
        return export(self.module, self.example(sample), shapes, self.inputs)


def flatten_unit(unit: Unit, calls: Calls) -> Flat:
    """Makes a unit a function from tensors to tensors, for the calls of one key.

    The unit runs once on a copy of each recorded call, without gradients, to see which results are the same tensor, an
    input returned unchanged, or no tensors.

    Raises:
        BuildRefusedError: it writes to its state; a result shares memory with an input or with state, is an object of
            unknown kind, or differs between the recorded calls in what would be bound.
    """
    if calls.facts.writes_state:
        raise BuildRefusedError(f"it writes to its state ({', '.join(calls.facts.writes_state)})")
    if not calls.samples:
        raise BuildRefusedError("no call was recorded")
    first = calls.samples[0].call
    arguments = arguments_of(unit.forward, first)
    runs = [_run(unit, arguments, sample) for sample in calls.samples]
    results, example = runs[0]
    for other, _ in runs[1:]:
        refuse_difference(results, other)
    return Flat(
        module=FlatModule(unit.module, unit.forward, arguments, results),
        inputs=arguments.names,
        outputs=tuple(results.paths[i] for i in results.firsts),
        returned=results.inputs,
        pack=pack_of(arguments, first),
        unpack=unpack_of(results, example),
        arguments=arguments,
    )


def _run(unit: Unit, arguments: Arguments, sample: Sample) -> tuple[Results, Any]:
    """One eager run: its result taken apart, and the result."""
    inputs = tuple(_copy(tensor) for tensor in arguments.tensors(sample.call))
    args, kwargs = arguments.rebuilt(inputs)
    with torch.inference_mode(False), torch.no_grad():
        result = unit.forward(*args, **kwargs)
    return results_of(result, inputs, state_of(unit.module)), result


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode(False), torch.no_grad():
        return tensor.detach().clone()
