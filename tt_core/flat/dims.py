"""Ranges of sizes as `torch.export` wants them."""

from __future__ import annotations

from typing import Any

from tt_core.values import Axis, Shapes

SMALLEST = 2
"""`torch.export` takes sizes 0 and 1 for constants: a moving axis starts here."""


def dynamic_shapes(shapes: Shapes, *, auto: bool = False) -> tuple[Any, ...] | None:
    """The `dynamic_shapes` of a function `forward(*tensors)`.

    Args:
        shapes: the ranges; axes of one symbol share one `Dim`. The lower ends are raised to 2; an axis that then has
            one size left is fixed.
        auto: `Dim.AUTO` with the ranges instead: the exporter finds equalities itself and may fix an axis, where a
            `Dim` makes it raise.

    Returns:
        A tuple of one tuple (for `*tensors`) of a dict from axis to `Dim` or None per tensor; None if nothing moves.
    """
    made: dict[str, Any] = {}
    leaves = tuple(
        {d: _dim(size, made, auto=auto) for d, size in enumerate(leaf) if isinstance(size, Axis) and _moves(size)}
        or None
        for leaf in shapes.leaves
    )
    return (leaves,) if any(leaves) else None


def _moves(axis: Axis) -> bool:
    return max(axis.lo, SMALLEST) < axis.hi


def _dim(axis: Axis, made: dict[str, Any], *, auto: bool) -> Any:
    from torch.export import Dim

    lo, hi = max(axis.lo, SMALLEST), axis.hi
    if auto:
        return Dim.AUTO(min=lo, max=hi)
    if axis.symbol not in made:
        made[axis.symbol] = Dim(f"s{len(made)}", min=lo, max=hi)
    return made[axis.symbol]


def around(shapes: Shapes, sizes: tuple[tuple[int, ...], ...]) -> Shapes:
    """`shapes` as far as one program can serve it with `sizes` as its example: axes of size 0 or 1 there are fixed."""
    return Shapes(
        leaves=tuple(
            tuple(_around(size, n) for size, n in zip(leaf, given, strict=True))
            for leaf, given in zip(shapes.leaves, sizes, strict=True)
        )
    )


def _around(size: int | Axis, n: int) -> int | Axis:
    if not isinstance(size, Axis) or n < SMALLEST or not _moves(size):
        return n
    return Axis(lo=max(size.lo, SMALLEST), hi=size.hi, symbol=size.symbol)
