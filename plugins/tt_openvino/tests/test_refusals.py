"""What this backend would not keep it refuses, in one sentence."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import tt_core as tt

T = torch.Tensor


class Fn(nn.Module):
    """A function as a module."""

    def __init__(self, fn: Any) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, *args: Any) -> Any:
        return self.fn(*args)


def refusal(unit: Any, **options: Any) -> str:
    with pytest.raises(tt.BuildRefusedError) as caught:
        unit.build(**options)
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 300
    return text


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: T) -> T:
        self.seen.add_(1)
        return x * self.seen


def branch(x: T) -> T:
    return x * 2 if x.sum() > 0 else x * 3


@pytest.mark.parametrize(
    ("fn", "args", "words"),
    [
        (branch, (torch.ones(3),), "torch.export cannot trace it"),
        (lambda x: x.add_(1) * 2, (torch.ones(3),), "writes to its inputs"),
        (lambda x: x + torch.rand(3), (torch.ones(3),), "random numbers"),
        (lambda x: x * 2, (torch.ones(3, dtype=torch.float64),), "float64"),
        (lambda x: x.double().mul(3).float(), (torch.ones(3),), "float64"),
        (lambda x: x * 2, (torch.ones(3, dtype=torch.complex64),), "complex64"),
        (lambda x: x.view(1, 3), (torch.ones(3),), "shares memory with an input"),
        (lambda x: x + x, (torch.ones(3, dtype=torch.uint8),), "uint8"),
        (lambda x: x * x * x * x, (torch.ones(3, dtype=torch.int64),), "32 bits"),
        (lambda x: x + 0x123456789, (torch.ones(3, dtype=torch.int64),), "32 bits"),
        (
            lambda x: x ^ 5,
            (torch.ones(3, dtype=torch.int64),),
            "No conversion rule found for operations: aten.bitwise_xor",
        ),
        (torch.nonzero, (torch.ones(3),), "size of a result depends on"),
        (lambda x: (x * 2, object()), (torch.ones(3),), "neither a tensor nor a plain value"),
        (lambda x: (x * 2, x.sum().item()), (torch.ones(3),), "depends on the sizes or values"),
        (lambda x: (x, 3), (torch.ones(3),), "returns no tensor that it computed"),
        (lambda: torch.ones(3), (), "takes no tensors"),
    ],
)
def test_reasons(made: Any, fn: Any, args: tuple[Any, ...], words: str) -> None:
    """Each thing that would be wrong is named."""
    assert words in refusal(made(Fn(fn), tt.Call(*args)))


def test_state_writes(made: Any) -> None:
    """A buffer that forward changes is named, whether eager runs showed it or the export did."""
    x = torch.ones(3)
    assert "seen" in refusal(made(Counter(), tt.Call(x), facts=tt.Facts(writes_state=("seen",))))
    assert "seen" in refusal(made(Counter(), tt.Call(x)))


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (tt.Facts(random=True), "random"),
        (tt.Facts(writes_inputs=True), "inputs"),
        (tt.Facts(tensor_kinds=frozenset({"sparse", "nested"})), "nested, sparse"),
    ],
)
def test_facts(made: Any, facts: tt.Facts, words: str) -> None:
    """What eager runs showed is believed."""
    assert words in refusal(made(nn.Linear(3, 3), tt.Call(torch.ones(2, 3)), facts=facts))


def test_training_and_autocast(made: Any) -> None:
    """Keys recorded under autocast are refused; training mode is where it draws random numbers or writes to state."""
    x = torch.randn(2, 3)
    unit = made(nn.Linear(3, 3), tt.Call(x), training=True)
    torch.testing.assert_close(unit.build().call(x), unit.eager(x))
    assert "random numbers" in refusal(made(nn.Dropout(), tt.Call(x), training=True))
    assert "random numbers" in refusal(made(nn.Linear(3, 3), tt.Call(x), facts=tt.Facts(random=True), training=True))
    assert "writes to its state" in refusal(made(nn.BatchNorm1d(3), tt.Call(x), training=True))
    with torch.autocast("cpu", torch.bfloat16):
        unit = made(nn.Linear(3, 3), tt.Call(torch.ones(2, 3)))
    assert "autocast" in refusal(unit)


def test_numbers_that_differ(made: Any) -> None:
    """A number in the result that differs between the recorded calls is not bound."""
    unit = made(Fn(lambda x: (x * 2, x.shape[0])), tt.Call(torch.ones(3)), tt.Call(torch.ones(4)))
    assert "is 3 in one recorded call and 4 in another" in refusal(unit)


def test_options(made: Any) -> None:
    """Unknown options and values are refused with the known ones as the hint."""
    unit = made(nn.Linear(3, 3), tt.Call(torch.ones(2, 3)))
    assert "'colour'" in refusal(unit, colour="red")
    with pytest.raises(tt.BuildRefusedError) as caught:
        unit.build(performance_hint="FAST")
    assert caught.value.hint == "known values: LATENCY, THROUGHPUT"


def test_embeddings_with_positions(made: Any) -> None:
    """Ordinary integer arithmetic (RoBERTa's positions, T5's buckets) is not refused."""
    table = nn.Embedding(20, 4)

    def forward(ids: T) -> T:
        mask = ids.ne(1).int()
        positions = (torch.cumsum(mask, 1) * mask).long() + 1
        distance = torch.arange(5)[None, :] - torch.arange(5)[:, None]
        bucket = 8 + (torch.log(distance.abs().float() + 1) * 2).to(torch.long)
        return table(positions) + table(ids), torch.min(bucket, torch.full_like(bucket, 15))

    unit = made(Fn(forward), tt.Call(torch.randint(0, 20, (2, 5))))
    built = unit.build()
    ids = torch.randint(0, 20, (2, 5))
    for actual, expected in zip(built.call(ids), unit.eager(ids), strict=True):
        torch.testing.assert_close(actual, expected)
