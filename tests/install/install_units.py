"""Units of the tests of install, with builts that can be told from eager."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tt_core import callkey
from tt_core.install import Entry, install
from tt_core.values import Built, Call, CallKey, Candidate, Facts, Unit, Weights

X = torch.zeros(2, 4)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.second(self.first(x))


def unit_of(module: nn.Module, path: str = "") -> Unit:
    return Unit(path=path, module=module, forward=module.forward)


def entry(
    unit: Unit, built: Any, call: Call | None = None, facts: Facts | None = None, covers: Any = None, **claims: Any
):
    key = callkey.key_of(unit.forward, call or Call(X), training=unit.module.training)
    assert isinstance(key, CallKey)
    claims.setdefault("weights", Weights.LIVE)
    return Entry(
        unit=unit, key=key, built=Built(call=built, **claims), covers=covers, facts=facts or Facts(),
        candidate=Candidate.of("fake"),
    )  # fmt: skip


def plus(n: float):
    """A built that can be told from eager: it adds to the result of the unit's own forward."""
    return lambda unit: lambda *a, **k: unit.forward(*a, **k) + n


def tuned(module: nn.Module, built=None, **claims: Any):
    unit = unit_of(module)
    return install([entry(unit, (built or plus(1))(unit), **claims)])
