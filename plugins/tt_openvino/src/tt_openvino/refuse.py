"""What this backend does not take: it would be wrong or not kept. Each refusal is one sentence."""

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


def refuse_calls(calls: tt.Calls) -> None:
    """Refuses by what eager runs and the call key say.

    Raises:
        BuildRefusedError: training, autocast, writes, random numbers, unusual tensors, kinds of numbers.
    """
    facts, ambient = calls.facts, calls.key.ambient
    reasons = {
        "it is in training mode": ambient.training,
        "it runs under autocast": bool(ambient.autocast),
        "it writes to its inputs": facts.writes_inputs,
        f"it writes to its state ({', '.join(facts.writes_state)})": bool(facts.writes_state),
        "it uses random numbers": facts.random,
        f"it works on {', '.join(sorted(facts.tensor_kinds))} tensors": bool(facts.tensor_kinds),
    }
    for reason, holds in reasons.items():
        if holds:
            raise tt.BuildRefusedError(reason)
    for leaf in calls.key.tensors:
        if leaf.layout != torch.strided or leaf.dtype.is_complex:
            raise tt.BuildRefusedError(
                f"it takes {leaf.layout if leaf.layout != torch.strided else leaf.dtype} tensors"
            )


def refuse_program(program: torch.export.ExportedProgram) -> None:
    """Refuses by what the exported graph does.

    Raises:
        BuildRefusedError: random numbers, control flow, float64, wrapping arithmetic, results that are one tensor.
    """
    for node in program.graph.nodes:
        _refuse_dtype(node)
        if node.op == "call_function":
            _refuse_op(node)
    outputs = [str(name) for name in program.graph_signature.user_outputs]
    inputs = {str(name) for name in program.graph_signature.user_inputs}
    if len(set(outputs)) < len(outputs) or inputs & set(outputs):
        raise tt.BuildRefusedError("two of its results are one tensor after export")


def _refuse_op(node: Any) -> None:
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        raise tt.BuildRefusedError(f"it has control flow inside ({node.target.name()})")
    if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()) and not _draws_nothing(node):
        raise tt.BuildRefusedError(f"it uses random numbers ({node.target})")


def _draws_nothing(node: Any) -> bool:
    """Whether a random operator's dropout is switched off: attention, recurrent layers, dropout itself."""
    for i, argument in enumerate(node.target._schema.arguments):  # the schema is the only place that names arguments
        value = node.args[i] if i < len(node.args) else node.kwargs.get(argument.name, argument.default_value)
        if argument.name in {"train", "training"} and not value:
            return True
        if argument.name in {"dropout_p", "dropout"} and not value:
            return True
    return False


def _refuse_dtype(node: Any) -> None:
    for value in tensors_in(node.meta.get("val")):
        if value.dtype == torch.float64:
            raise tt.BuildRefusedError("it computes in float64, which OpenVINO does in float32")
        if value.dtype in _NARROW and node.op == "call_function" and op_name(node) not in _MOVES:
            raise tt.BuildRefusedError(f"it computes in {value.dtype}, which wraps in torch and saturates in OpenVINO")


def attends_once(program: torch.export.ExportedProgram) -> bool:
    """Whether an attention in this trace has one query.

    OpenVINO's CPU attention (2026.4) that runs one query first is wrong for 16 and more ever after, so such a trace is
    compiled on its own.
    """
    for node in program.graph.nodes:
        if node.op == "call_function" and "scaled_dot_product" in op_name(node):
            query = node.args[0].meta["val"]
            if isinstance(query.shape[-2], int) and query.shape[-2] == 1:
                return True
    return False


def tensors_in(value: Any) -> list[torch.Tensor]:
    """The tensors of a node's value."""
    values = value if isinstance(value, (tuple, list)) else (value,)
    return [item for item in values if isinstance(item, torch.Tensor)]


def op_name(node: Any) -> str:
    """The bare name of a node's operator: `add` for `aten.add.Tensor`."""
    return str(getattr(node.target, "__name__", node.target)).split(".", maxsplit=1)[0]
