from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import tt_openvino
from torch import nn

import tt_core as tt
from tt_core import trees
from tt_core.callkey import evidence, key_of, tensors_of

CPU = torch.device("cpu")

os.environ.setdefault("TT_CACHE_DIR", "")  # tests write nothing to the user's home


class Made:
    """A unit of the tests with its recorded calls, its built, and the eager answer."""

    def __init__(
        self, module: nn.Module, calls: tuple[tt.Call, ...], facts: tt.Facts, *, training: bool = False
    ) -> None:
        self.module = module
        self.unit = tt.Unit(path="unit", module=module, forward=module.forward)
        key = key_of(module.forward, calls[0], training=training)
        assert isinstance(key, tt.CallKey), key
        sizes = [tuple(tuple(t.shape) for t in tensors_of(module.forward, call)) for call in calls]
        samples = tuple(
            tt.Sample(call=call, expected=tt.Observation(result=self._result(call)), index=i)
            for i, call in enumerate(calls)
        )
        self.calls = tt.Calls(key=key, shapes=evidence(sizes), samples=samples, seen=len(calls), facts=facts)
        self.built: tt.Built | None = None

    def _result(self, call: tt.Call) -> Any:
        args, kwargs = trees.replica((call.args, call.kwargs))
        return self.eager(*args, **kwargs)

    def build(self, backend: str = "openvino", **options: Any) -> tt.Built:
        with torch.no_grad():
            self.built = tt_openvino.tt_build(
                backend=backend, unit=self.unit, calls=self.calls, device=CPU, options=options
            )
        return self.built

    def eager(self, *args: Any, **kwargs: Any) -> Any:
        with torch.no_grad():
            return self.module.forward(*args, **kwargs)

    def covers(self, *sizes: tuple[int, ...]) -> bool:
        return self.built.covers is None or self.built.covers.admit(sizes)


@pytest.fixture
def made() -> Any:
    """`made(module, *calls, facts=…)`: a unit of the module; builts are closed at the end."""
    yield from _makers()


@pytest.fixture(scope="module")
def made_once() -> Any:
    """The same for units that the tests of a file share."""
    yield from _makers()


def _makers() -> Any:
    units: list[Made] = []

    def make(module: nn.Module, *calls: tt.Call, facts: tt.Facts | None = None, training: bool = False) -> Made:
        module.train(training)
        units.append(Made(module, calls, facts or tt.Facts(), training=training))
        return units[-1]

    yield make
    for unit in units:
        if unit.built is not None:
            unit.built.close()


@pytest.fixture
def close() -> Callable[..., None]:
    """Compares two results: types, sizes and values within rounding."""

    def compare(actual: torch.Tensor, expected: torch.Tensor, rtol: float = 1e-4) -> None:
        torch.testing.assert_close(actual, expected, rtol=rtol, atol=rtol, equal_nan=True)

    return compare


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own."""
    monkeypatch.setenv("TT_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "openvino"


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any, str], list[int]]:
    """`counted(owner, name)`: a list that grows with each call of that function."""

    def watch(owner: Any, name: str) -> list[int]:
        seen: list[int] = []
        function = getattr(owner, name)

        def run(*args: Any, **kwargs: Any) -> Any:
            seen.append(1)
            return function(*args, **kwargs)

        monkeypatch.setattr(owner, name, run)
        return seen

    return watch
