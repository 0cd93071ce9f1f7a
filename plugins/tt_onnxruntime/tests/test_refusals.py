"""What this backend would not keep it refuses, in one sentence, and in silence."""

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
    assert "\x1b" not in text
    assert len(text) < 300
    return text


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: T) -> T:
        self.seen.add_(1)
        return x * self.seen


@torch.library.custom_op("tt_onnxruntime_tests::mystery", mutates_args=())
def mystery(x: T) -> T:
    return x * 2


@mystery.register_fake
def _(x: T) -> T:
    return torch.empty_like(x)


def branch(x: T) -> T:
    return x * 2 if x.sum() > 0 else x * 3


@pytest.mark.parametrize(
    ("fn", "args", "words"),
    [
        (branch, (torch.ones(3),), "torch.export cannot trace it"),
        (lambda x: x.add_(1) * 2, (torch.ones(3),), "writes to its inputs"),
        (lambda x: x + torch.rand(3), (torch.ones(3),), "random numbers"),
        (lambda x: x * 0.1, (torch.ones(3, dtype=torch.float64),), "the float64 number 0.1"),
        (
            lambda x: nn.functional.layer_norm(x, (3,)),
            (torch.ones(2, 3, dtype=torch.float64),),
            "the float64 number 1e-05",
        ),
        (lambda x: x.asinh(), (torch.ones(3, dtype=torch.float64),), "Could not find an implementation"),
        (lambda x: x * 2, (torch.ones(3, dtype=torch.complex64),), "complex64"),
        (lambda x: torch.complex(x, x), (torch.ones(3),), "returns torch.complex64"),
        (lambda x: nn.functional.linear(x, x), (torch.ones(3, 3).bfloat16(),), "Could not find an implementation"),
        (mystery, (torch.ones(3),), "tt_onnxruntime_tests"),
        (lambda x: x.view(1, 3), (torch.ones(3),), "shares memory with an input"),
        (torch.nonzero, (torch.ones(3),), "size of a result depends on"),
        (lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)), (torch.ones(3),), "control flow"),
        (lambda x: (x, 3), (torch.ones(3),), "returns no tensor that it computed"),
        (lambda: torch.ones(3), (), "takes no tensors"),
    ],
)
def test_reasons(made: Any, capfd: pytest.CaptureFixture[str], fn: Any, args: tuple[Any, ...], words: str) -> None:
    """Each thing that would be wrong is named, and the exporter's pages of text are not printed."""
    assert words in refusal(made(Fn(fn), tt.Call(*args)))
    assert capfd.readouterr() == ("", "")


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
    assert "writes to its state" in refusal(made(nn.BatchNorm1d(3), tt.Call(x), training=True))
    with torch.autocast("cpu", torch.bfloat16):
        unit = made(nn.Linear(3, 3), tt.Call(torch.ones(2, 3)))
    assert "autocast" in refusal(unit)


def test_options(made: Any) -> None:
    """Unknown options and values are refused with the known ones as the hint."""
    unit = made(nn.Linear(3, 3), tt.Call(torch.ones(2, 3)))
    assert "'colour'" in refusal(unit, colour="red")
    with pytest.raises(tt.BuildRefusedError) as caught:
        unit.build(spinning="often")
    assert caught.value.hint == "known values: True, False, briefly, always"
