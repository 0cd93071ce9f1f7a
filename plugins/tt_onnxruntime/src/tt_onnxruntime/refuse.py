"""What this backend does not take: it would be wrong or not kept. Each refusal is one sentence."""

from __future__ import annotations

from typing import Any

import torch

import tt_core as tt

_INDICES = {"embedding": 1, "index_select": 2, "gather": 2}
"""Operators that refuse negative indices, and the place of these: ONNX counts them from the end."""


def refuse_calls(calls: tt.Calls) -> None:
    """Refuses by what eager runs and the call key say.

    Raises:
        BuildRefusedError: training, autocast, writes, random numbers, unusual tensors.
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
        kind = leaf.layout if leaf.layout != torch.strided else leaf.dtype
        if leaf.layout != torch.strided or leaf.dtype.is_complex:
            raise tt.BuildRefusedError(f"it takes {kind} tensors")


def refuse_program(program: torch.export.ExportedProgram) -> None:
    """Refuses by what the exported graph does.

    Raises:
        BuildRefusedError: random numbers, control flow, float64, results that are one tensor.
    """
    for node in program.graph.nodes:
        if any(value.dtype == torch.float64 for value in _tensors_in(node.meta.get("val"))):
            raise tt.BuildRefusedError("it computes in float64, and ONNX holds numbers like an epsilon in float32")
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
        if argument.name in {"train", "training", "dropout_p", "dropout"} and not value:
            return True
    return False


def _tensors_in(value: Any) -> list[torch.Tensor]:
    values = value if isinstance(value, (tuple, list)) else (value,)
    return [item for item in values if isinstance(item, torch.Tensor)]


def indices_of(program: torch.export.ExportedProgram) -> tuple[int, ...]:
    """The inputs, by position, that index a table directly: a negative value there is eager's error, not a result."""
    names = [str(name) for name in program.graph_signature.user_inputs]
    found = {names.index(node.name) for node in program.graph.nodes if node.name in names and _indexes(node)}
    return tuple(sorted(found))


def _indexes(node: Any) -> bool:
    return any(
        len(user.args) > _INDICES.get(_op_name(user), len(user.args)) and user.args[_INDICES[_op_name(user)]] is node
        for user in node.users
    )


def _op_name(node: Any) -> str:
    """The bare name of a node's operator: `add` for `aten.add.Tensor`."""
    return str(getattr(node.target, "__name__", node.target)).split(".", maxsplit=1)[0]
