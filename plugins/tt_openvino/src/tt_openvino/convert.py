"""An exported program as a compiled OpenVINO model."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import tt_core as tt
from tt_openvino.integers import Limit, limits_of
from tt_openvino.options import Settings
from tt_openvino.ports import check_outputs, input_ports, ov_types
from tt_openvino.probe import core, one_line
from tt_openvino.refuse import refuse_program

Sizes = tuple[tuple[int, ...], ...]

_OPEN = 2**31 - 1
"""The size of an axis without a known bound."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Compiled:
    """One program on one device; the exported program itself is gone.

    Attributes:
        sizes: per trace: whether it is right for these input sizes, and the sizes of the results then.
        dtypes: of the results.
        ports: port index of each input.
        limits: what int64 inputs may hold.
        new_request: makes an infer request.
        weight_bytes: memory of the weights that OpenVINO holds a copy of.
        precision: what it computes floating point in.
    """

    sizes: tuple[tuple[Callable[[Any], bool], Callable[[Any], Sizes]], ...]
    dtypes: tuple[torch.dtype, ...]
    ports: tuple[int, ...]
    limits: dict[int, Limit]
    new_request: Callable[[], Any]
    weight_bytes: int
    precision: str

    def result_sizes(self, sizes: Sizes) -> Sizes | None:
        """Sizes of the results for input sizes; None where the program is not right for them."""
        for fits, results in self.sizes:
            if fits(sizes):
                return results(sizes)
        return None


def compiled(exports: Sequence[tt.Exported], settings: Settings) -> Compiled:
    """Converts and compiles a program.

    Args:
        exports: traces of one program, the most general first; each adds the sizes that it is right for.
        settings: device, hint, precision, threads.

    Raises:
        BuildRefusedError: the graph is refused, or OpenVINO cannot convert or compile it.
    """
    program = exports[0].program
    refuse_program(program)
    results = _results(program)
    limits = limits_of(program)
    precision = settings.precision_for(_float_types(program))
    model = _converted(program)
    ports = input_ports(model, [str(name) for name in program.graph_signature.user_inputs])
    check_outputs(model, results)
    _narrow(model, exports, ports)
    loaded = _loaded(model, settings, precision)
    input_ports(
        loaded, [str(name) for name in program.graph_signature.user_inputs]
    )  # compiling may not drop any either
    return Compiled(
        sizes=tuple((exported.fits, exported.result_sizes) for exported in exports),
        dtypes=tuple(value.dtype for value in results),
        ports=ports,
        limits=limits,
        new_request=loaded.create_infer_request,
        weight_bytes=_weight_bytes(program, precision),
        precision=precision,
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

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ov.convert_model(program)
        except _failures() as error:
            raise tt.BuildRefusedError(f"OpenVINO cannot convert it: {one_line(error)}") from error


def _narrow(model: Any, exports: Sequence[tt.Exported], ports: tuple[int, ...]) -> None:
    """Tells the model the sizes that are known: the converter leaves them all open."""
    import openvino as ov

    shapes = {}
    for index, port in enumerate(ports):
        ranges = [_ranges(exported, index) for exported in exports]
        axes = [(min(lo for lo, _ in axis), max(hi for _, hi in axis)) for axis in zip(*ranges, strict=True)]
        shapes[port] = ov.PartialShape([ov.Dimension(lo, hi) for lo, hi in axes])
    try:
        model.reshape(shapes)
    except RuntimeError as error:
        raise tt.BuildRefusedError(f"OpenVINO cannot give it its sizes: {one_line(error)}") from error


def _ranges(exported: tt.Exported, index: int) -> list[tuple[int, int]]:
    """The least and largest size of each axis of an input."""
    return [
        (size, size) if isinstance(size, int) else exported.ranges.get(size, (0, _OPEN))
        for size in exported.leaves[index]
    ]


def _loaded(model: Any, settings: Settings, precision: str) -> Any:
    try:
        return core().compile_model(model, settings.target, settings.config(precision))
    except RuntimeError as error:
        raise tt.BuildRefusedError(f"OpenVINO cannot compile it: {one_line(error)}") from error


def _weight_bytes(program: torch.export.ExportedProgram, precision: str) -> int:
    """Weights that OpenVINO repacks: all but embedding tables, which it reads from torch's memory."""
    size = {"f32": 4, "bf16": 2, "f16": 2}[precision]
    total = 0
    user_inputs = {str(name) for name in program.graph_signature.user_inputs}
    for node in program.graph.nodes:
        value = node.meta.get("val")
        if node.op != "placeholder" or node.name in user_inputs or not isinstance(value, torch.Tensor):
            continue
        tables = all("embedding" in str(user.target) for user in node.users)
        floats = value.dtype.is_floating_point
        if not (tables and floats and value.element_size() == size):
            total += value.numel() * (size if floats else value.element_size())
    return total
