"""An exported program as an OpenVINO model, and that as a compiled one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

import tt_core as tt
from tt_openvino.cache import Cache
from tt_openvino.integers import Limit, limits_of
from tt_openvino.known import write_known_sizes
from tt_openvino.options import Settings
from tt_openvino.ports import check_outputs, input_ports, ov_types, shared
from tt_openvino.probe import core, one_line
from tt_openvino.refuse import refuse_program
from tt_openvino.weights import held_bytes

Sizes = tuple[tuple[int, ...], ...]
Tensors = Sequence[torch.Tensor]
Ranges = list[list[tuple[int, int]]]

_OPEN = 2**31 - 1
"""The size of an axis without a known bound."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Program:
    """What is said about a model; with the model's own files all that is needed to have it again.

    Attributes:
        inputs: names of the ports in the order of the inputs.
        results: type and rank of each result.
        traces: the sizes that each trace of the program is right for, as far as ranges can say.
        limits: what int64 inputs may hold.
        precision: what it computes floating point in.
    """

    inputs: tuple[str, ...]
    results: tuple[tuple[torch.dtype, int], ...]
    traces: tuple[tt.Shapes, ...]
    limits: Mapping[int, Limit]
    precision: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Compiled:
    """One program on one device; the exported program itself is gone.

    Attributes:
        program: what is said about it.
        model: the uncompiled model; its large weights are the unit's own memory.
        loaded: the compiled model.
        fits: whether it is right for these input sizes.
        result_sizes: sizes of the results for input sizes that fit; the tensors may be run to learn them.
        ports: port index of each input.
        streams: inferences that run at once.
        held: bytes beyond the unit's own memory.
        entry: the name of the model in the cache; empty where it is in none.
    """

    program: Program
    model: Any
    loaded: Any
    fits: Callable[[Sizes], bool]
    result_sizes: Callable[[Sizes, Tensors], Sizes]
    ports: tuple[int, ...]
    streams: int
    held: int
    entry: str = ""

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        """Of the results."""
        return tuple(dtype for dtype, _ in self.program.results)


def compiled(
    exports: Sequence[tt.Exported],
    shapes: tt.Shapes,
    tensors: Mapping[str, torch.Tensor],
    settings: Settings,
    cache: Cache,
    weights: str,
) -> Compiled:
    """Converts and compiles a program.

    Args:
        exports: traces of one program, the most general first; each adds the sizes that it is right for.
        shapes: the sizes wanted.
        tensors: of the unit, by name.
        settings: device, hint, precision, threads.
        cache: where models that were converted before are.
        weights: `weights_print` of `tensors`; empty where nothing is cached.

    Raises:
        BuildRefusedError: the graph is refused, or OpenVINO cannot convert or compile it.
    """
    exported = exports[0].program
    refuse_program(exported)
    results = _results(exported)
    program = Program(
        inputs=tuple(str(name) for name in exported.graph_signature.user_inputs),
        results=tuple((value.dtype, value.ndim) for value in results),
        traces=tuple(one.covers(shapes) for one in exports),
        limits=limits_of(exported),
        precision=settings.precision_for(_float_types(exported)),
    )
    ranges = _ranges(exports)
    key = cache.key(exported, ranges, weights, settings.target, program.precision)
    model = cache.find(key, tensors)
    if model is None:
        model = _narrowed(_converted(exported), program.inputs, ranges)
        cache.keep(key, model, tensors)
    fits, sizes = _sizes_of([(one.fits, one.result_sizes) for one in exports])
    return replace(loaded(program, model, tensors, settings, fits, lambda given, _: sizes(given)), entry=key)


def loaded(
    program: Program,
    model: Any,
    tensors: Mapping[str, torch.Tensor],
    settings: Settings,
    fits: Callable[[Sizes], bool],
    result_sizes: Callable[[Sizes, Tensors], Sizes] | None = None,
) -> Compiled:
    """Compiles a model, and holds its ports to what is said about it.

    Without `result_sizes` the sizes of results are learned by a run.

    Raises:
        BuildRefusedError: they differ, or OpenVINO cannot compile it.
    """
    input_ports(model, program.inputs)
    check_outputs(model, program.results)
    try:
        made = core().compile_model(model, settings.target, settings.config(program.precision))
    except RuntimeError as error:
        raise tt.BuildRefusedError(f"OpenVINO cannot compile it: {one_line(error)}") from error
    ports = input_ports(made, program.inputs)  # compiling may not drop any either
    return Compiled(
        program=program,
        model=model,
        loaded=made,
        fits=fits,
        result_sizes=result_sizes or _learned(made, ports),
        ports=ports,
        streams=max(1, int(made.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS"))),
        held=held_bytes(model, tensors, program.precision),
    )


def _learned(made: Any, ports: Sequence[int]) -> Callable[[Sizes, Tensors], Sizes]:
    """Sizes of the results, found by running once with results that OpenVINO allocates."""

    def sizes_of(_: Sizes, tensors: Tensors) -> Sizes:
        request = made.create_infer_request()
        dense = [tensor.cpu().resolve_neg().contiguous() for tensor in tensors]
        for port, tensor in zip(ports, dense, strict=True):
            request.set_input_tensor(port, shared(tensor))
        request.infer(share_outputs=True)
        return tuple(tuple(request.get_output_tensor(i).shape) for i in range(len(made.outputs)))

    return sizes_of


def _sizes_of(
    traces: Sequence[tuple[Callable[[Any], bool], Callable[[Any], Sizes]]],
) -> tuple[Callable[[Sizes], bool], Callable[[Sizes], Sizes]]:
    """Whether any trace is right for sizes, and what it says of the results' then."""
    return (
        lambda sizes: any(fits(sizes) for fits, _ in traces),
        lambda sizes: next(results(sizes) for fits, results in traces if fits(sizes)),
    )


def _results(program: torch.export.ExportedProgram) -> list[torch.Tensor]:
    nodes = {node.name: node for node in program.graph.nodes}
    values = [nodes[str(name)].meta["val"] for name in program.graph_signature.user_outputs]
    for value in values:
        if value.dtype not in ov_types():
            raise tt.BuildRefusedError(f"it returns {value.dtype}")
    return values


def _float_types(program: torch.export.ExportedProgram) -> set[torch.dtype]:
    """Floating-point types of weights and inputs."""
    values = [node.meta["val"] for node in program.graph.nodes if node.op == "placeholder"]
    return {value.dtype for value in values if isinstance(value, torch.Tensor) and value.dtype.is_floating_point}


def _failures() -> tuple[type[Exception], ...]:
    """What the converter raises: its own classes share no base but `Exception`."""
    from openvino import frontend
    from openvino.tools.ovc.error import Error

    names = (
        "GeneralFailure",
        "InitializationFailure",
        "NotImplementedFailure",
        "OpConversionFailure",
        "OpValidationFailure",
    )
    return (RuntimeError, Error, *(getattr(frontend, name) for name in names))


def _converted(program: torch.export.ExportedProgram) -> Any:
    import openvino as ov

    write_known_sizes(program)
    with tt.flat.quiet():
        try:
            return ov.convert_model(program)
        except _failures() as error:
            raise tt.BuildRefusedError(f"OpenVINO cannot convert it: {one_line(error)}") from error


def _narrowed(model: Any, names: Sequence[str], ranges: Ranges) -> Any:
    """Tells the model the sizes that are known: the converter leaves them all open."""
    import openvino as ov

    ports = input_ports(model, names)
    try:
        model.reshape(
            {
                port: ov.PartialShape([ov.Dimension(lo, hi) for lo, hi in axes])
                for port, axes in zip(ports, ranges, strict=True)
            }
        )
    except RuntimeError as error:
        raise tt.BuildRefusedError(f"OpenVINO cannot give it its sizes: {one_line(error)}") from error
    return model


def _ranges(exports: Sequence[tt.Exported]) -> Ranges:
    """The least and largest size of each axis of each input, over all traces."""
    each = [[[_span(exported, size) for size in leaf] for leaf in exported.leaves] for exported in exports]
    return [
        [(min(lo for lo, _ in axis), max(hi for _, hi in axis)) for axis in zip(*leaves, strict=True)]
        for leaves in zip(*each, strict=True)
    ]


def _span(exported: tt.Exported, size: int | str) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else exported.ranges.get(size, (0, _OPEN))
