"""Sizes that a built covers, and their intersection."""

from __future__ import annotations

from collections.abc import Sequence

from tt_core.values.kinds import valued


@valued
class Axis:
    """A tensor axis whose size moves: `lo <= size <= hi`; axes of one symbol are equal within one call."""

    lo: int
    hi: int
    symbol: str


@valued
class Shapes:
    """The sizes a built covers: for each tensor leaf of a key a tuple of fixed sizes and axes."""

    leaves: tuple[tuple[int | Axis, ...], ...]

    @property
    def moving(self) -> bool:
        """Whether any axis moves."""
        return any(isinstance(size, Axis) for leaf in self.leaves for size in leaf)

    def admit(self, sizes: Sequence[Sequence[int]]) -> bool:
        """Whether one call's tensor sizes are covered, equal axes included."""
        bound: dict[str, int] = {}
        return len(sizes) == len(self.leaves) and all(
            len(leaf) == len(given) and all(_fits(size, n, bound) for size, n in zip(leaf, given, strict=True))
            for leaf, given in zip(self.leaves, sizes, strict=True)
        )


def _fits(size: int | Axis, n: int, bound: dict[str, int]) -> bool:
    if not isinstance(size, Axis):
        return size == n
    return size.lo <= n <= size.hi and bound.setdefault(size.symbol, n) == n


def covers_of(builts: Sequence[Shapes | None]) -> Shapes | None:
    """What a chain covers: the intersection of its parts' claims; None covers everything."""
    found: Shapes | None = None
    for shapes in builts:
        found = shapes if found is None else found if shapes is None else _intersect(found, shapes)
    return found


def _intersect(a: Shapes, b: Shapes) -> Shapes:
    return Shapes(
        leaves=tuple(
            tuple(_meet(x, y) for x, y in zip(left, right, strict=True))
            for left, right in zip(a.leaves, b.leaves, strict=True)
        )
    )


def _meet(a: int | Axis, b: int | Axis) -> int | Axis:
    if isinstance(a, Axis) and isinstance(b, Axis):
        return Axis(lo=max(a.lo, b.lo), hi=min(a.hi, b.hi), symbol=a.symbol)
    if isinstance(a, Axis):
        a, b = b, a  # one of them is fixed
    assert isinstance(a, int)
    within = b.lo <= a <= b.hi if isinstance(b, Axis) else a == b
    return a if within else -1  # no size fits both
