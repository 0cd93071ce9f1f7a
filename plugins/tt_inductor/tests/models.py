"""Modules that a fresh process has to be able to make again."""

from __future__ import annotations

import torch
from torch import nn


class Layer(nn.Module):
    """All kinds of weights that a package must find: tied, small, of no axis, not saved, and not contiguous."""

    small: torch.Tensor
    scalar: torch.Tensor

    def __init__(self, factor: float = 0.5, *, tie: bool = True, dense: bool = False) -> None:
        super().__init__()
        self.factor = factor
        self.first, self.second = nn.Linear(8, 16), nn.Linear(8, 16)
        if tie:
            self.second.weight = self.first.weight
        self.register_buffer("small", torch.randn(4), persistent=False)
        self.register_buffer("scalar", torch.randn(()))
        turned = torch.randn(16, 4).t()
        self.turned = nn.Parameter(turned.contiguous() if dense else turned)

    def forward(
        self, batch: dict[str, torch.Tensor], shift: torch.Tensor, *, steps: int = 2, scale: float = 1.5
    ) -> dict[str, torch.Tensor | int | None]:
        """Two inputs that share their first axis."""
        y = torch.relu(self.first(batch["a"] - batch["b"])) + self.second(batch["b"])
        y = (y @ self.turned.t() + self.small) * self.scalar * self.factor
        return {"y": y * scale + shift, "steps": steps, "none": None, "a": batch["a"]}


class Block(nn.Module):
    """A small layer of an encoder."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps (batch, tokens, width) to the same sizes."""
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        return self.norm(x + self.out(nn.functional.scaled_dot_product_attention(q, k, v)))


class Encoder(nn.Module):
    """Blocks one after the other."""

    def __init__(self, depth: int, width: int = 16) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block(width) for _ in range(depth))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps (batch, tokens, width) to the same sizes."""
        for layer in self.layers:
            x = layer(x)
        return x
