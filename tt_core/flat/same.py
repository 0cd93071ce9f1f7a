"""Whether two exports of one module are one program: a trace for sizes from 2 on, and one for a size of 1 or another branch.

`torch.export` fixes sizes 0 and 1, mostly without the program being another one. Where every operator, argument and
size of the special trace is what the general trace gives when the special sizes are put in, a runtime that asks sizes
at run time needs only the general program.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

Expressions = Mapping[Any, Any]

_RESIZES = {"slice", "expand", "view", "reshape"}
_SLICE_ARGUMENTS = 5
"""Tensor, axis, start, end, step: a slice of all elements in steps of one is the tensor."""


def same_program(general: torch.export.ExportedProgram, special: torch.export.ExportedProgram) -> bool:
    """Compares node by node; False where in doubt."""
    put = _substitution(general, special)
    ours, places = _steps(general, put)
    theirs, other_places = _steps(special, {})
    return len(ours) == len(theirs) and all(
        a.op == b.op
        and a.target == b.target
        and _plain(a.args, places, put) == _plain(b.args, other_places, {})
        and _plain(a.kwargs, places, put) == _plain(b.kwargs, other_places, {})
        and _sizes(a, put) == _sizes(b, {})
        for a, b in zip(ours, theirs, strict=True)
    )


def _steps(program: torch.export.ExportedProgram, put: Expressions) -> tuple[list[Any], dict[Any, int]]:
    """The nodes that compute something, and the place of each tensor; a node that changes nothing is its argument."""
    found: list[Any] = []
    places: dict[Any, int] = {}
    for node in _nodes(program):
        if _changes_nothing(node, put):
            places[node] = places[node.args[0]]
        else:
            places[node] = len(found)
            found.append(node)
    return found, places


def _changes_nothing(node: Any, put: Expressions) -> bool:
    """Whether a node gives its first argument again: a slice, expansion or reshape to the sizes that it has."""
    name = str(getattr(node.target, "__name__", "")).split(".", maxsplit=1)[0]
    if node.op != "call_function" or name not in _RESIZES or not isinstance(node.args[0], torch.fx.Node):
        return False
    whole = name != "slice" or len(node.args) < _SLICE_ARGUMENTS or node.args[-1] == 1
    return whole and _sizes(node, put) == _sizes(node.args[0], put)


def _nodes(program: torch.export.ExportedProgram) -> list[Any]:
    """The nodes that compute tensors, in order, and the output; sizes and assertions about them are not among them."""
    return [node for node in program.graph.nodes if node.op != "call_function" or _tensors(node)]


def _tensors(node: Any) -> list[torch.Tensor]:
    value = node.meta.get("val")
    values = value if isinstance(value, (tuple, list)) else (value,)
    return [item for item in values if isinstance(item, torch.Tensor)]


def _substitution(general: torch.export.ExportedProgram, special: torch.export.ExportedProgram) -> Expressions:
    """The special trace's size for each symbol of the general one, read from the inputs."""
    put: dict[Any, Any] = {}
    for a, b in zip(_inputs(general), _inputs(special), strict=True):
        for ours, theirs in zip(a.shape, b.shape, strict=True):
            expression = _expression(ours, {})
            if expression.is_Symbol:
                put.setdefault(expression, _expression(theirs, {}))
    return put


def _inputs(program: torch.export.ExportedProgram) -> list[torch.Tensor]:
    names = {str(name) for name in program.graph_signature.user_inputs}
    return [node.meta["val"] for node in program.graph.nodes if node.name in names]


def _expression(size: Any, put: Expressions) -> Any:
    """A size as a sympy expression, the special sizes put in."""
    if isinstance(size, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return size.node.expr.xreplace(put) if put else size.node.expr
    import sympy  # type: ignore[import-untyped]

    return sympy.sympify(size)


def _sizes(node: Any, put: Expressions) -> list[Any]:
    return [(value.dtype, tuple(_expression(size, put) for size in value.shape)) for value in _tensors(node)]


def _plain(value: Any, places: Mapping[Any, int], put: Expressions) -> Any:
    """Arguments in a form that compares: tensors by their place, sizes as expressions, the rest with its type."""
    if isinstance(value, torch.fx.Node):
        return ("tensor", places[value]) if value in places else ("size", _expression(value.meta["val"], put))
    if isinstance(value, (list, tuple)):
        return tuple(_plain(item, places, put) for item in value)
    if isinstance(value, Mapping):
        return {key: _plain(item, places, put) for key, item in value.items()}
    if type(value) is int or isinstance(value, torch.SymInt):
        return "size", _expression(value, put)
    return type(value), str(value)
