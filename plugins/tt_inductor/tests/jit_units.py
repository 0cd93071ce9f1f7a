"""What the tests of mode "jit" share: a small unit, its build, and a comparison."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import tt_inductor
from torch import nn

import tt_core as tt

Make = Callable[..., tuple[tt.Unit, tt.Calls]]
CPU = torch.device("cpu")


def build_jit(pair: tuple[tt.Unit, tt.Calls], **options: Any) -> tt.Built:
    unit, calls = pair
    options = {"mode": "jit", **options}
    return tt_inductor.tt_build(unit=unit, calls=calls, device=CPU, options=options, limits=tt.Limits(seconds=600))


def assert_near(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 8)
        self.scale = 2.0

    def forward(self, x: torch.Tensor, shift: torch.Tensor | None = None, *, double: bool = False) -> torch.Tensor:
        y = self.second(torch.relu(self.first(x))) * self.scale
        y = y if shift is None else y + shift
        return y * 2 if double else y
