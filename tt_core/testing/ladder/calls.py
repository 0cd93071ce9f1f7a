"""The calls of the ladder: tensors that depend on nothing but the arguments here."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from tt_core.values import Call

SEED = 20


def drawn(*sizes: int, seed: int = SEED, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Normal numbers that depend on the arguments alone."""
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed)).to(dtype)


def _counted(high: int, *sizes: int, seed: int = SEED) -> torch.Tensor:
    return torch.randint(0, high, sizes, generator=torch.Generator().manual_seed(seed))


def rows(*batches: int, dtype: torch.dtype = torch.float32) -> Callable[[], tuple[Call, ...]]:
    """Calls of `Rows`, one for each batch."""
    return lambda: tuple(Call(drawn(n, 12, seed=SEED + i, dtype=dtype)) for i, n in enumerate(batches))


def wide(*batches: int, width: int = 8) -> Callable[[], tuple[Call, ...]]:
    """One tensor of a number of columns, one call for each batch."""
    return lambda: tuple(Call(drawn(n, width, seed=SEED + i)) for i, n in enumerate(batches))


def rows_spelled() -> tuple[Call, ...]:
    """The first call of `Rows` by name."""
    return (Call(x=drawn(2, 12)),)


def nested() -> tuple[Call, ...]:
    """Calls of `Nested` of one size."""
    return tuple(Call(drawn(3, 8, seed=i), drawn(3, 8, seed=i + 9), flip=True) for i in (1, 2))


def nested_spelled() -> tuple[Call, ...]:
    """The first call of `Nested` in other spellings."""
    x, y = drawn(3, 8, seed=1), drawn(3, 8, seed=10)
    return (
        Call(x, y=y, flip=True),
        Call(y=y, flip=True, x=x),
        Call(flip=True, scale=0.5, y=y, x=x, mask=None),
        Call(x, y, None, flip=True, scale=0.5),
    )


def axes(*sizes: tuple[int, int, int, int]) -> Callable[[], tuple[Call, ...]]:
    """Calls of `Axes` with (n, s) of each tensor."""
    return lambda: tuple(
        Call(drawn(a, b, 8, seed=i), drawn(c, d, 8, seed=i + 50)) for i, (a, b, c, d) in enumerate(sizes)
    )


def equal(*sizes: tuple[int, int]) -> Callable[[], tuple[Call, ...]]:
    """Calls of `Axes` with (n, s) of both tensors."""
    return axes(*((*size, *size) for size in sizes))


def tokens(*batches: int) -> Callable[[], tuple[Call, ...]]:
    """Calls of `Tokens`, one for each batch."""
    return lambda: tuple(
        Call(_counted(40, n, 6, seed=i), _counted(2, n, 6, seed=i + 9).bool()) for i, n in enumerate(batches)
    )


def behaving() -> tuple[Call, ...]:
    """Calls of `Behaves` of one size."""
    return tuple(Call(drawn(4, 8, seed=i), drawn(4, 8, seed=i + 9)) for i in (1, 2, 3))


def attended() -> tuple[Call, ...]:
    """Calls of `Attention` of three lengths."""
    masks = [torch.arange(s) < math.ceil(s / 2) for s in (4, 6, 9)]
    return tuple(
        Call(drawn(n, len(m), 16, seed=n), m.expand(n, -1).contiguous()) for n, m in zip((2, 3, 5), masks, strict=True)
    )


def branched() -> tuple[Call, ...]:
    """Calls of `Branch`, one for each side."""
    return tuple(Call(sign * drawn(4, 8).abs()) for sign in (1.0, -1.0))


def images() -> tuple[Call, ...]:
    """Calls of `Convolved` of several batches and sizes."""
    return tuple(Call(drawn(n, 3, size, size, seed=n)) for n, size in ((2, 8), (3, 8), (5, 12)))


def scalars() -> tuple[Call, ...]:
    """Calls of `Scalars`."""
    return tuple(Call(drawn(4, 8, seed=i), torch.tensor(0.5 + i)) for i in (1, 2))


def narrow() -> tuple[Call, ...]:
    """Calls of `Narrow`."""
    return tuple(Call(_counted(1000, 4, 8, seed=i).int(), _counted(200, 4, 8, seed=i).to(torch.uint8)) for i in (1, 2))


def columns() -> tuple[Call, ...]:
    """Calls of `Rows` with tensors that are not contiguous."""
    return tuple(Call(drawn(12, 4, seed=i).mT) for i in (1, 2))
