"""What the tests of the plugin share: a unit and its calls without a tuning run around them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch import nn

import tt_core as tt
from tt_core.callkey import evidence, key_of, tensors_of

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
