"""What the tests of remembered plans share: a net, how to tell that a plan was remembered, and a small plan."""

from __future__ import annotations

import torch
from torch import nn

import tt_core as tt
from tt_core.testing.fakes import FakeLayer

HIT = "remembered from an earlier run; settings.cache='refresh' searches again"


class Last(FakeLayer):
    """No twin of the first: twins are exported to be found, which takes its time."""


class Net(nn.Module):
    def __init__(self, bench, size=4):
        super().__init__()
        self.first, self.second = FakeLayer(bench, size=size, seed=1), Last(bench, size=size, seed=2)

    def forward(self, x, k=1):
        return torch.tanh(self.first(x)) @ self.second.weight * k + self.second(x)


def hit(result):
    return HIT in result.headline


def chosen(result):
    return result.plan.cut, [(c.unit, c.key, c.candidate) for c in result.plan.choices]


def entry(folder):
    (path,) = folder.iterdir()
    return path


def small_plan(words=""):
    return tt.Plan(cut=tt.Cut(depths=(), units=()), choices=(), environment={"torch": words})
