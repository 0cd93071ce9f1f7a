"""Attention as torch computes it: rows that a mask hides whole, a scale of one's own, no sizes asked for in a call."""

from __future__ import annotations

from typing import Any

import onnx
import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

import tt_core as tt

T = torch.Tensor


class Heads(nn.Module):
    """Four heads of a layer's outputs, which attend to each other."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)
        self.options = options

    def forward(self, x: T, mask: T | None = None) -> T:
        heads = self.linear(x).unflatten(-1, (4, 4)).transpose(1, 2)
        return scaled_dot_product_attention(heads, heads, heads, attn_mask=mask, **self.options)


def masked() -> T:
    mask = torch.rand(2, 1, 5, 5) > 0.3
    mask[0, 0, 2] = False
    return mask


X = torch.randn(2, 5, 16)


@pytest.mark.parametrize("options", [{}, {"scale": 0.3}, {"is_causal": True}], ids=str)
def test_without_a_mask(made: Any, close: Any, options: dict[str, Any]) -> None:
    """As eager has it, for sizes that move too."""
    longer = torch.randn(3, 7, 16)
    unit = made(Heads(**options), tt.Call(X), tt.Call(longer))
    built = unit.build()

    close(built.call(X), unit.eager(X))
    close(built.call(longer), unit.eager(longer))


@pytest.mark.parametrize("kind", ["bool", "float"])
def test_a_row_that_a_mask_hides_whole_is_zero(made: Any, close: Any, kind: str) -> None:
    """Also where no recorded call had such a row."""
    mask = masked()
    every = torch.ones_like(mask)
    number = lambda m: m if kind == "bool" else torch.zeros(m.shape).masked_fill(~m, -torch.inf)  # noqa: E731
    unit = made(Heads(), tt.Call(X, mask=number(every)))
    built = unit.build()
    expected = unit.eager(X, number(mask))

    assert not expected[0, :, 2].any()
    close(built.call(X, mask=number(mask)), expected)


def test_half_floats(made: Any, close: Any) -> None:
    """The scale is one of the tensors' own type."""
    x, mask = X.half(), masked()
    unit = made(Heads().half(), tt.Call(x, mask=mask))

    close(unit.build().call(x, mask=mask), unit.eager(x, mask), rtol=2e-3)


def test_no_size_is_asked_for_to_turn_the_keys(made: Any) -> None:
    """The exporter's own translation slices the keys' sizes in every call."""
    unit = made(Heads(), tt.Call(X), tt.Call(torch.randn(3, 7, 16)))
    (program,) = unit.build().call.tt_state.runner.programs

    kinds = {node.op_type for node in onnx.ModelProto.FromString(program.model.skeleton).graph.node}

    assert "MatMul" in kinds
    assert "Slice" not in kinds
