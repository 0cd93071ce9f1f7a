"""A model file of unknown origin: parsed as data, and refused unless it holds ONNX's own operators and nothing outside."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tt_core as tt
from tt_onnxruntime.model import PACKED, WEIGHTS

_LARGEST = 1 << 26
"""Bytes of a model without its weights."""

_OWN = {"", "ai.onnx"}
"""Names of ONNX's own domain: others may name libraries, or contexts that a provider loads."""


def checked(path: Path, weights: Mapping[str, tuple[int, ...]]) -> tuple[bytes, int]:
    """The bytes of a model file, and how many of its weights' bytes a session packs.

    Args:
        path: the file.
        weights: sizes of the large initializers, by name: exactly these must be external.

    Raises:
        BuildRefusedError: too large, not ONNX, other operators than ONNX's, data in other files.
    """
    import onnx
    from google.protobuf.message import DecodeError

    if path.stat().st_size > _LARGEST:
        raise tt.BuildRefusedError(f"its model has {path.stat().st_size} bytes, more than {_LARGEST}")
    content = path.read_bytes()
    try:
        model = onnx.ModelProto.FromString(content)
    except DecodeError as error:
        raise tt.BuildRefusedError("its model is not ONNX") from error
    if not {entry.domain for entry in model.opset_import} <= _OWN or len(model.functions):
        raise tt.BuildRefusedError("its model brings operators that are not ONNX's own")
    nodes = list(_nodes(model.graph))
    strange = sorted({f"{node.domain}.{node.op_type}" for node in nodes if node.domain not in _OWN})
    if strange:
        raise tt.BuildRefusedError(f"its model asks for {strange[0]}, which is not ONNX's own")
    _check_tensors(model, nodes, weights)
    return content, _packed(model, nodes)


def _nodes(graph: Any) -> Iterator[Any]:
    """The nodes of a graph and of the graphs inside them."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from _nodes(inner)


def _graphs(model: Any, nodes: list[Any]) -> Iterator[Any]:
    yield model.graph
    for node in nodes:
        for attribute in node.attribute:
            yield attribute.g
            yield from attribute.graphs


def _check_tensors(model: Any, nodes: list[Any], weights: Mapping[str, tuple[int, ...]]) -> None:
    """Holds that exactly `weights` are external, at the top, and said to be in the one file."""
    top = {tensor.name: tensor for tensor in model.graph.initializer if _external(tensor)}
    inner = [tensor for graph in _graphs(model, nodes) for tensor in graph.initializer if _external(tensor)]
    held = [value for node in nodes for a in node.attribute for value in (a.t, *a.tensors) if _external(value)]
    same = {name: tuple(tensor.dims) for name, tensor in top.items()} == dict(weights)
    files = {entry.value for tensor in top.values() for entry in tensor.external_data if entry.key == "location"}
    if not same or len(inner) != len(top) or held or not files <= {WEIGHTS}:
        raise tt.BuildRefusedError("its model reads data that was not written down with it")


def _external(tensor: Any) -> bool:
    return bool(tensor.data_location) or bool(tensor.external_data)


def _packed(model: Any, nodes: list[Any]) -> int:
    names = {name for node in nodes if node.op_type in PACKED for name in node.input}
    sizes = {1: 4, 10: 2, 11: 8}
    total = 0
    for tensor in model.graph.initializer:
        if tensor.name in names:
            count = sizes.get(tensor.data_type, 4)
            for n in tensor.dims:
                count *= n
            total += count
    return total
