"""Conditions on the leaves of a call, as source text: constants by type and value, tensors by identity and size."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any

import torch

from tt_core.callkey import leaf_of
from tt_core.guards.walk import Names, Slot
from tt_core.values import Axis, ConstLeaf, Shapes, TensorLeaf

_SINGLE = (torch.dtype, torch.layout)
_BY_EQUALITY = (int, str, bytes, torch.device)


def const_text(expr: str, leaf: ConstLeaf, names: Names) -> str:
    """Whether `expr` is this constant, by exact type and value."""
    value = leaf.value
    if value is None or value is True or value is False:
        return f"{expr} is {value}"
    if isinstance(value, Enum) or leaf.type in _SINGLE:
        return f"{expr} is {names.hold('constant', value)}"
    if leaf.type in _BY_EQUALITY:
        literal = repr(value) if leaf.type in (int, str, bytes) else names.hold("constant", value)
        return f"{expr}.__class__ is {_class(leaf.type, names)} and {expr} == {literal}"
    if leaf.type is float and _plain_float(value):
        return f"{expr}.__class__ is float and {expr} == {float.fromhex(value)!r}"
    return f"{names.hold('leaf_of', leaf_of)}({expr}) == {names.hold('leaf', leaf)}"


def _class(kind: type, names: Names) -> str:
    return kind.__name__ if kind in (int, str, bytes) else names.hold(kind.__name__, kind)


def _plain_float(value: str) -> bool:
    """Neither zero, whose sign `==` does not see, nor NaN, nor infinite, which has no literal."""
    number = float.fromhex(value)
    return number != 0 and number - number == 0


def exact_text(slots: Sequence[Slot], covers: Shapes | None, names: Names) -> list[str]:
    """What each tensor `t0, t1, ...` must be: class, dtype, layout, device, rank and the sizes that are fixed."""
    conditions: list[str] = []
    for index, slot in enumerate(slots):
        leaf = slot.leaf
        assert isinstance(leaf, TensorLeaf)
        t = f"t{index}"
        parts = [f"{t}.__class__ is {names.hold(leaf.type.__name__, leaf.type)}"]
        parts += [f"{t}.dtype is {leaf.dtype}", f"{t}.layout is {leaf.layout}"]
        parts += [f"{t}.device == {names.hold('device', leaf.device)}", f"{t}.ndim == {leaf.rank}"]
        parts += [f"not ({t}.is_conj() or {t}.is_neg())"] * (leaf.layout is torch.strided)
        parts += [f"{t}.shape[{axis}] == {size}" for axis, size in _fixed(covers, index)]
        conditions.append(" and ".join(parts))
    return conditions


def sizes_of(slots: Sequence[Slot], covers: Shapes | None) -> list[list[int | None]]:
    """Per tensor the sizes that are fixed, None where they may move."""
    found: list[list[int | None]] = []
    for index, slot in enumerate(slots):
        assert isinstance(slot.leaf, TensorLeaf)
        sizes: list[int | None] = [None] * slot.leaf.rank
        for axis, size in _fixed(covers, index):
            sizes[axis] = size
        found.append(sizes)
    return found


def moving_text(slots: Sequence[Slot], covers: Shapes | None, names: Names) -> list[str]:
    """Ranges of the axes that move; axes of one symbol must be equal."""
    if covers is None:
        return []
    conditions: list[str] = []
    first: dict[str, tuple[str, Axis]] = {}
    for slot, sizes in zip(slots, covers.leaves, strict=True):
        for axis, size in enumerate(sizes):
            if isinstance(size, Axis):
                conditions += _axis(f"{slot.expr}.shape[{axis}]", size, first, names)
    return conditions


def _axis(expr: str, axis: Axis, first: dict[str, tuple[str, Axis]], names: Names) -> list[str]:
    if axis.symbol in first:
        held, leader = first[axis.symbol]
        within = [] if (leader.lo, leader.hi) == (axis.lo, axis.hi) else [f"{axis.lo} <= {held} <= {axis.hi}"]
        return [f"{expr} == {held}", *within]
    held = f"{names.prefix}size{len(first)}"
    first[axis.symbol] = held, axis
    return [f"{axis.lo} <= ({held} := {expr}) <= {axis.hi}"]


def contiguous_text(slots: Sequence[Slot]) -> list[str]:
    """Every strided tensor contiguous."""
    strided = [slot for slot in slots if isinstance(slot.leaf, TensorLeaf) and slot.leaf.layout is torch.strided]
    return [f"{slot.expr}.is_contiguous()" for slot in strided]


def _fixed(covers: Shapes | None, index: int) -> list[tuple[int, int]]:
    sizes: Sequence[Any] = () if covers is None else covers.leaves[index]
    return [(axis, size) for axis, size in enumerate(sizes) if isinstance(size, int)]
