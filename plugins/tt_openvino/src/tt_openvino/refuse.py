"""What this backend does not take beyond what no exported program keeps. Each refusal is one sentence."""

from __future__ import annotations

from typing import Any

import torch

import tt_core as tt

_NARROW = {torch.uint8, torch.int8, torch.int16, torch.uint16, torch.uint32, torch.uint64}
"""Integers whose arithmetic wraps in torch and saturates in OpenVINO: they may only be moved or converted."""

_MOVES = {
    "view", "reshape", "_unsafe_view", "permute", "transpose", "t", "unsqueeze", "squeeze", "expand", "slice", "select",
    "clone", "contiguous", "alias", "detach", "flatten", "_to_copy", "to", "cat", "stack", "index", "index_select",
    "gather", "embedding", "split", "chunk", "getitem", "unbind", "flip", "repeat", "lift_fresh_copy",
}  # fmt: skip


def refuse_program(program: torch.export.ExportedProgram) -> None:
    """Refuses by what the exported graph does.

    Raises:
        BuildRefusedError: random numbers, control flow, float64, wrapping arithmetic, results that are one tensor.
    """
    for node in program.graph.nodes:
        _refuse_dtype(node)
    tt.flat.refuse_graph(program)


def _refuse_dtype(node: Any) -> None:
    for value in tt.flat.tensors_in(node):
        if value.dtype == torch.float64:
            raise tt.BuildRefusedError("it computes in float64, which OpenVINO does in float32")
        if value.dtype in _NARROW and node.op == "call_function" and tt.flat.op_name(node) not in _MOVES:
            raise tt.BuildRefusedError(f"it computes in {value.dtype}, which wraps in torch and saturates in OpenVINO")


def attends_once(program: torch.export.ExportedProgram) -> bool:
    """Whether an attention in this trace has one query.

    OpenVINO's CPU attention (2026.4) that runs one query first is wrong for 16 and more ever after, so such a trace is
    compiled on its own.
    """
    for node in program.graph.nodes:
        if node.op == "call_function" and "scaled_dot_product" in tt.flat.op_name(node):
            query = node.args[0].meta["val"]
            if isinstance(query.shape[-2], int) and query.shape[-2] == 1:
                return True
    return False
