"""The modules of the ladder: each asks one thing of a backend."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn

from tt_core.values import Keeps


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
