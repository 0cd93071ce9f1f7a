"""Enough exports of a unit for all of its recorded sizes, and the sizes that they are right for together."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from tt_core.errors import BuildRefusedError
from tt_core.flat.exported import Exported
from tt_core.flat.unit import Flat
from tt_core.values import Axis, Calls, Shapes

Sizes = Sequence[Sequence[int]]
Alone = Callable[[torch.export.ExportedProgram], bool]

PROGRAMS = 3
"""Programs of one built: one for sizes from 2 on, others where a size of 1 or a branch makes another."""
EXPORTS = 6
"""Traces that are made to find them."""


def _never(program: torch.export.ExportedProgram) -> bool:  # noqa: ARG001  the default of `alone`
    return False


def traces(flat: Flat, calls: Calls, alone: Alone = _never) -> list[list[Exported]]:
    """Exports a unit around its largest recorded call, and around each that no trace so far is right for.

    Recorded calls with a moving axis at 0 are left out: eager is as fast on nothing, and `torch.export` takes 0 for fixed.

    Args:
        flat: the unit.
        calls: its recorded calls.
        alone: whether a trace has to be a program of its own, though another program serves it node by node.

    Returns:
        Groups of traces; those of a group are one program, the first the most general.

    Raises:
        BuildRefusedError: it does not export, needs too many traces or programs, or all recorded inputs are empty.
    """
    groups: list[list[Exported]] = []
    for sample in sorted(calls.samples, key=lambda sample: -elements(flat.sizes(sample))):
        sizes = flat.sizes(sample)
        if _void(sizes, calls.shapes) or any(exported.fits(sizes) for group in groups for exported in group):
            continue
        if sum(map(len, groups)) == EXPORTS:
            raise BuildRefusedError(f"its recorded sizes need more than {EXPORTS} exports")
        exported = flat.export(sample, calls.shapes)
        if not exported.fits(sizes):
            raise BuildRefusedError("the exported program does not admit the sizes it was exported with")
        _join(groups, exported, alone)
    if not groups:
        raise BuildRefusedError("all recorded inputs are empty")
    return groups


def _join(groups: list[list[Exported]], exported: Exported, alone: Alone) -> None:
    """Adds a trace to the program that serves it, or as one of its own."""
    for group in groups:
        if group[0].serves(exported) and not alone(exported.program):
            group.append(exported)
            return
    if len(groups) == PROGRAMS:
        raise BuildRefusedError(f"its recorded sizes need more than {PROGRAMS} programs")
    groups.append([exported])


def elements(sizes: Sizes) -> int:
    """Elements of all tensors of a call."""
    return sum(torch.Size(size).numel() for size in sizes)


def _void(sizes: Sizes, shapes: Shapes) -> bool:
    """Whether a moving axis is 0 in this call."""
    pairs = zip(sizes, shapes.leaves, strict=True)
    return any(n == 0 and isinstance(axis, Axis) for size, leaf in pairs for n, axis in zip(size, leaf, strict=True))


def hull(parts: Sequence[Shapes]) -> Shapes:
    """The narrowest ranges that hold all of `parts`, shapes of one call key; axes that are equal in each part stay so."""
    if len(parts) == 1:
        return parts[0]
    symbols: dict[tuple[int | str, ...], str] = {}
    return Shapes(
        leaves=tuple(
            tuple(_joined(sizes, symbols) for sizes in zip(*leaves, strict=True))
            for leaves in zip(*(part.leaves for part in parts), strict=True)
        )
    )


def _joined(sizes: Sequence[int | Axis], symbols: dict[tuple[int | str, ...], str]) -> int | Axis:
    lo = min(size.lo if isinstance(size, Axis) else size for size in sizes)
    hi = max(size.hi if isinstance(size, Axis) else size for size in sizes)
    if lo == hi:
        return lo
    what = tuple(size.symbol if isinstance(size, Axis) else size for size in sizes)
    return Axis(lo=lo, hi=hi, symbol=symbols.setdefault(what, f"s{len(symbols)}"))
