"""What no exported program keeps: each refusal is one sentence."""

from __future__ import annotations

from typing import Any

import torch

from tt_core.errors import BuildRefusedError
from tt_core.values import Calls

_SWITCHES = {"train", "training", "dropout_p", "dropout"}
"""Arguments of random operators that, when zero, switch their dropout off."""


def refuse_calls(calls: Calls) -> None:
    """Refuses by what eager runs and the call key say.

    Training mode alone is no reason: what is wrong with it is random numbers and writes to state, and these are facts.

    Raises:
        BuildRefusedError: autocast, writes, random numbers, unusual or complex tensors.
    """
    facts, ambient = calls.facts, calls.key.ambient
    reasons = {
        "it runs under autocast": bool(ambient.autocast),
        "it writes to its inputs": facts.writes_inputs,
        f"it writes to its state ({', '.join(facts.writes_state)})": bool(facts.writes_state),
        "it uses random numbers": facts.random,
        f"it works on {', '.join(sorted(facts.tensor_kinds))} tensors": bool(facts.tensor_kinds),
    }
    for reason, holds in reasons.items():
        if holds:
            raise BuildRefusedError(reason)
    for leaf in calls.key.tensors:
        if leaf.layout != torch.strided or leaf.dtype.is_complex:
            raise BuildRefusedError(f"it takes {leaf.layout if leaf.layout != torch.strided else leaf.dtype} tensors")


def refuse_graph(program: torch.export.ExportedProgram) -> None:
    """Refuses by what the exported graph does.

    Raises:
        BuildRefusedError: control flow, random numbers, results that are one tensor or an input.
    """
    for node in program.graph.nodes:
        if node.op == "call_function":
            _refuse_op(node)
    outputs = [str(name) for name in program.graph_signature.user_outputs]
    inputs = {str(name) for name in program.graph_signature.user_inputs}
    if len(set(outputs)) < len(outputs) or inputs & set(outputs):
        raise BuildRefusedError("two of its results are one tensor after export")


def _refuse_op(node: Any) -> None:
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        raise BuildRefusedError(f"it has control flow inside ({node.target.name()})")
    if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()) and not _draws_nothing(node):
        raise BuildRefusedError(f"it uses random numbers ({node.target})")


def _draws_nothing(node: Any) -> bool:
    """Whether a random operator's dropout is switched off: attention, recurrent layers, dropout itself."""
    for i, argument in enumerate(node.target._schema.arguments):  # the schema is the only place that names arguments
        value = node.args[i] if i < len(node.args) else node.kwargs.get(argument.name, argument.default_value)
        if argument.name in _SWITCHES and not value:
            return True
    return False


def tensors_in(node: Any) -> list[torch.Tensor]:
    """The (fake) tensors that a node of an exported graph computes, none for a size."""
    value = node.meta.get("val")
    values = value if isinstance(value, (tuple, list)) else (value,)
    return [item for item in values if isinstance(item, torch.Tensor)]


def op_name(node: Any) -> str:
    """The bare name of a node's operator: `add` for `aten.add.Tensor`."""
    return str(getattr(node.target, "__name__", node.target)).split(".", maxsplit=1)[0]
