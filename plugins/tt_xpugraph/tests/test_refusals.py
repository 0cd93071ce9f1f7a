"""What cannot be captured is refused with its reason, and leaves the device as usable as before."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import tt_xpugraph
from torch import nn

import tt_core as tt

LIMITS = tt.Limits(seconds=60)
GENERATOR = torch.Generator()


class Reads(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.sum() > 0 else x * 3


class Draws(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand(x.shape, generator=GENERATOR)


class Searches(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nonzero(x).sum()


class Away(nn.Module):
    """Reads a tensor that is no parameter and is elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.held = [torch.tensor(2.0, device="meta")]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + (self.held[0] * 2).new_zeros((), device="cpu")


class Nothing(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class Moved(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.zeros(3, device="meta"))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


def attempt(make: Any, fake: Any, module: nn.Module, *calls: tt.Call, limits: Any = LIMITS, **kw: Any) -> tt.Built:
    unit, recorded = make(module, *calls, **kw.pop("facts", {}))
    inner = kw.pop("inner", None)
    with torch.no_grad():
        return tt_xpugraph.tt_build(unit=unit, calls=recorded, device=fake.at, options=kw, inner=inner, limits=limits)


@pytest.mark.parametrize(
    ("module", "facts", "reason"),
    [
        (Reads(), {}, "reads a value on the host"),
        (Draws(), {"random": True}, "random generator of its own"),
        (Searches(), {}, "size of a tensor depends on values"),
        (Away(), {}, "reads a tensor on meta"),
        (Moved(), {}, "table is on meta, not on"),
        (Nothing(), {}, "computes no tensor"),
        (nn.ReLU(), {"writes_inputs": True}, "writes to its inputs"),
        (nn.ReLU(), {"hooks_inside": True}, "hooks inside"),
        (nn.ReLU(), {"writes_state": ("n",)}, "writes to its state"),
        (nn.ReLU(), {"tensor_kinds": frozenset({"sparse"})}, "sparse"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else None,
)
def test_the_reason_is_told(make, fake, module, facts, reason):
    """Each kind of unit, and afterwards the same device captures another one."""
    with pytest.raises(tt.BuildRefusedError, match=reason):
        attempt(make, fake, module.eval(), tt.Call(torch.randn(3)), facts=facts)
    assert fake.recording is None
    assert not any(fake.pools.values())
    built = attempt(make, fake, nn.ReLU(), tt.Call(torch.randn(3)))
    assert torch.equal(built.call(torch.ones(3)), torch.ones(3))


@pytest.mark.parametrize("module", [Reads(), Searches(), Draws()], ids=lambda module: type(module).__name__)
def test_what_the_device_itself_stops(make, fake, module):
    """What another backend built is not watched: the device calls the capture invalid, and what that leaves is mended."""
    inner = tt.Built(call=module)
    with pytest.raises(tt.BuildRefusedError, match=r"cannot be captured: (it|the size)"):
        attempt(make, fake, module, tt.Call(torch.randn(3)), inner=inner, facts={"random": isinstance(module, Draws)})
    assert fake.astray is None
    assert not any(fake.pools.values())
    built = attempt(make, fake, nn.ReLU(), tt.Call(torch.randn(3)))
    assert torch.equal(built.call(torch.ones(3)), torch.ones(3))


def test_an_input_elsewhere_is_named(make, fake):
    """Before anything runs."""
    with pytest.raises(tt.BuildRefusedError, match="an input is on meta, not on"):
        attempt(make, fake, nn.ReLU(), tt.Call(torch.randn(3, device="meta")))


def test_memory_that_runs_out(make, fake):
    """The capture is ended, the graphs before it are given back, and the reason names memory."""
    fake.bytes_left = 400
    with pytest.raises(tt.BuildRefusedError, match="memory was out"):
        attempt(make, fake, nn.ReLU(), tt.Call(torch.randn(50)), tt.Call(torch.randn(90)), tt.Call(torch.randn(80)))
    assert fake.recording is None
    assert not any(fake.pools.values())


def test_the_limit_on_bytes(make, fake):
    """Graphs that hold more than a build may are given back."""
    with pytest.raises(tt.BuildRefusedError, match="the limit is 10"):
        attempt(make, fake, nn.ReLU(), tt.Call(torch.randn(3)), limits=tt.Limits(seconds=60, bytes=10))
    assert not any(fake.pools.values())


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"speed": 1}, "unknown option 'speed'"), ({"outputs": "lent"}, "outputs='lent'"), ({"graphs": 0}, "graphs=0")],
)
def test_options_are_checked(make, fake, options, reason):
    """Unknown names and values are refused, the known ones are listed."""
    with pytest.raises(tt.BuildRefusedError, match=reason):
        attempt(make, fake, nn.ReLU(), tt.Call(torch.randn(3)), **options)


def test_the_fake_knows_the_rules(xpu):
    """The fake raises on every order error: it is only worth as much as what it refuses."""
    graph, side = torch.xpu.XPUGraph(), xpu.stream()
    with pytest.raises(RuntimeError, match="non-default stream"):
        graph.capture_begin()
    with pytest.raises(RuntimeError, match="without a preceding successful capture"):
        graph.replay()
    with xpu.on(side):
        with pytest.raises(RuntimeError, match="present state"):
            graph.capture_end()
        graph.capture_begin()
        with pytest.raises(RuntimeError, match="already owns"):
            graph.capture_begin()
        with pytest.raises(RuntimeError, match="Cannot register"):
            torch.xpu.XPUGraph().capture_begin()
    with pytest.raises(RuntimeError, match="same stream"):
        graph.capture_end()
    with xpu.on(side):
        graph.capture_end()
        pool = graph.pool()
        graph.reset()
        with pytest.raises(RuntimeError, match="use_count"):
            torch.xpu.XPUGraph().capture_begin(pool=pool)
    with pytest.raises(RuntimeError, match="without a preceding successful capture"):
        graph.replay()
