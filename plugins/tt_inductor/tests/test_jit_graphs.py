"""Graphs of mode "jit": breaks are noted, calls are never run twice, and what is not compiled is refused."""

from __future__ import annotations

import threading
import warnings

import pytest
import torch
from jit_units import Make, assert_near, build_jit
from torch import nn
from tt_inductor.dynamo import ISOLATES

import tt_core as tt

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("no_grad", "mkl")]


@pytest.fixture(autouse=True)
def programs_of_its_own() -> None:
    """Where torch cannot isolate what it compiles, builts of one class share Dynamo's limit: the tests' too."""
    if not ISOLATES:
        torch.compiler.reset()


def test_nothing_compiled_is_a_failure(make: Make) -> None:
    """An LSTM is skipped by Dynamo without a word: not installed as "inductor"."""
    with pytest.raises(tt.BuildRefusedError, match="nothing was compiled"):
        build_jit(make(nn.LSTM(4, 4).eval(), tt.Call(torch.randn(3, 2, 4))))


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        return x.sin() * self.seen


def test_a_unit_that_always_compiles_anew_is_refused(make: Make) -> None:
    """A Python counter in the module changes the program with every call."""
    with pytest.raises(tt.BuildRefusedError, match="compile anew"):
        build_jit(make(Counter().eval(), tt.Call(torch.randn(3))))


class Broken(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.sin() + 1
        torch._dynamo.graph_break()
        return y.cos() * 2


class BrokenInside(nn.Module):
    """A break in an inner frame, and work after it in the outer one."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Broken()

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.inner(x) + y.tanh()


def test_graph_breaks_are_noted(make: Make, compiles: list[int]) -> None:
    """A unit of two graphs works, and says so; `fullgraph` refuses it."""
    x = torch.randn(5)
    built = build_jit(make(Broken(), tt.Call(x)))
    assert built.notes == ("graph break: 2 graphs; 4 of 4 operators in compiled programs, the others in Python",)
    count = len(compiles)
    assert_near(built.call(x), Broken()(x))
    for _ in range(2):
        with pytest.raises(tt.DeclinedError, match="no program"):
            built.call(torch.randn(7))
    assert_near(built.call(x), Broken()(x))
    assert len(compiles) == count
    with pytest.raises(tt.BuildRefusedError, match="Dynamo cannot trace"):
        build_jit(make(Broken(), tt.Call(x)), fullgraph=True)


def test_a_part_that_does_not_fit_goes_on_as_in_eager(make: Make, compiles: list[int]) -> None:
    """Once a program of the call ran it cannot be handed back: one warning, and eager's result."""
    x, y = torch.randn(5), torch.randn(5)
    built = build_jit(make(BrokenInside(), tt.Call(x, y)))
    count = len(compiles)
    wide = torch.randn(3, 5)
    with pytest.warns(tt.FallbackWarning, match="in part"):
        assert_near(built.call(x, wide), BrokenInside()(x, wide))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_near(built.call(x, wide), BrokenInside()(x, wide))
        assert_near(built.call(x, y), BrokenInside()(x, y))
    assert len(compiles) == count


def test_a_unit_that_writes_is_never_handed_back_halfway(make: Make) -> None:
    """What Python did before the first program would be done twice."""
    x = torch.randn(5)
    built = build_jit(make(Broken(), tt.Call(x), writes_state=("seen",)))
    wide = torch.randn(7)
    with pytest.warns(tt.FallbackWarning, match="in part"):
        assert_near(built.call(wide), Broken()(wide))


@pytest.mark.skipif(not ISOLATES, reason="this torch's own limit comes first, and Python answers such calls uncounted")
def test_too_many_kinds_of_calls_without_a_program(make: Make) -> None:
    """Tracing each new kind in service has an end: then every call is handed back."""
    x = torch.randn(5)
    built = build_jit(make(Broken(), tt.Call(x)))
    for n in range(6, 24):
        with pytest.raises(tt.DeclinedError):
            built.call(torch.randn(n))
    with pytest.raises(tt.DeclinedError, match="16 kinds of calls"):
        built.call(x)


class Locked(nn.Module):
    """Dynamo does not enter a frame that takes a lock, but those that are called inside."""

    def __init__(self, turns: int) -> None:
        super().__init__()
        self.linear, self.lock, self.turns = nn.Linear(4, 4), threading.Lock(), turns

    def _act(self, x: torch.Tensor) -> torch.Tensor:
        return x.sin()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with self.lock:
            x = torch.relu(self.linear(x))
            for _ in range(self.turns):
                x = self._act(x)
        return x


def test_python_in_disguise_is_refused(make: Make) -> None:
    """Where graph breaks leave most operators to Python there is nothing that may be called compiled."""
    x = torch.randn(2, 4)
    with pytest.raises(tt.BuildRefusedError, match="graph breaks leave only 2 of 4 operators in compiled programs"):
        build_jit(make(Locked(2), tt.Call(x)))
    model = Locked(3)
    built = build_jit(make(model, tt.Call(x)))
    assert built.notes == ("graph break: 1 graph; 3 of 5 operators in compiled programs, the others in Python",)
    assert_near(built.call(x), model(x))


class Loop(nn.Module):
    """One compiled frame that runs six times: each run counts."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Broken() for _ in range(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def test_programs_count_as_often_as_they_run(make: Make) -> None:
    """Layers that share a compiled frame are no reason to refuse."""
    x = torch.randn(5)
    built = build_jit(make(Loop(), tt.Call(x)))
    assert "24 of 24 operators" in built.notes[0]
    assert_near(built.call(x), Loop()(x))
