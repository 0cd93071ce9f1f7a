"""Sizes that an export knows reach OpenVINO: a size that it can only ask at run time costs it its best kernels."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from tt_openvino.known import write_known_sizes

import tt_core as tt


class Heads(nn.Module):
    """Splits into heads as models do, and joins them again; `two` has an expression over the length as a size."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(24, 24)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        heads = self.linear(x).view(*x.shape[:-1], -1, 4).transpose(1, 2)
        joined = heads.softmax(-1).transpose(1, 2).reshape(*x.shape[:-1], -1)
        return joined, joined.reshape(x.shape[0], x.shape[1] * 2, -1)


def calls() -> tuple[tt.Call, ...]:
    """Two lengths, one batch."""
    return tuple(tt.Call(torch.randn(1, length, 24)) for length in (5, 9))


def test_no_size_is_left_open_that_is_known(made: Any) -> None:
    """-1 and expressions give way to numbers where the export fixed them, and stay where the size moves."""
    unit = made(Heads(), *calls())
    program = tt.flatten_unit(unit.unit, unit.calls).export(unit.calls.samples[1], unit.calls.shapes).program
    x = unit.calls.samples[0].call.args[0]
    expected = program.module()(x)
    write_known_sizes(program)
    asked = [
        node.args[1] for node in program.graph.nodes if "view" in str(node.target) or "reshape" in str(node.target)
    ]
    assert [[size if isinstance(size, int) else "moves" for size in sizes] for sizes in asked] == [
        [1, "moves", 6, 4],
        [1, "moves", 24],
        [1, "moves", 12],
    ]
    assert all(map(torch.equal, program.module()(x), expected))


def test_results_of_every_length(made: Any, close: Any) -> None:
    """Right for every length, the sizes that were written included."""
    unit = made(Heads(), *calls())
    built = unit.build()
    for length in (5, 7, 9):
        x = torch.randn(1, length, 24)
        close(built.call(x), unit.eager(x))
