"""Weights that changed: found by content, noticed in service, and looked at after the launch on a device."""

from __future__ import annotations

import pytest
import torch
from install_units import Net, X, entry, tuned, unit_of
from torch import nn

from tt_core.errors import FallbackWarning
from tt_core.install import install, stale, stats
from tt_core.values import Call, Weights


def test_stale_finds_what_no_guard_notices(net):
    """Writes through `.data` go unnoticed in service and are found by content; storage-bound builts cannot go stale so."""
    tuned(net, weights=Weights.VALUES)
    other = Net().eval()
    tuned(other, weights=Weights.STORAGE)
    assert stale(net) == stale(other) == ()
    for module in (net, other):
        module.first.weight.data.numpy()[0, 0] += 1
    stats(net, hits=True)
    net(X)
    assert stats(net)[""].hits == 1
    assert stale(net) == ("",)
    assert stale(other) == ()
    other.first.weight = nn.Parameter(torch.zeros(4, 4))
    assert stale(other) == ("",)


def test_stale_reads_every_dtype():
    """bfloat16, bool, empty, transposed and zero-dim tensors have contents too."""

    class Kinds(nn.Module):
        def __init__(self):
            super().__init__()
            for i, t in enumerate([X.bfloat16(), X > 0, X[:0], X.t(), torch.tensor(1.5), X.to_sparse()]):
                self.register_buffer(f"b{i}", t.clone())

        def forward(self, x):
            return x

    module = Kinds().eval()
    tuned(module, weights=Weights.VALUES)
    assert stale(module) == ()
    module.b0.data.view(torch.int16).numpy()[0, 0] = 7
    assert stale(module) == ("",)


def test_weights_that_changed_fall_and_say_refresh(net):
    """An in-place change under a built that holds values falls back, right, with the fix."""
    made = tuned(net, weights=Weights.VALUES)
    assert made.units[0].path == ""
    net.first.weight.mul_(2)
    want = Net.forward(net, X)
    with pytest.warns(FallbackWarning, match=r"first\.weight was changed in place: call tt\.refresh"):
        assert torch.equal(net(X), want)


def test_on_a_device_weights_are_looked_at_after_the_launch(net, monkeypatch):
    """On a device a STORAGE built runs first and its weights are looked at while the device works: moved weights drop its result."""
    monkeypatch.setattr("tt_core.guards.compiler._may_wait", lambda _: True)  # the one place that asks for the device
    model, given, ran = net, X, []

    def built(unit):
        def call(*args):
            ran.append(len(ran))
            return unit.forward(*args).double()  # told from the original by its dtype

        return call

    unit = unit_of(model)
    tuned_ = install([entry(unit, built(unit), Call(given), weights=Weights.STORAGE)])
    assert model(given).dtype is torch.float64
    first = next(iter(model.parameters()))
    owner = next(m for m in model.modules() if any(p is first for p in m._parameters.values()))
    name = next(n for n, p in owner._parameters.items() if p is first)
    setattr(owner, name, torch.nn.Parameter(first.detach().clone()))
    with pytest.warns(FallbackWarning, match="tt.refresh"):
        assert model(given).dtype is torch.float32
    assert len(ran) == 2
    assert sum(stats(model)[""].falls.values()) == 1
    tuned_.undo()
