"""What this backend does not take beyond what no exported program keeps: each refusal is one sentence."""

from __future__ import annotations

import math
from typing import Any

import torch

import tt_core as tt

_INDICES = {"embedding": 1, "index_select": 2, "gather": 2}
"""Operators that refuse negative indices, and the place of these: ONNX counts them from the end."""


def indices_of(program: torch.export.ExportedProgram) -> tuple[int, ...]:
    """The inputs, by position, that index a table directly: a negative value there is eager's error, not a result."""
    names = [str(name) for name in program.graph_signature.user_inputs]
    found = {names.index(node.name) for node in program.graph.nodes if node.name in names and _indexes(node)}
    return tuple(sorted(found))


def _indexes(node: Any) -> bool:
    return any(
        len(user.args) > _INDICES.get(tt.flat.op_name(user), len(user.args))
        and user.args[_INDICES[tt.flat.op_name(user)]] is node
        for user in node.users
    )


def refuse_doubles(program: torch.export.ExportedProgram) -> None:
    """Refuses float64 where a number among an operator's arguments is not what it was as float32, which ONNX holds it in.

    Raises:
        BuildRefusedError: an epsilon of 1e-5 beside float64 tensors.
    """
    for node in program.graph.nodes:
        if any(value.dtype == torch.float64 for value in tt.flat.tensors_in(node)):
            for number in (*node.args, *node.kwargs.values()):
                if isinstance(number, float) and not _single(number):
                    op = tt.flat.op_name(node)
                    raise tt.BuildRefusedError(f"{op} has the float64 number {number!r}, which ONNX holds in float32")


def _single(number: float) -> bool:
    """Whether float32 holds a number exactly."""
    return not math.isfinite(number) or float(torch.tensor(number, dtype=torch.float32)) == number
