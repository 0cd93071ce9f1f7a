"""An exported program as an ONNX model whose weights stay where they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import tt_core as tt
from tt_onnxruntime.attention import translations
from tt_onnxruntime.probe import one_line

WEIGHTS = "weights.bin"
"""The file that a model's large initializers are said to be in; in memory no file is needed."""

_INLINE = 1024
"""Bytes below which a constant stays inside the model, where it helps to infer sizes."""

PACKED = {"MatMul", "Gemm", "Conv", "ConvTranspose", "LSTM", "GRU", "RNN"}
"""Operators that ONNX Runtime keeps a packed copy of their weights for."""

_KINDS = "fiub"
"""NumPy's kinds of types that ONNX Runtime takes from an array: floats, integers, bool."""

_FAILURES = (RuntimeError, ValueError, TypeError, LookupError, AttributeError, AssertionError)
"""What the exporter and its optimiser raise."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Weight:
    """A large initializer.

    Attributes:
        array: its values: the memory of a parameter or buffer, or an array that the exporter folded.
        source: dotted name of the parameter or buffer, None for a folded one.
        version: of that tensor, None where it has none.
        tensor: that tensor.
    """

    array: Any
    source: str | None = None
    tensor: torch.Tensor | None = None
    version: int | None = None

    @property
    def unchanged(self) -> bool:
        """Whether the values are still those of the build, as far as versions tell."""
        return self.tensor is None or self.version == tt.flat.version_of(self.tensor)


@dataclass(frozen=True, kw_only=True, eq=False)
class Model:
    """A model without its weights, and the weights.

    Attributes:
        skeleton: the serialised model; its large initializers are external, one after the other in `WEIGHTS`.
        weights: these, by name, in the order of their offsets.
        packed_bytes: of weights that a session keeps a packed copy of.
    """

    skeleton: bytes
    weights: Mapping[str, Weight]
    packed_bytes: int

    @property
    def folded_bytes(self) -> int:
        """Of weights that are not the module's own memory."""
        return sum(int(weight.array.nbytes) for weight in self.weights.values() if weight.source is None)


def model_of(program: torch.export.ExportedProgram, module: nn.Module) -> Model:
    """Translates a program to ONNX.

    Args:
        program: exported from a flat unit.
        module: the unit's module, whose tensors are recognised among the weights.

    Raises:
        BuildRefusedError: the exporter's reason, in one line.
    """
    with tt.flat.quiet("torch.onnx", "onnxscript", "onnx_ir"):
        try:
            made: Any = torch.onnx.export(program, dynamo=True, verbose=False, custom_translation_table=translations())
        except _FAILURES as error:
            raise tt.BuildRefusedError(f"torch.onnx cannot export it: {one_line(error)}") from error
        return _taken_apart(made.model, _places(module))


def _places(module: nn.Module) -> dict[tuple[int, Any, Any], tuple[str, torch.Tensor]]:
    """The module's tensors by address, sizes and type."""
    named = [*module.named_parameters(), *module.named_buffers()]
    return {(tensor.data_ptr(), tuple(tensor.shape), tensor.dtype): (name, tensor) for name, tensor in named}


def _taken_apart(model: Any, places: Mapping[Any, tuple[str, torch.Tensor]]) -> Model:
    import onnx_ir as ir

    packed = _packed_bytes(model)
    weights: dict[str, Weight] = {}
    offset = 0
    for name, value in model.graph.initializers.items():
        constant = value.const_value
        if constant.nbytes < _INLINE or constant.numpy().dtype.kind not in _KINDS:
            continue
        weights[name] = _weight(constant, places)
        value.const_value = ir.ExternalTensor(
            location=WEIGHTS,
            offset=offset,
            length=constant.nbytes,
            dtype=constant.dtype,
            shape=constant.shape,
            name=name,
        )
        offset += constant.nbytes
    _strip(model)
    return Model(skeleton=ir.serde.serialize_model(model).SerializeToString(), weights=weights, packed_bytes=packed)


def _weight(constant: Any, places: Mapping[Any, tuple[str, torch.Tensor]]) -> Weight:
    import numpy as np

    array = np.ascontiguousarray(constant.numpy())
    raw = getattr(constant, "raw", None)
    if isinstance(raw, torch.Tensor) and raw.is_contiguous():
        found = places.get((raw.data_ptr(), tuple(raw.shape), raw.dtype))
        if found is not None:
            return Weight(array=array, source=found[0], tensor=found[1], version=tt.flat.version_of(found[1]))
    return Weight(array=array)


def _packed_bytes(model: Any) -> int:
    names = {value.name for node in model.graph if node.op_type in PACKED for value in node.inputs if value is not None}
    return sum(int(value.const_value.nbytes) for name, value in model.graph.initializers.items() if name in names)


def _strip(model: Any) -> None:
    """Takes out what exporters note for people: stack traces hold paths."""
    import onnx_ir as ir

    model.metadata_props.clear()
    model.graph.metadata_props.clear()
    model.doc_string = model.graph.doc_string = None
    for value in (*model.graph.inputs, *model.graph.initializers.values()):
        value.metadata_props.clear()
        value.doc_string = None
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        node.metadata_props.clear()
        node.doc_string = None
        for value in node.outputs:
            value.metadata_props.clear()
            value.doc_string = None
