"""Running: results are the caller's, memory outlives its use, threads do not meet, closing gives everything back."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn

import tt_core as tt


@pytest.fixture
def unit(made: Any) -> Any:
    """A perceptron with a moving batch, built."""
    unit = made(
        nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8)),
        *(tt.Call(torch.randn(n, 32)) for n in (300, 2)),
    )
    unit.build()
    return unit


def test_results_are_kept(unit: Any, close: Any) -> None:
    """A result stays what it was over 1,000 later calls, also when the caller writes into the others."""
    x = torch.randn(40, 32)
    kept, expected = unit.built.call(x), unit.eager(x)
    for _ in range(1000):
        unit.built.call(torch.randn(40, 32)).zero_()
    close(kept, expected)


def test_results_outlive_the_session(unit: Any, close: Any) -> None:
    """Their memory is ONNX Runtime's: it goes when they go, not when the session does."""
    x = torch.randn(300, 32)
    kept, expected = unit.built.call(x), unit.eager(x)
    unit.built.close()
    unit.built = None
    gc.collect()
    _ = [torch.randn(300, 8) for _ in range(50)]
    close(kept, expected)


class Constants(nn.Module):
    """What ONNX Runtime may compute once: weights turned and scaled, and constants."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(64, 64))
        self.register_buffer("c", torch.arange(64.0))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x @ self.w, x.reshape(-1) * 1, self.w + 0, self.w.t().clone(), self.c * 2, torch.arange(9) + 1


def test_what_is_written_into_results_shows_nowhere(made: Any, close: Any) -> None:
    """Neither in the next call's, nor in weights, nor in inputs: no result shares memory with any of them."""
    x = torch.randn(64, 64)
    unit = made(Constants(), tt.Call(x))
    built = unit.build()
    expected = unit.eager(x)
    weights, given = [each.clone() for each in unit.module.state_dict().values()], x.clone()
    for result in built.call(x):
        result.fill_(7)
    for actual, wanted in zip(built.call(x), expected, strict=True):
        close(actual, wanted)
    assert torch.equal(x, given)
    assert all(map(torch.equal, unit.module.state_dict().values(), weights))


def test_threads(unit: Any, close: Any) -> None:
    """Eight threads on one session each get their own answers, in changing sizes."""
    inputs = [torch.randn(2 + i % 50, 32) for i in range(200)]
    expected = [unit.eager(x) for x in inputs]
    with ThreadPoolExecutor(8) as pool:
        actual = list(pool.map(unit.built.call, inputs))
    for a, e in zip(actual, expected, strict=True):
        close(a, e)


def test_freed_inputs(unit: Any, close: Any) -> None:
    """No binding reads freed memory: inputs and results go away between calls of changing sizes; inputs are not written."""
    for n in (299, 3, 150, 2, 300, 130) * 3:
        x = torch.randn(n, 32)
        before = x.clone()
        close(unit.built.call(x), unit.eager(x))
        assert torch.equal(x, before)
        del x
        gc.collect(0)


def test_modes(unit: Any, close: Any) -> None:
    """Calls under inference mode, and inputs that require gradients (under no_grad), are served."""
    x = torch.randn(30, 32)
    with torch.inference_mode():
        close(unit.built.call(x), unit.eager(x).clone())
    with torch.no_grad():
        close(unit.built.call(x.clone().requires_grad_()), unit.eager(x))


def test_claims(unit: Any) -> None:
    """Weights are values; it is not fork safe; it says what it holds; nothing of the export is left."""
    built = unit.built
    assert built.weights is tt.Weights.VALUES
    assert not built.fork_safe
    assert built.concurrent
    assert 0 < built.bytes_held <= 2 * 4 * (32 * 64 + 64 + 64 * 8 + 8)
    assert built.covers == tt.Shapes(leaves=((tt.Axis(lo=2, hi=300, symbol="s0"), 32),))
    assert built.notes == (built.notes[0],)
    assert built.notes[0].startswith("ONNX Runtime 1.")
    gc.collect()
    assert not [one for one in gc.get_objects() if type(one).__name__ == "ONNXProgram"]


def test_closed(unit: Any) -> None:
    """A closed built hands every call back."""
    unit.built.close()
    with pytest.raises(tt.DeclinedError, match="closed"):
        unit.built.call(torch.randn(3, 32))


def test_a_patched_forward(made: Any, close: Any) -> None:
    """The original forward is what is exported, whatever the instance's `forward` is by then; spinning can be off."""
    module = nn.Linear(4, 4)
    unit = made(module, tt.Call(torch.randn(3, 4)))
    x = torch.randn(3, 4)
    expected = unit.eager(x)
    module.__dict__["forward"] = lambda x: x * 0
    close(unit.build(spinning=False).call(x), expected)
