"""What the tests of the plugin share: a unit and its calls, and a fake device."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo  # dispatch modes import it when they are first used, and it looks at the real torch.xpu
from torch import nn
from tt_xpugraph import interface, lane

import tt_core as tt
from tt_core.callkey import evidence, key_of, tensors_of

Make = Callable[..., tuple[tt.Unit, tt.Calls]]


def _fakes() -> Any:
    """`fakes.py` beside this file, under a name that no other plugin's tests have."""
    if "tt_xpugraph_fakes" not in sys.modules:
        spec = importlib.util.spec_from_file_location("tt_xpugraph_fakes", Path(__file__).with_name("fakes.py"))
        assert spec is not None
        assert spec.loader is not None
        sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[spec.name])
    return sys.modules["tt_xpugraph_fakes"]


fakes = _fakes()


@pytest.fixture(scope="session")
def make() -> Make:
    """`make(module, call, ..., fact=True)`: the unit and the calls of one key."""

    def made(module: nn.Module, *calls: tt.Call, **facts: Any) -> tuple[tt.Unit, tt.Calls]:
        key = key_of(module.forward, calls[0], training=module.training)
        assert isinstance(key, tt.CallKey)
        rows = [tuple(tuple(tensor.shape) for tensor in tensors_of(module.forward, call)) for call in calls]
        samples = tuple(
            tt.Sample(call=call, expected=tt.Observation(result=None), index=index) for index, call in enumerate(calls)
        )
        unit = tt.Unit(path="unit", module=module, forward=module.forward)
        return unit, tt.Calls(key=key, shapes=evidence(rows), samples=samples, seen=len(calls), facts=tt.Facts(**facts))

    return made


@pytest.fixture(params=["xpu", "cuda", "common"])
def fake(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A fake device behind each of the three interfaces; `fake.at` is the torch device that stands for it."""
    return fake_device(request.param, monkeypatch)


@pytest.fixture
def xpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A fake XPU whose graphs are `torch.xpu.XPUGraph`."""
    return fake_device("xpu", monkeypatch)


def fake_device(kind: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts a fake in torch's place; tensors of the CPU count as being on it."""
    name = "cuda" if kind == "cuda" else "xpu"
    device = fakes.FakeDevice()
    device.at = torch.device(name, 0)
    monkeypatch.setattr(torch, name, fakes.namespace(device, "CUDAGraph" if kind == "cuda" else "XPUGraph"))
    monkeypatch.setattr(torch._C, f"_{name}_endAllocateToPool", device.end_allocate, raising=False)
    monkeypatch.setattr(torch._C, f"_{name}_getCurrentRawStream", lambda _: device.current().number, raising=False)
    monkeypatch.setattr(torch._C, f"_{name}_releasePool", device.release, raising=False)
    monkeypatch.setattr(torch.accelerator, "Graph", fakes.common(device) if kind == "common" else None, raising=False)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: device.at)
    monkeypatch.setattr(interface, "is_on", lambda place, _device: place.type == "cpu")
    monkeypatch.setattr("tt_xpugraph.build.is_on", lambda place, _device: place.type == "cpu")
    monkeypatch.setattr(lane, "_lanes", {})
    return device
