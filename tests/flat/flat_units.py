"""Units of the tests of flat: a function as a module, and a unit with its recorded calls."""

from __future__ import annotations

from typing import Any

from torch import nn

from tt_core.callkey import evidence, key_of, tensors_of
from tt_core.values import Call, CallKey, Calls, Facts, Observation, Sample, Unit


class Fn(nn.Module):
    """A function as a module."""

    def __init__(self, fn: Any) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, *args: Any) -> Any:
        return self.fn(*args)


def recorded(module: nn.Module, *calls: Call, facts: Facts | None = None) -> tuple[Unit, Calls]:
    """A unit with its calls, as samples.record would make them."""
    key = key_of(module.forward, calls[0], training=module.training)
    assert isinstance(key, CallKey), key
    sizes = [tuple(tuple(t.shape) for t in tensors_of(module.forward, call)) for call in calls]
    samples = tuple(Sample(call=call, expected=Observation(result=None), index=i) for i, call in enumerate(calls))
    unit = Unit(path="unit", module=module, forward=module.forward)
    return unit, Calls(key=key, shapes=evidence(sizes), samples=samples, seen=len(calls), facts=facts or Facts())
