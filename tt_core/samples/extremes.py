"""Which samples to keep when not all can be: the smallest, the largest, the first, and each axis's extremes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

Sizes = tuple[tuple[int, ...], ...]
"""The shapes of the tensors of one sample, in order."""


def choose(samples: Sequence[Sizes], count: int) -> list[int]:
    """Indices of at most `count` samples, in their order.

    Args:
        samples: shapes of each sample, in the order in which they were read.
        count: how many may be kept, 1 or more.

    Returns:
        By preference: the largest and the smallest in elements, the first one, the first of every rank pattern, those
        with the largest and the smallest size of an axis, the others by order.
    """
    wanted: dict[int, None] = {}
    for index in (*_preferred(samples), *range(len(samples))):
        wanted.setdefault(index)
        if len(wanted) == count:
            break
    return sorted(wanted)


def _preferred(samples: Sequence[Sizes]) -> Iterable[int]:
    if not samples:
        return
    elements = [sum(math.prod(shape) for shape in sizes) for sizes in samples]
    yield max(range(len(samples)), key=elements.__getitem__)
    yield min(range(len(samples)), key=elements.__getitem__)
    yield 0
    patterns: dict[tuple[int, ...], list[int]] = {}
    for index, sizes in enumerate(samples):
        patterns.setdefault(tuple(map(len, sizes)), []).append(index)
    yield from (members[0] for members in patterns.values())
    for members in patterns.values():
        flat = {index: [size for shape in samples[index] for size in shape] for index in members}
        for axis in range(len(flat[members[0]])):
            yield max(members, key=lambda index: flat[index][axis])
            yield min(members, key=lambda index: flat[index][axis])
