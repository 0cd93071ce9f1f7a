"""Sizes in mode "jit": few programs for many, a batch of one, and branches on a size."""

from __future__ import annotations

import warnings

import pytest
import torch
from jit_units import Make, Mlp, assert_near, build_jit
from torch import nn

import tt_core as tt

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("no_grad")]


class Block(nn.Module):
    """One encoder block without dropout; a mask that shares the sequence axis."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out, self.norm = nn.Linear(16, 48), nn.Linear(16, 16), nn.LayerNorm(16)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        b, s, _ = x.shape
        q, k, v = self.qkv(x).view(b, s, 3, 2, 8).permute(2, 0, 3, 1, 4).unbind(0)
        y = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None, :])
        return self.norm(x + self.out(y.transpose(1, 2).reshape(b, s, 16)))


def test_fourteen_lengths_are_one_program(make: Make, compiles: list[int]) -> None:
    """Recorded at two lengths, called at fourteen: compiled in the build only, right at each."""
    model = Block().eval()

    def call(s: int) -> tt.Call:
        return tt.Call(torch.randn(2, s, 16), mask=torch.ones(2, s, dtype=torch.bool))

    built = build_jit(make(model, call(3), call(29)))
    count = len(compiles)
    assert count <= 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for s in range(3, 31, 2):
            one = call(s)
            assert_near(built.call(*one.args, **one.kwargs), model(*one.args, **one.kwargs))
    assert len(compiles) == count
    assert built.covers is not None
    assert isinstance(built.covers.leaves[0][1], tt.Axis)
    assert built.covers.leaves[0][1] == built.covers.leaves[1][1]


def test_a_batch_of_one_is_covered(make: Make, compiles: list[int]) -> None:
    """PyTorch compiles size 1 apart: a range that begins there has both programs after the build."""
    model = Mlp().eval()
    built = build_jit(make(model, tt.Call(torch.randn(1, 8)), tt.Call(torch.randn(6, 8))))
    count = len(compiles)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for n in range(1, 7):
            x = torch.randn(n, 8)
            assert_near(built.call(x), model(x))
    assert len(compiles) == count


class Branch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.small, self.big = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.small(x) if x.shape[0] <= 2 else self.big(x).relu()


def test_a_branch_on_a_size_is_compiled_both_ways(make: Make, compiles: list[int]) -> None:
    """The smaller calls take a branch of their own, at the sizes that were recorded; the larger one covers the rest."""
    model = Branch().eval()
    built = build_jit(make(model, *(tt.Call(torch.randn(n, 4)) for n in (1, 2, 3, 5))))
    count = len(compiles)
    for n in (1, 2, 3, 4, 5):
        x = torch.randn(n, 4)
        assert_near(built.call(x), model(x))
    assert len(compiles) == count


def test_a_size_that_the_largest_call_fixes_is_refused(make: Make) -> None:
    """Every other size would have no program."""

    class Fixed(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.sin() if x.shape[0] == 5 else x.cos()

    with pytest.raises(tt.BuildRefusedError, match="one of the recorded sizes only"):
        build_jit(make(Fixed(), tt.Call(torch.randn(3, 4)), tt.Call(torch.randn(5, 4))))
