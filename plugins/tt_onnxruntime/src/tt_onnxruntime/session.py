"""A model in a session of ONNX Runtime: its ports, and the sizes that it is right for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import tt_core as tt
from tt_onnxruntime.model import Model
from tt_onnxruntime.options import Settings
from tt_onnxruntime.probe import failures, one_line

Sizes = tuple[tuple[int, ...], ...]
Tensors = Sequence[torch.Tensor]

TYPES: Mapping[torch.dtype, tuple[int, str]] = {
    torch.float32: (1, "float"),
    torch.uint8: (2, "uint8"),
    torch.int8: (3, "int8"),
    torch.uint16: (4, "uint16"),
    torch.int16: (5, "int16"),
    torch.int32: (6, "int32"),
    torch.int64: (7, "int64"),
    torch.bool: (9, "bool"),
    torch.float16: (10, "float16"),
    torch.float64: (11, "double"),
    torch.uint32: (12, "uint32"),
    torch.uint64: (13, "uint64"),
    torch.bfloat16: (16, "bfloat16"),
}
"""ONNX's number and ONNX Runtime's word for each torch type."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Compiled:
    """One program in one session; the exported program itself is gone.

    Attributes:
        model: the model; its weights must live as long as the session.
        session: the native session: the public class checks and copies more than a call takes.
        inputs: names of the ports in the order of the inputs.
        outputs: names of the ports in the order of the results.
        dtypes: of the results.
        traces: the sizes that each trace of the program is right for, as far as ranges can say.
        fits: whether it is right for these input sizes.
        result_sizes: sizes of the results for input sizes that fit; the tensors may be run to learn them.
        indices: inputs that may not hold negative values.
        settings: how the session was made.
    """

    model: Model
    session: Any
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    dtypes: tuple[torch.dtype, ...]
    traces: tuple[tt.Shapes, ...]
    fits: Callable[[Sizes], bool]
    result_sizes: Callable[[Sizes, Tensors], Sizes]
    indices: tuple[int, ...]
    settings: Settings


def session_of(
    model: Model, settings: Settings, inputs: Sequence[str], input_dtypes: Sequence[torch.dtype], results: Sequence[Any]
) -> tuple[Any, tuple[str, ...]]:
    """Makes a session, and holds its ports to what is expected.

    Args:
        model: the model.
        settings: provider and threads.
        inputs: names of the ports wanted, all of them.
        input_dtypes: their types.
        results: (type, rank) of each result, in order.

    Returns:
        The native session, and the names of its outputs.

    Raises:
        BuildRefusedError: ONNX Runtime does not take the model, or the ports differ.
    """
    import onnxruntime as ort

    options = settings.session_options()
    values = [ort.OrtValue.ortvalue_from_numpy(weight.array) for weight in model.weights.values()]
    if values:
        options.add_external_initializers(list(model.weights), values)
    try:
        made = ort.InferenceSession(model.skeleton, options, providers=settings.providers())
    except failures() as error:
        raise tt.BuildRefusedError(f"ONNX Runtime does not take it: {one_line(error)}") from error
    _check_inputs(made, inputs, input_dtypes)
    _check_outputs(made, results)
    native = getattr(made, "_sess", None)  # no public name; a release without it is refused rather than guessed at
    if native is None or not hasattr(made.io_binding(), "_iobinding"):
        raise tt.BuildRefusedError(f"onnxruntime {ort.__version__} has another interface than this plugin knows")
    return native, tuple(port.name for port in made.get_outputs())


def _check_inputs(session: Any, names: Sequence[str], dtypes: Sequence[torch.dtype]) -> None:
    ports = {port.name: port.type for port in session.get_inputs()}
    if set(ports) != set(names) or len(ports) != len(names):
        raise tt.BuildRefusedError(f"the model has the inputs {sorted(ports)} for {list(names)}")
    for name, dtype in zip(names, dtypes, strict=True):
        if dtype not in TYPES or ports[name] != f"tensor({TYPES[dtype][1]})":
            raise tt.BuildRefusedError(f"the model takes a {ports[name]} for {name}, which is {dtype}")


def _check_outputs(session: Any, results: Sequence[Any]) -> None:
    ports = session.get_outputs()
    if len(ports) != len(results):
        raise tt.BuildRefusedError(f"the model has {len(ports)} outputs for {len(results)} results")
    for i, (port, (dtype, rank)) in enumerate(zip(ports, results, strict=True)):
        if dtype not in TYPES or port.type != f"tensor({TYPES[dtype][1]})" or len(port.shape) != rank:
            raise tt.BuildRefusedError(f"the model makes a {port.type}{port.shape} of result {i}, which is {dtype}")
