"""Memory of torch tensors as OpenVINO tensors, and the ports of a converted model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

import tt_core as tt

SHARED = 32 * 1024
"""Bytes from which a tensor is handed over by its address; below, copying it is faster than telling OpenVINO."""


def ov_types() -> dict[torch.dtype, Any]:
    """OpenVINO's element type of each torch type that it can take."""
    import openvino as ov

    pairs = {
        "float32": "f32", "float16": "f16", "bfloat16": "bf16", "int64": "i64", "int32": "i32", "int16": "i16",
        "int8": "i8", "uint8": "u8", "bool": "boolean",
    }  # fmt: skip
    return {getattr(torch, name): getattr(ov.Type, kind) for name, kind in pairs.items()}


def shared(tensor: torch.Tensor) -> Any:
    """An `openvino.Tensor` on the memory of a contiguous CPU tensor; the caller keeps the tensor alive."""
    import openvino as ov

    if tensor.requires_grad:
        tensor = tensor.detach()
    if tensor.dtype == torch.bfloat16:  # numpy has no bfloat16: the same bits as int16
        return ov.Tensor(tensor.view(torch.int16).numpy(), list(tensor.shape), ov.Type.bf16)
    return ov.Tensor(tensor.numpy(), shared_memory=True)


def input_ports(model: Any, names: Sequence[str]) -> tuple[int, ...]:
    """For each program input, by name, the index of its port.

    Raises:
        BuildRefusedError: names or their number differ.
    """
    ports = {name: i for i, port in enumerate(model.inputs) for name in port.get_names()}
    if len(model.inputs) != len(names) or not set(names) <= set(ports):
        text = f"OpenVINO made the inputs {sorted(ports)} of {list(names)}"
        raise tt.BuildRefusedError(text)
    return tuple(ports[name] for name in names)


def check_inputs(model: Any, ports: Sequence[int], expected: Sequence[torch.dtype]) -> None:
    """Compares the types of a model's inputs with those of the tensors that they will get.

    Raises:
        BuildRefusedError: they differ.
    """
    for i, (port, dtype) in enumerate(zip(ports, expected, strict=True)):
        kind = model.inputs[port].element_type
        if kind != ov_types().get(dtype):
            raise tt.BuildRefusedError(f"the model takes a {kind} as input {i}, which is {dtype}")


def check_outputs(model: Any, expected: Sequence[tuple[torch.dtype, int]]) -> None:
    """Compares number, types and ranks of a model's outputs with the (type, rank) expected; they come in this order.

    Raises:
        BuildRefusedError: they differ.
    """
    if len(model.outputs) != len(expected):
        raise tt.BuildRefusedError(f"OpenVINO made {len(model.outputs)} outputs of {len(expected)} results")
    types = ov_types()
    for i, (port, (dtype, ndim)) in enumerate(zip(model.outputs, expected, strict=True)):
        rank = port.partial_shape.rank
        fits = port.element_type == types.get(dtype) and (rank.is_dynamic or rank.get_length() == ndim)
        if not fits:
            text = f"OpenVINO made a {port.element_type}{port.partial_shape} of result {i}, which is {dtype}"
            raise tt.BuildRefusedError(text)
