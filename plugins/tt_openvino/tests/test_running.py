"""Running: results are the caller's, memory outlives its use, threads do not meet, closing gives everything back."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn
from tt_openvino.run import Request

import tt_core as tt

ROWS = [4, 300, 2000]
"""Of 32 or 64 numbers: nothing has an address of its own, inputs have, inputs and results have."""


@pytest.mark.parametrize("rows", ROWS)
def test_results_are_kept(made: Any, close: Any, rows: int) -> None:
    """A result stays what it was over 300 later calls and the end of the built, copied and shared tensors alike."""
    unit = made(nn.Linear(32, 64), tt.Call(torch.randn(rows, 32)))
    built = unit.build()
    x = torch.randn(rows, 32)
    kept, expected = built.call(x), unit.eager(x)
    for _ in range(300):
        built.call(torch.randn(rows, 32))
    built.close()
    gc.collect()
    close(kept, expected)


@pytest.mark.parametrize("rows", ROWS)
def test_what_is_written_into_results_shows_nowhere(made: Any, close: Any, rows: int) -> None:
    """Results, one and the same value twice among them, are tensors of the caller's own."""
    unit = made(Twice(), tt.Call(torch.randn(rows, 32)))
    built = unit.build()
    x = torch.randn(rows, 32)
    for _ in range(2):
        first, second, third = built.call(x)
        close((first, second, third), unit.eager(x))
        first.zero_()
        third.fill_(7.0)
        close(second, unit.eager(x)[1])


class Twice(nn.Module):
    """Equal results that are no one tensor."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return x.exp(), x.exp(), x.sum()


@pytest.mark.parametrize("rows", ROWS)
def test_threads(made: Any, close: Any, rows: int) -> None:
    """Eight threads on one unit each get their own answers."""
    unit = made(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8)), tt.Call(torch.randn(rows, 32)))
    built = unit.build()
    inputs = [torch.randn(rows, 32) for _ in range(160)]
    expected = [unit.eager(x) for x in inputs]
    with ThreadPoolExecutor(8) as pool:
        actual = list(pool.map(built.call, inputs))
    for a, e in zip(actual, expected, strict=True):
        close(a, e)


def test_freed_inputs(made: Any, close: Any) -> None:
    """No request points at freed memory: inputs and results go away between calls of changing sizes."""
    unit = made(nn.Linear(64, 64), *(tt.Call(torch.randn(n, 64)) for n in (2000, 2)))
    built = unit.build()
    for n in (1999, 3, 1500, 2, 2000, 130) * 4:
        x = torch.randn(n, 64)
        close(built.call(x), unit.eager(x))
        del x
    gc.collect()


def test_alternating_sizes_are_bound_once(made: Any, close: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few sizes have requests of their own; of many the later ones share some, which are bound anew, and stay right."""
    bound: list[int] = []
    bind = Request._bind
    monkeypatch.setattr(Request, "_bind", lambda request, plan: bound.append(1) or bind(request, plan))
    unit = made(nn.Linear(8, 8), *(tt.Call(torch.randn(n, 8)) for n in (2, 90)))
    built = unit.build()
    inputs = [torch.randn(n, 8) for n in range(2, 22)]
    for x in inputs:
        close(built.call(x), unit.eager(x))
    bound.clear()
    for x in inputs[:5] * 3:
        close(built.call(x), unit.eager(x))
    assert not bound
    for x in inputs[18:] * 3:
        close(built.call(x), unit.eager(x))
    assert len(bound) == 6


def test_after_an_error(made: Any, close: Any) -> None:
    """A call that fails leaves nothing behind for the next one."""
    unit = made(nn.Linear(64, 64), tt.Call(torch.randn(300, 64)))
    built = unit.build()
    with pytest.raises(TypeError):
        built.call(torch.randn(300, 64, device="meta"))
    x = torch.randn(300, 64)
    close(built.call(x), unit.eager(x))


def test_inference_mode_and_gradients(made: Any, close: Any) -> None:
    """Calls under inference mode and inputs that require gradients (under no_grad) are served."""
    unit = made(nn.Linear(64, 64), tt.Call(torch.randn(300, 64)))
    built = unit.build()
    x = torch.randn(300, 64)
    with torch.inference_mode():
        close(built.call(x), unit.eager(x).clone())
    with torch.no_grad():
        close(built.call(x.clone().requires_grad_()), unit.eager(x))
    close(built.call(x), unit.eager(x))


def test_closed(made: Any) -> None:
    """A closed built hands every call back."""
    built = made(nn.Linear(4, 4), tt.Call(torch.randn(3, 4))).build()
    built.close()
    with pytest.raises(tt.DeclinedError, match="closed"):
        built.call(torch.randn(3, 4))


def test_claims(made: Any) -> None:
    """A built says that its weights are values, that it is not fork safe, and what it holds."""
    unit = made(nn.Linear(100, 50), tt.Call(torch.randn(3, 100)))
    built = unit.build()
    assert built.weights is tt.Weights.VALUES
    assert not built.fork_safe
    assert built.concurrent
    assert built.bytes_held == 4 * (100 * 50 + 50)
    assert built.covers == tt.Shapes(leaves=((3, 100),))
    assert built.notes[0].endswith("on CPU in f32")


def test_a_batch_of_one_costs_no_second_program(made: Any, close: Any) -> None:
    """Recorded batches of 1 and more are one program and one copy of the weights; a real branch on 1 makes two."""
    unit = made(nn.Linear(10, 5), *(tt.Call(torch.randn(n, 10)) for n in (4, 1)))
    built = unit.build()
    assert built.bytes_held == 4 * (10 * 5 + 5)
    assert len(built.notes) == 1
    for n in (1, 2, 4):
        assert unit.covers((n, 10))
        x = torch.randn(n, 10)
        close(built.call(x), unit.eager(x))
    unit = made(Branch(), *(tt.Call(torch.randn(n, 10)) for n in (4, 1)))
    built = unit.build()
    assert built.notes[1] == "2 programs, chosen by size"
    for n in (1, 2, 4):
        x = torch.randn(n, 10)
        close(built.call(x), unit.eager(x))


class Branch(nn.Module):
    """Another computation for a batch of one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.shape[0] > 1 else x * 3


def test_exports_are_dropped(made: Any) -> None:
    """Of export and conversion nothing stays behind once the model is compiled."""
    unit = made(nn.Linear(10, 5), tt.Call(torch.randn(4, 10)))
    before = exported_programs()
    unit.build()
    assert exported_programs() <= before


def exported_programs() -> int:
    gc.collect()
    return sum(issubclass(type(thing), torch.export.ExportedProgram) for thing in gc.get_objects())


def test_throughput(made: Any, close: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the throughput hint there are several streams, one request of each ran in the build, and answers stay right."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    ran: list[int] = []
    run = Request.run

    def seen(self: Any, plan: Any, inputs: Any) -> Any:
        ran.append(id(self))
        return run(self, plan, inputs)

    monkeypatch.setattr(Request, "run", seen)
    unit = made(nn.Linear(32, 32), tt.Call(torch.randn(8, 32)))
    built = unit.build(performance_hint="THROUGHPUT")
    (program,) = built.call.tt_state.runner.programs
    streams = int(program.loaded.get_property("NUM_STREAMS"))
    assert streams > 1
    assert len(ran) == len(set(ran)) == program.streams >= streams
    inputs = [torch.randn(8, 32) for _ in range(40)]
    with ThreadPoolExecutor(4) as pool:
        for x, actual in zip(inputs, pool.map(built.call, inputs), strict=True):
            close(actual, unit.eager(x))


def test_the_module_is_let_alone(made: Any) -> None:
    """Building changes neither flags, state, hooks nor forward of the module, nor torch's settings."""
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout())
    unit = made(module, tt.Call(torch.randn(3, 4)))
    module[2].train()
    module[2].eval()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    flags, threads, rng = [m.training for m in module.modules()], torch.get_num_threads(), torch.get_rng_state()
    unit.build().call(torch.zeros(3, 4))
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert [m.training for m in module.modules()] == flags
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), rng)
    assert "forward" not in vars(module)


def test_a_patched_forward(made: Any, close: Any) -> None:
    """The original forward is what is exported, whatever the instance's `forward` is by then."""
    module = nn.Linear(4, 4)
    unit = made(module, tt.Call(torch.randn(3, 4)))
    x = torch.randn(3, 4)
    expected = unit.eager(x)
    module.__dict__["forward"] = lambda x: x * 0
    close(unit.build().call(x), expected)
    assert torch.equal(module(x), x * 0)
