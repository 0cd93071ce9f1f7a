"""How `scaled_dot_product_attention` becomes ONNX: as torch computes it, with its sizes said at export.

The exporter's own translation turns the keys by reshapes to sizes that it asks for in every call, nine small operators a
layer, and averages the values where a mask lets nothing through; torch gives zeros there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

_RANK = 4


def translations() -> dict[Callable[..., Any], Callable[..., Any]]:
    """For `custom_translation_table` of `torch.onnx.export`."""
    return {torch.ops.aten.scaled_dot_product_attention.default: attention}


def attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Plain attention; heads in groups, a causal mask, dropout and a scale that is not positive are left to the exporter's own translation."""
    import onnxscript
    from onnxscript.function_libs.torch_lib.ops import nn as exporters

    op: Any = onnxscript.opset18
    width = query.shape[-1]
    plain = len(query.shape) == _RANK and isinstance(width, int) and (scale is None or scale > 0)
    plain = plain and not (dropout_p or is_causal or enable_gqa)
    if not plain:
        return exporters.aten_scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    # a share of the scale on each side, as torch has it: products of half floats stay small
    root = op.CastLike(op.Constant(value_float=math.sqrt(1 / math.sqrt(width) if scale is None else scale)), query)
    turned = op.Mul(op.Transpose(key, perm=[0, 1, 3, 2]), root)
    scores = op.MatMul(op.Mul(query, root), turned)
    if attn_mask is None:
        return op.MatMul(op.Softmax(scores, axis=-1), value)
    zero = op.CastLike(op.Constant(value_float=0.0), query)
    shares = op.Softmax(op.Add(scores, _added(op, attn_mask, zero)), axis=-1)
    # a row of nothing but -inf is NaN after a softmax, and zeros in torch
    return op.MatMul(op.Where(op.IsNaN(shares), zero, shares), value)


def _added(op: Any, mask: Any, zero: Any) -> Any:
    """The mask as numbers that are added to the scores."""
    import onnx_ir

    if mask.dtype != onnx_ir.DataType.BOOL:
        return mask
    return op.Where(mask, zero, op.CastLike(op.Constant(value_float=-math.inf), zero))
