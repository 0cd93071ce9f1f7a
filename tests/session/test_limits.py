"""What a build is told: how many twins a unit has, and whether the caller means to save what was built."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import tt_core as tt
from tt_core.testing.fakes import FakeBackend, FakeLayer


class Told(FakeBackend):
    """Writes down the limits of every build and rebind, and how many twins the unit has."""

    def __init__(self, bench, **fields):
        super().__init__(bench, **fields)
        self.told = []

    @tt.hookimpl
    def tt_build(self, unit, calls, options, limits):
        self.told.append((unit.path, unit.twins, limits.saveable))
        return super().tt_build(unit, calls, options)

    @tt.hookimpl
    def tt_rebind(self, built, unit, limits):
        self.told.append((unit.path, unit.twins, limits.saveable))
        return super().tt_rebind(built, unit)


class Mixed(nn.Module):
    """Three layers of one program and one of another."""

    def __init__(self, bench):
        super().__init__()
        self.layers = nn.ModuleList(FakeLayer(bench, 0.010, seed=i) for i in range(3))
        self.wide = FakeLayer(bench, 0.010, size=8)

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.wide(torch.cat([x, x], -1))


@pytest.mark.parametrize("saveable", [False, True])
def test_a_build_is_told(make, data, bench, saveable):
    """The number of units with its program, itself among them; 0 for one of a kind; and `Settings(saveable=)`."""
    fast = Told(bench, rebinds=True)
    settings = tt.Settings(plugins=(bench, fast), saveable=saveable)
    tt.tune(make(Mixed), data, units=1, settings=settings)
    assert fast.told == [
        ("layers.0", 3, saveable),
        ("layers.1", 3, saveable),
        ("layers.2", 3, saveable),
        ("wide", 0, saveable),
    ]


def test_refresh_is_told_too(make, data, bench):
    """What is built again is to be saved as well."""
    fast = Told(bench, baked=True)
    model = make(Mixed)
    tt.tune(model, data, units=1, settings=tt.Settings(plugins=(bench, fast)))
    fast.told.clear()
    with torch.no_grad():
        model.wide.weight.mul_(2)
    assert tt.refresh(model, settings=tt.Settings(plugins=(bench, fast), saveable=True)) == ("wide",)
    assert fast.told == [("wide", 0, True), ("wide", 0, True)]  # asked to rebind, then to build
