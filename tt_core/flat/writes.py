"""Whether an exported graph may write to what it was given: a walk that is careful, and cheap beside asking torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import Graph, Node

_FRESH = frozenset(
    {
        torch.ops.aten.conv1d,
        torch.ops.aten.conv2d,
        torch.ops.aten.conv3d,
        torch.ops.aten.linear,
        torch.ops.aten.matmul,
        torch.ops.aten.batch_norm,
        torch.ops.aten.layer_norm,
    }
)
"""Operators made of others whose result is never an argument itself; of the rest any may be (`dropout` in eval is)."""


def may_write_outside(graph: Graph) -> bool:
    """Whether some operator writes to memory that may belong to an input, a weight or a constant.

    False is certain. True means that nothing was proven: a result of an operator made of others counts as its arguments.
    """
    outside: set[Node] = set()
    for node in graph.nodes:  # in the order in which they run
        if any(written in outside for written in _written(node)):
            return True
        given = node.op != "call_function"
        if given or (_may_be_an_argument(node.target) and not outside.isdisjoint(node.all_input_nodes)):
            outside.add(node)
    return False


def _may_be_an_argument(target: Any) -> bool:
    """Whether a result may share memory with an argument: the schema says so, or the operator is made of others."""
    if not isinstance(target, torch._ops.OpOverload):
        return True
    if any(value.alias_info is not None for value in target._schema.returns):  # the one place that says so
        return True
    made_of_others = target.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd)
    return made_of_others and target.overloadpacket not in _FRESH


def _written(node: Node) -> Iterator[Node]:
    """The arguments that a node's operator writes to, or is made to share memory by."""
    schema = getattr(node.target, "_schema", None)
    if node.op != "call_function" or schema is None or not schema.is_mutable:
        return
    if schema.name == "aten::set_":  # from then on it shares the memory of all that it was given
        yield from node.all_input_nodes
    for place, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = node.args[place] if place < len(node.args) else node.kwargs.get(argument.name)
            yield from (
                each for each in (given if isinstance(given, list | tuple) else [given]) if isinstance(each, Node)
            )
