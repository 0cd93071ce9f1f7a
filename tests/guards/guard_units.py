"""Units with what a guard looks at, and how its answers are read."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import torch
from torch import nn

from tt_core import callkey
from tt_core.guards import UNREADABLE, Claim, Fall, Guard, compile_guard
from tt_core.values import Call, CallKey, Unit, Weights


class Pair(NamedTuple):
    a: Any
    b: Any


@dataclasses.dataclass
class Batch:
    ids: Any
    mask: Any = None


class Free(nn.Module):
    def forward(self, x, value=None, *rest, flag=False, **more):
        return x


class Block(nn.Module):
    """A unit with one of everything that a guard watches."""

    bonus = 0.0

    def __init__(self):
        super().__init__()
        self.lin, self.drop, self.inner = nn.Linear(4, 4), nn.Dropout(0.5), nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.register_buffer("shift", torch.zeros(4))
        self.scale, self.name, self.act, self.table = 2, "block", torch.relu, torch.ones(4)

    def forward(self, x):
        return self.inner(self.drop(self.lin(x)))


def unit_of(module: nn.Module) -> Unit:
    return Unit(path="u", module=module, forward=module.forward)


def key_of(unit: Unit, call: Call) -> CallKey:
    key = callkey.key_of(unit.forward, call, training=unit.module.training)
    assert isinstance(key, CallKey), key
    return key


def guard(call: Call, module: nn.Module | None = None, weights: Weights = Weights.LIVE, **claim: Any) -> Guard:
    unit = unit_of(module or Free().eval())
    return compile_guard(unit, Claim(key=key_of(unit, call), weights=weights, **claim))


def says(found: Guard, *args: Any, **kwargs: Any) -> bool:
    """The guard's answer as the dispatcher takes it, twice: the second time a remembered verdict may answer."""
    answers = set()
    for _ in range(2):
        try:
            answers.add(bool(found.accepts(*args, **kwargs)))
        except UNREADABLE:
            answers.add(False)
    (answer,) = answers
    return answer


def falls(found: Guard, *args: Any, **kwargs: Any) -> Fall:
    """The kind of a fall, after the guard said no."""
    assert not says(found, *args, **kwargs)
    return found.explain(args, kwargs)[0].kind


X = torch.zeros(2, 4)
