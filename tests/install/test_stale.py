"""Weights that changed: found by content, noticed in service, and looked at after the launch on a device."""

from __future__ import annotations

import pytest
import torch
from install_units import Net, X, entry, plus, tuned, unit_of
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


@pytest.fixture
def _device(monkeypatch):
    monkeypatch.setattr("tt_core.guards.compiler._may_wait", lambda _: True)  # the one place that asks for the device


def replaced(module):
    """Puts an equal parameter in the first one's place."""
    owner, name = next((m, n) for m in module.modules() for n in m._parameters)
    setattr(owner, name, torch.nn.Parameter(owner._parameters[name].detach().clone()))


@pytest.mark.usefixtures("_device")
@pytest.mark.parametrize("meanwhile", [False, True])
@pytest.mark.parametrize("layers", [2, 30])
@pytest.mark.parametrize("weights", [Weights.STORAGE, Weights.VALUES])
def test_on_a_device_weights_are_looked_at_after_the_launch(layers, meanwhile, weights):
    """On a device a built runs first and its weights are looked at while the device works: moved weights drop its
    result, whether the built leaves time for the question itself or is asked after it."""
    model, ran = nn.Sequential(*[nn.Linear(4, 4) for _ in range(layers)]).eval(), []

    def call(x):
        ran.append("launched")
        return layers_of(x).double()  # told from the original by its dtype

    def overlapped(meanwhile, given):
        result = call(*given)
        meanwhile()
        ran.append("copied")
        return result

    layers_of = model.forward
    made = {"overlapped": overlapped} if meanwhile else {}
    tuned_ = install([entry(unit_of(model), call, Call(X), weights=weights, **made)])
    assert model(X).dtype is torch.float64
    assert ran == ["launched", *["copied"] * meanwhile]
    replaced(model)
    with pytest.warns(FallbackWarning, match="tt.refresh"):
        assert model(X).dtype is torch.float32
    assert ran == ["launched", *["copied"] * meanwhile, "launched"]
    assert [(str(kind), count) for kind, count in stats(model)[""].falls.items()] == [("weights", 1)]
    tuned_.undo()


@pytest.mark.usefixtures("_device")
@pytest.mark.parametrize(("layers", "asked"), [(2, 1), (30, 2)])
def test_a_large_models_guard_is_asked_again_behind_its_weights(layers, asked):
    """So that the next call finds the guard's records near; a small model's weights leave them there."""
    model, said = nn.Sequential(*[nn.Linear(4, 4) for _ in range(layers)]).eval(), []
    unit = unit_of(model)
    install([entry(unit, plus(1)(unit), Call(X), weights=Weights.STORAGE)])
    route = vars(model)["forward"].routes[0]
    guard = route.guard
    route.guard = lambda *given: (said.append(True), guard(*given))[1]
    model(X)
    assert len(said) == asked


def test_a_built_with_time_meanwhile_is_asked_nothing_where_the_guard_asked_all():
    """On a CPU the weights were looked at before; the built still gets a question, which is empty."""
    asked = []
    model = Net().eval()
    made = lambda meanwhile, given: asked.append(meanwhile()) or given[0] + 1  # noqa: E731
    install([entry(unit_of(model), None, Call(X), weights=Weights.STORAGE, overlapped=made)])
    assert torch.equal(model(X), X + 1)
    assert asked == [None]
