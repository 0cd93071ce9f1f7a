"""Sizes that a built covers, and their intersection."""

from __future__ import annotations

from collections.abc import Callable, Sequence

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
    """Sizes that both admit: ranges meet, and axes are equal where either side says so."""
    pairs = [list(zip(left, right, strict=True)) for left, right in zip(a.leaves, b.leaves, strict=True)]
    group = _groups([pair for leaf in pairs for pair in leaf])
    met = [[_meet(x, y) for x, y in leaf] for leaf in pairs]
    ranges: dict[str, tuple[int, int]] = {}
    for leaf, sizes in zip(pairs, met, strict=True):
        for pair, (lo, hi) in zip(leaf, sizes, strict=True):
            if (name := group(pair)) is not None:
                low, high = ranges.get(name, (lo, hi))
                ranges[name] = max(low, lo), min(high, hi)
    return Shapes(
        leaves=tuple(
            tuple(_size(group(pair), span, ranges) for pair, span in zip(leaf, sizes, strict=True))
            for leaf, sizes in zip(pairs, met, strict=True)
        )
    )


Pair = tuple[int | Axis, int | Axis]


def _groups(pairs: Sequence[Pair]) -> Callable[[Pair], str | None]:
    """Names the class of axes that must be equal: the union of both sides' symbols."""
    root: dict[tuple[int, str], tuple[int, str]] = {}

    def find(node: tuple[int, str]) -> tuple[int, str]:
        while root.setdefault(node, node) != node:
            node = root[node]
        return node

    def ends(pair: Pair) -> list[tuple[int, str]]:
        return [(side, size.symbol) for side, size in enumerate(pair) if isinstance(size, Axis)]

    for pair in pairs:
        nodes = [find(node) for node in ends(pair)]
        if len(nodes) == len(pair):
            root[nodes[1]] = nodes[0]
    names: dict[tuple[int, str], str] = {}

    def name(pair: Pair) -> str | None:
        nodes = ends(pair)
        return names.setdefault(find(nodes[0]), f"s{len(names)}") if nodes else None

    return name


def _meet(a: int | Axis, b: int | Axis) -> tuple[int, int]:
    (low, high), (lo, hi) = ((x.lo, x.hi) if isinstance(x, Axis) else (x, x) for x in (a, b))
    return max(low, lo), min(high, hi)


def _size(name: str | None, span: tuple[int, int], ranges: dict[str, tuple[int, int]]) -> int | Axis:
    lo, hi = span if name is None else ranges[name]
    if lo > hi:
        return NEVER
    return lo if lo == hi else Axis(lo=lo, hi=hi, symbol=name or "")


NEVER = -1
"""A size that no tensor has: the claims of a chain exclude each other."""
