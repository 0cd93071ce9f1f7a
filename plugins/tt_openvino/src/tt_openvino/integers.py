"""Where 64-bit integers would leave the 32 bits that OpenVINO computes them in.

OpenVINO's plugins run int64 as int32. A magnitude analysis over the exported graph finds how large the int64 inputs may be
so that no int64 value inside reaches 2**31; larger inputs are a call for the original forward. Integers that come
from floats, sorting or positions are taken to be below 2**24.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

import tt_core as tt

_WORD = 31
_COUNT = 24
"""Bits of positions, sizes and of integers that come from floats."""
_LEAST = 8
"""Inputs limited to fewer bits than this are not worth a build."""


class Bits(NamedTuple):
    """A value is below `2 ** (inputs * B + own)` if the int64 inputs are below `2 ** B`."""

    inputs: int
    own: int


class Limit(NamedTuple):
    """What one int64 input may hold: `low <= value < high`."""

    low: int
    high: int


_SMALL = {torch.bool: 1, torch.uint8: 8, torch.int8: 7, torch.int16: 15, torch.uint16: 16, torch.int32: _WORD}
_VALUED = {"full", "full_like", "new_full", "scalar_tensor", "masked_fill", "where", "clamp", "clamp_min", "clamp_max",
           "fill", "constant_pad_nd"}  # fmt: skip
_UNBOUND = {
    "pow",
    "prod",
    "cumprod",
    "matmul",
    "mm",
    "bmm",
    "addmm",
    "dot",
    "bitwise_left_shift",
    "__lshift__",
    "lshift",
}


def limits_of(program: torch.export.ExportedProgram) -> dict[int, Limit]:
    """For each int64 input, by position, what it may hold.

    Raises:
        BuildRefusedError: an int64 value may reach 2**31 whatever the inputs hold.
    """
    found: dict[Any, Bits] = {}
    allowed = _WORD
    wide = []
    for node in program.graph.nodes:
        types = {value.dtype for value in tt.flat.tensors_in(node)}
        if types and not any(kind.is_floating_point or kind.is_complex for kind in types):
            found[node] = bits = _bits(node, found, program)
            if torch.int64 in types:
                wide.append(node)
                allowed = min(allowed, _allowed(bits, node))
            else:
                found[node] = _wrapped(bits, types)
    names = [str(name) for name in program.graph_signature.user_inputs]
    nodes = {node.name: node for node in wide}
    return {i: _limit(nodes[name], allowed) for i, name in enumerate(names) if name in nodes}


def _allowed(bits: Bits, node: Any) -> int:
    allowed = (_WORD - bits.own) // bits.inputs if bits.inputs else (_WORD if bits.own <= _WORD else 0)
    if allowed < _LEAST:
        raise tt.BuildRefusedError(
            f"64-bit integers may leave 32 bits in {tt.flat.op_name(node)}: OpenVINO computes them in 32"
        )
    return allowed


def _wrapped(bits: Bits, types: set[torch.dtype]) -> Bits:
    """A narrower type holds no more than its width: torch and OpenVINO both wrap int32."""
    width = max(_SMALL.get(kind, _WORD) for kind in types)
    return Bits(inputs=bits.inputs, own=min(bits.own, width))


def _limit(node: Any, allowed: int) -> Limit:
    """The limit of an input; of an index into a table also the table's length, so that eager can raise its error."""
    low, high = -(2**allowed) + 1, 2**allowed
    for user in node.users:
        if tt.flat.op_name(user) == "embedding" and user.args[1] is node:
            low, high = 0, min(high, int(user.args[0].meta["val"].shape[0]))
    return Limit(low=low, high=high)


def _bits(node: Any, found: Mapping[Any, Bits], program: torch.export.ExportedProgram) -> Bits:
    if node.op == "placeholder":
        return _placeholder(node, program)
    name = tt.flat.op_name(node)
    rule = _RULES.get(name)
    inputs = [found.get(arg) or _small(arg) for arg in node.all_input_nodes if tt.flat.tensors_in(arg)]
    given = [bits for bits in inputs if bits is not None]
    if rule is not None:
        return rule(node, given)
    if name in _UNBOUND:
        return Bits(inputs=0, own=2 * _WORD)
    if name in _VALUED:
        given.append(Bits(inputs=0, own=_scalars(node)))
    return _largest(given) if given else Bits(inputs=0, own=_COUNT)


def _placeholder(node: Any, program: torch.export.ExportedProgram) -> Bits:
    signature = program.graph_signature
    target = (
        signature.inputs_to_parameters.get(node.name)
        or signature.inputs_to_buffers.get(node.name)
        or signature.inputs_to_lifted_tensor_constants.get(node.name)
    )
    if target is None:
        kind = node.meta["val"].dtype
        return Bits(inputs=1, own=0) if kind == torch.int64 else Bits(inputs=0, own=_SMALL.get(kind, _WORD))
    value = program.state_dict.get(target, program.constants.get(target))
    largest = int(value.abs().max()) if isinstance(value, torch.Tensor) and value.numel() else 0
    return Bits(inputs=0, own=largest.bit_length())


def _small(node: Any) -> Bits | None:
    """Bits of a tensor that is no int64: what a conversion of it can hold."""
    values = tt.flat.tensors_in(node)
    return Bits(inputs=0, own=max(_SMALL.get(value.dtype, _COUNT) for value in values)) if values else None


def _largest(given: list[Bits]) -> Bits:
    return Bits(inputs=max(bits.inputs for bits in given), own=max(bits.own for bits in given))


def _scalars(node: Any) -> int:
    numbers = [arg for arg in (*node.args, *node.kwargs.values()) if isinstance(arg, (int, float))]
    return max((_magnitude(number) for number in numbers), default=0)


def _magnitude(number: float) -> int:
    return int(abs(number)).bit_length() if math.isfinite(number) else 2 * _WORD


def _sum_of(node: Any, given: list[Bits]) -> Bits:
    largest = _largest([*given, Bits(inputs=0, own=_scalars(node))])
    return Bits(inputs=largest.inputs, own=largest.own + 1)


def _product(node: Any, given: list[Bits]) -> Bits:
    both = given * 2 if len(given) == 1 and len([a for a in node.args if isinstance(a, torch.fx.Node)]) > 1 else given
    return Bits(inputs=sum(bits.inputs for bits in both), own=sum(bits.own for bits in both) + _scalars(node))


def _total(node: Any, given: list[Bits]) -> Bits:
    """A sum over elements: as many more bits as the number of elements has."""
    count = 1
    for size in tt.flat.tensors_in(node.args[0])[0].shape:
        count *= _bound(size)
    largest = _largest(given)
    return Bits(inputs=largest.inputs, own=largest.own + (count - 1).bit_length())


def _bound(size: Any) -> int:
    """The largest value of a size."""
    if isinstance(size, int):
        return max(size, 1)
    upper = size.node.shape_env.bound_sympy(size.node.expr).upper
    return int(upper) if upper.is_finite else 2**_COUNT


def _position(node: Any, given: list[Bits]) -> Bits:  # noqa: ARG001  one signature for all rules
    return Bits(inputs=0, own=_COUNT)


_RULES: dict[str, Callable[[Any, list[Bits]], Bits]] = {
    **dict.fromkeys(("add", "sub", "rsub", "add_", "sub_", "addcmul"), _sum_of),
    **dict.fromkeys(("mul", "mul_", "square"), _product),
    **dict.fromkeys(("sum", "cumsum"), _total),
    **dict.fromkeys(("arange", "argmax", "argmin", "argsort", "nonzero", "bucketize", "searchsorted"), _position),
}
