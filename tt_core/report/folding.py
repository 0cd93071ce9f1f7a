"""Paths of many equal modules as one: `encoder.layer.0-11`. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

_DIGITS = re.compile(r"(\d+)")


def pattern(path: str) -> str:
    """`path` with its numbers left open: equal for modules of the same place in equal blocks."""
    return _DIGITS.sub("#", path)


def fold(paths: Sequence[str]) -> str:
    """Paths of one pattern as one text.

    Args:
        paths: distinct paths with equal `pattern(path)`, at least one.

    Returns:
        The path itself, `layer.0-3,7.mlp` where one number moves, `block.*.layer.*` where several do.
    """
    pieces = [_DIGITS.split(path) for path in paths]
    moving = [i for i in range(1, len(pieces[0]), 2) if len({piece[i] for piece in pieces}) > 1]
    folded = list(pieces[0])
    for i in moving:
        folded[i] = _ranges(sorted({int(piece[i]) for piece in pieces})) if len(moving) == 1 else "*"
    if moving == [1] and not folded[0] and folded[2]:  # `0-1.0` would read like a number
        folded[1] = f"[{folded[1]}]"
    return "".join(folded)


def _ranges(numbers: Sequence[int]) -> str:
    """`[0, 1, 2, 7]` as `0-2,7`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
