"""The ladder: small modules and calls, each of which asks one thing of a backend. Every rung builds in well under a second
in eager terms; a compiler takes seconds for each, so `QUICK` holds as few as show every promise once.

for rung in QUICK:
    module, calls = rung.make(frozenset()), rung.calls()
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn

from tt_core.values import Call, Keeps, frozen

Made = Callable[[frozenset[Keeps]], nn.Module]
_SEED = 20


def _none() -> tuple[Call, ...]:
    return ()


@frozen
class Rung:
    """One small module with calls. All on the CPU, in evaluation mode, parameters drawn from torch's global generator.

    Attributes:
        name: one word, for test ids and tables.
        says: what the rung asks of a backend.
        make: the module; gets the behaviours that the backend declares to keep.
        calls: what is recorded: one call key, several sizes where axes move.
        spellings: other spellings of the first recorded call, each with tensors of the same values.
        inside: calls that were not recorded, of sizes between the recorded ones.
        outside: calls of the same key just outside of what was recorded: sizes beyond the range, axes unequal that were
            always equal. Eager may refuse them.
    """

    name: str
    says: str
    make: Made
    calls: Callable[[], tuple[Call, ...]]
    spellings: Callable[[], tuple[Call, ...]] = _none
    inside: Callable[[], tuple[Call, ...]] = _none
    outside: Callable[[], tuple[Call, ...]] = _none

    def __str__(self) -> str:
        """The name: the rung's id in tests."""
        return self.name


def drawn(*sizes: int, seed: int = _SEED, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Normal numbers that depend on the arguments alone."""
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed)).to(dtype)


def _counted(high: int, *sizes: int, seed: int = _SEED) -> torch.Tensor:
    return torch.randint(0, high, sizes, generator=torch.Generator().manual_seed(seed))


class Rows(nn.Module):
    """A small perceptron: (n, 12) to (n, 10), with a plain number among its attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(12, 24), nn.LayerNorm(24), nn.Linear(24, 10)
        self.slope = 1.5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps rows to rows."""
        return self.last(self.norm(torch.tanh(self.first(x)) * self.slope))


class Moments(NamedTuple):
    """A named tuple among results."""

    mean: torch.Tensor
    spread: torch.Tensor


@dataclass
class Parts:
    """A dataclass among results."""

    head: torch.Tensor
    rest: list[torch.Tensor]
    hidden: torch.Tensor | None = None


class Nested(nn.Module):
    """Defaults, keyword-only constants and an optional tensor in; every usual kind of container out."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(8, 8)

    def forward(
        self,
        x: torch.Tensor,
        y: torch.Tensor,
        mask: torch.Tensor | None = None,
        *,
        scale: float = 0.5,
        flip: bool = False,
    ) -> dict[str, Any]:
        """Maps two (3, 8) tensors to a tree of tensors."""
        h = self.mix(x) * scale - y
        h = -h if flip else h
        h = h if mask is None else h * mask
        spread = (h * h).mean(-1)
        return {
            "out": h,
            "pair": (h.exp(), [h.sin(), None]),
            "moments": Moments(h.mean(-1), spread),
            "parts": Parts(head=h[:, :2] * 2, rest=[h + 1]),
            "ordered": OrderedDict(b=h.cos(), a=h.tanh()),
        }


class Axes(nn.Module):
    """Two tensors of one batch and one length: what holds for them does not hold when one of the sizes is 1."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(8, 6), nn.Linear(8, 6)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Maps (n, s, 8) and (n, s, 8) to (n, s, 6) and (n, 6)."""
        h = torch.tanh(self.left(x)) + self.right(y)
        return h, h.mean(1)


class Tokens(nn.Module):
    """Integers and booleans in, and out beside floating point numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(40, 12)

    def forward(self, ids: torch.Tensor, keep: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Maps int64 (n, 6) and bool (n, 6) to f32 (n, 12), int64 (n, 6) and bool (n,)."""
        h = self.table(ids).masked_fill(~keep.unsqueeze(-1), 0.0)
        return h.sum(1), ids * 2 + keep, keep.any(-1)


class Behaves(nn.Module):
    """Does what `keeps` names, and nothing more."""

    def __init__(self, keeps: Collection[Keeps]) -> None:
        super().__init__()
        self.mix = nn.Linear(8, 8)
        self.count: torch.Tensor
        self.register_buffer("count", torch.zeros(1))
        self._keeps = frozenset(keep.name for keep in keeps)

    def forward(self, x: torch.Tensor, into: torch.Tensor) -> dict[str, Any]:
        """Maps two (4, 8) tensors to a dict."""
        h = torch.tanh(self.mix(x) + into)
        result: dict[str, Any] = {"out": h}
        if "RANDOM" in self._keeps:
            result["noise"] = torch.rand_like(h) + h
        if "STATE_WRITES" in self._keeps:
            self.count.add_(1)
            result["count"] = self.count * 2
        if "INPUT_WRITES" in self._keeps:
            into.mul_(2).add_(1)
        if "ALIASES" in self._keeps:
            result["same"] = x
        if "NON_TENSORS" in self._keeps:
            result["width"], result["kind"], result["flag"] = x.shape[-1], "rows", True
        return result


class Views(nn.Module):
    """Results that are views of an input and of one another."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Maps (4, 8) to a view of it, and to a tensor with a view of that."""
        h = x * 2
        return x[:, 2:6], h, h.mT


class Branch(nn.Module):
    """A branch on values: one trace holds for one side."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps (4, 8) to (4, 8)."""
        return torch.tanh(x) if bool(x.sum() > 0) else x * 3


class Convolved(nn.Module):
    """A convolution with batch normalisation, as in image models."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Maps (n, 3, h, w) to (n, 8)."""
        return torch.relu(self.norm(self.conv(images))).mean((-1, -2))


class Attention(nn.Module):
    """Scaled dot-product attention with a mask, as in transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(16, 48)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Maps (n, s, 16) and bool (n, s) to (n, s, 16)."""
        q, k, v = (part.unflatten(-1, (2, 8)).transpose(1, 2) for part in self.project(x).chunk(3, -1))
        h = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None, :])
        return h.transpose(1, 2).flatten(-2)


class Tied(nn.Module):
    """One weight under two names, and one module called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.back = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
        self.back.weight = self.mix.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps (n, 8) to (n, 8)."""
        return self.back(torch.sigmoid(self.mix(self.mix(x))))


class Scalars(nn.Module):
    """Tensors without axes, in and out."""

    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Maps (4, 8) and () to () and (4, 8)."""
        return (x * x).sum() * weight, x * weight + 1


class Narrow(nn.Module):
    """Integers narrower than int64, which wrap around."""

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Maps int32 (4, 8) and uint8 (4, 8) to int32 and uint8."""
        return a * 3 - 7, b * 2 + 200


class Hooked(nn.Module):
    """An inner module whose hook doubles its result."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.inner.register_forward_hook(_doubled)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps (n, 8) to (n, 8)."""
        return self.inner(x) + 1


def _doubled(module: nn.Module, args: Any, result: torch.Tensor) -> torch.Tensor:  # noqa: ARG001  a hook's arguments
    return result * 2


def _plain(kind: Callable[[], nn.Module]) -> Made:
    return lambda _keeps: kind()


def _typed(dtype: torch.dtype) -> Made:
    return lambda _keeps: Rows().to(dtype)


def _rows(*batches: int, dtype: torch.dtype = torch.float32) -> Callable[[], tuple[Call, ...]]:
    return lambda: tuple(Call(drawn(n, 12, seed=_SEED + i, dtype=dtype)) for i, n in enumerate(batches))


def _wide(*batches: int, width: int = 8) -> Callable[[], tuple[Call, ...]]:
    return lambda: tuple(Call(drawn(n, width, seed=_SEED + i)) for i, n in enumerate(batches))


def _rows_spelled() -> tuple[Call, ...]:
    return (Call(x=drawn(2, 12)),)


def _nested() -> tuple[Call, ...]:
    return tuple(Call(drawn(3, 8, seed=i), drawn(3, 8, seed=i + 9), flip=True) for i in (1, 2))


def _nested_spelled() -> tuple[Call, ...]:
    x, y = drawn(3, 8, seed=1), drawn(3, 8, seed=10)
    return (
        Call(x, y=y, flip=True),
        Call(y=y, flip=True, x=x),
        Call(flip=True, scale=0.5, y=y, x=x, mask=None),
        Call(x, y, None, flip=True, scale=0.5),
    )


def _axes(*sizes: tuple[int, int, int, int]) -> Callable[[], tuple[Call, ...]]:
    """Calls of `Axes` with (n, s) of each tensor."""
    return lambda: tuple(
        Call(drawn(a, b, 8, seed=i), drawn(c, d, 8, seed=i + 50)) for i, (a, b, c, d) in enumerate(sizes)
    )


def _equal(*sizes: tuple[int, int]) -> Callable[[], tuple[Call, ...]]:
    return _axes(*((*size, *size) for size in sizes))


def _tokens(*batches: int) -> Callable[[], tuple[Call, ...]]:
    return lambda: tuple(
        Call(_counted(40, n, 6, seed=i), _counted(2, n, 6, seed=i + 9).bool()) for i, n in enumerate(batches)
    )


def _behaves() -> tuple[Call, ...]:
    return tuple(Call(drawn(4, 8, seed=i), drawn(4, 8, seed=i + 9)) for i in (1, 2, 3))


def _attended() -> tuple[Call, ...]:
    masks = [torch.arange(s) < math.ceil(s / 2) for s in (4, 6, 9)]
    return tuple(
        Call(drawn(n, len(m), 16, seed=n), m.expand(n, -1).contiguous()) for n, m in zip((2, 3, 5), masks, strict=True)
    )


def _branched() -> tuple[Call, ...]:
    return tuple(Call(sign * drawn(4, 8).abs()) for sign in (1.0, -1.0))


def _images() -> tuple[Call, ...]:
    return tuple(Call(drawn(n, 3, size, size, seed=n)) for n, size in ((2, 8), (3, 8), (5, 12)))


def _scalars() -> tuple[Call, ...]:
    return tuple(Call(drawn(4, 8, seed=i), torch.tensor(0.5 + i)) for i in (1, 2))


def _narrow() -> tuple[Call, ...]:
    return tuple(Call(_counted(1000, 4, 8, seed=i).int(), _counted(200, 4, 8, seed=i).to(torch.uint8)) for i in (1, 2))


def _columns() -> tuple[Call, ...]:
    return tuple(Call(drawn(12, 4, seed=i).mT) for i in (1, 2))


ROWS = Rung(
    name="rows",
    says="float32 with a moving batch",
    make=_plain(Rows),
    calls=_rows(2, 3, 5),
    spellings=_rows_spelled,
    inside=_rows(4, 2),
    outside=_rows(1, 9, 0),
)
"""The first rung: the one that weights, threads, dumps and `close` are tried on."""
NESTED = Rung(
    name="nested",
    says="every spelling of a call; nested results",
    make=_plain(Nested),
    calls=_nested,
    spellings=_nested_spelled,
)
AXES = Rung(
    name="axes",
    says="two moving axes, each equal in two tensors",
    make=_plain(Axes),
    calls=_equal((2, 4), (3, 6), (5, 7)),
    inside=_equal((4, 5), (5, 5), (2, 7)),
    outside=_axes((3, 5, 1, 5), (3, 5, 3, 1), (1, 5, 3, 5), (6, 5, 6, 5), (3, 5, 3, 4), (2, 5, 3, 5)),
)
TOKENS = Rung(
    name="tokens",
    says="int64 and bool, in and out",
    make=_plain(Tokens),
    calls=_tokens(2, 3, 5),
    inside=_tokens(4),
    outside=_tokens(7),
)
HALF = Rung(name="half", says="bfloat16", make=_typed(torch.bfloat16), calls=_rows(4, 4, dtype=torch.bfloat16))
DOUBLE = Rung(name="double", says="float64", make=_typed(torch.float64), calls=_rows(4, 4, dtype=torch.float64))
BEHAVES = Rung(name="behaves", says="all that it declares to keep, at once", make=Behaves, calls=_behaves)

_ONE_BY_ONE = tuple(
    Rung(
        name=keep.name.lower(),
        says=f"a unit that has {keep.value}" if keep is not Keeps.INPUT_WRITES else "a unit that writes to its inputs",
        make=lambda _keeps, keep=keep: Behaves({keep}),  # type: ignore[misc]  # mypy takes the default for an argument
        calls=_behaves,
    )
    for keep in Keeps
)

QUICK: tuple[Rung, ...] = (ROWS, NESTED, AXES, TOKENS, HALF, DOUBLE, BEHAVES)
"""One build each, and every promise is asked once."""

LONG: tuple[Rung, ...] = (
    *_ONE_BY_ONE,
    Rung(name="one", says="a batch of 1 among others", make=_plain(Rows), calls=_rows(1, 2, 5), inside=_rows(3)),
    Rung(name="float16", says="float16", make=_typed(torch.float16), calls=_rows(4, 4, dtype=torch.float16)),
    Rung(name="narrow", says="int32 and uint8", make=_plain(Narrow), calls=_narrow),
    Rung(name="scalars", says="tensors of rank 0", make=_plain(Scalars), calls=_scalars),
    Rung(name="views", says="results that are views", make=_plain(Views), calls=_wide(4, 4)),
    Rung(name="columns", says="inputs that are not contiguous", make=_plain(Rows), calls=_columns),
    Rung(name="branch", says="a branch on values, both ways", make=_plain(Branch), calls=_branched),
    Rung(name="convolved", says="images of moving size", make=_plain(Convolved), calls=_images),
    Rung(name="attention", says="masked attention of moving length", make=_plain(Attention), calls=_attended),
    Rung(name="tied", says="one weight under two names", make=_plain(Tied), calls=_wide(2, 3, 5), inside=_wide(4)),
    Rung(name="hooked", says="a hook on an inner module", make=_plain(Hooked), calls=_wide(4, 4)),
)
"""The rest, for a longer run."""

ALL: tuple[Rung, ...] = (*QUICK, *LONG)
