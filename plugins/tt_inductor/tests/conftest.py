"""What the tests of the plugin share: a unit and its calls without a tuning run around them, and a fresh process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.torch_version import TorchVersion
from tt_inductor import aot, products

import tt_core as tt
from tt_core.callkey import evidence, key_of, tensors_of

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # tests, and the processes that they start, import the modules of this folder by name
Make = Callable[..., tuple[tt.Unit, tt.Calls]]


def _unit_and_calls(module: nn.Module, *calls: tt.Call, **facts: Any) -> tuple[tt.Unit, tt.Calls]:
    key = key_of(module.forward, calls[0], training=module.training)
    assert isinstance(key, tt.CallKey)
    rows = [tuple(tuple(tensor.shape) for tensor in tensors_of(module.forward, call)) for call in calls]
    samples = tuple(
        tt.Sample(call=call, expected=tt.Observation(result=None), index=index) for index, call in enumerate(calls)
    )
    unit = tt.Unit(path="unit", module=module, forward=module.forward)
    return unit, tt.Calls(key=key, shapes=evidence(rows), samples=samples, seen=len(calls), facts=tt.Facts(**facts))


@pytest.fixture(scope="session")
def make() -> Make:
    """`make(module, call, ..., fact=True)`: the unit and the calls of one key."""
    return _unit_and_calls


@pytest.fixture(scope="session")
def packages() -> None:
    """Mode "aot" needs a newer torch than the oldest one that the plugin runs on."""
    if TorchVersion(torch.__version__) < aot._OLDEST:
        pytest.skip(f'mode="aot" needs torch {aot._OLDEST}')


@pytest.fixture
def no_grad() -> Iterator[None]:
    """The core builds and calls without gradients."""
    torch.manual_seed(0)
    with torch.no_grad():
        yield


@pytest.fixture
def mkl(monkeypatch: pytest.MonkeyPatch) -> None:
    """oneDNN wins no race, so that notes say the same every time."""
    monkeypatch.setattr(products, "faster", lambda _product: False)


@pytest.fixture
def elsewhere(tmp_path: Path) -> Callable[[str], subprocess.CompletedProcess[str]]:
    """`elsewhere(code)`: code run with an empty home and no compiler; its arguments are this folder and `tmp_path`."""

    def run(code: str) -> subprocess.CompletedProcess[str]:
        home = tmp_path / "home"
        home.mkdir()
        environ = {key: value for key, value in os.environ.items() if key in {"PYTHONPATH", "LD_LIBRARY_PATH"}}
        environ |= {
            "HOME": str(home),
            "PATH": str(home),
            "CXX": "/bin/false",
            "TORCHINDUCTOR_CACHE_DIR": str(home / "cache"),
        }
        command = [sys.executable, "-c", code, str(HERE), str(tmp_path)]
        return subprocess.run(command, env=environ, capture_output=True, text=True, check=False)

    return run


@pytest.fixture
def compiles(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for every graph that Inductor itself was given."""
    from torch._inductor import compile_fx

    real = compile_fx.compile_fx
    counted: list[int] = []

    def counting(graph: Any, inputs: Any, **kwargs: Any) -> Any:
        if kwargs.get("config_patches"):  # it calls itself without them
            counted.append(len(graph.graph.nodes))
        return real(graph, inputs, **kwargs)

    monkeypatch.setattr(compile_fx, "compile_fx", counting)
    return counted
