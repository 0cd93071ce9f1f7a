"""Twins: units of one program with other weights are chosen once, rebound or built for each, and each is checked."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import tt_core as tt
from tt_core import twins
from tt_core.session import group
from tt_core.testing.fakes import FakeBackend, FakeLayer


class Row(nn.Module):
    """Layers one after the other: as many twins as layers of one size."""

    def __init__(self, bench, seconds=(0.010, 0.010, 0.010)):
        super().__init__()
        self.layers = nn.ModuleList(FakeLayer(bench, one, seed=i) for i, one in enumerate(seconds))

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


LAYERS = ("layers.0", "layers.1", "layers.2")


def test_twins_are_chosen_once(make, data, auto, bench):
    """The first twin searches; the others are built anew without a race; the one choice names all."""
    seen = []
    fast = FakeBackend(bench)
    result = auto(
        make(Row), data, fast, FakeBackend(bench, "slow", 2.0), min_depth=1, max_depth=1, progress=seen.append
    )
    assert [event.unit for event in seen if event.stage == "race"] == ["layers.0"]
    assert [path for what, path in fast.log if what == "build"] == list(LAYERS)
    assert [(choice.unit, choice.members) for choice in result.plan.choices] == [("layers.0", LAYERS)]
    assert {trial.unit for trial in result.trials} == {"layers.0"}
    assert (result.selected.tuned, result.selected.wrapped) == (3, 3)
    assert "layers.0-2 (3 FakeLayer)" in str(result)


def test_each_twin_keeps_its_own_results(make, data, auto, bench):
    """The tuned object gives what it gave before: no twin got another one's weights."""
    model = make(Row)
    with torch.no_grad():
        expected = [model(x) for x in data]
    auto(model, data, FakeBackend(bench, baked=True, rebinds=True), min_depth=1, max_depth=1)
    tt.stats(model, hits=True)
    with torch.no_grad():
        assert all(torch.equal(model(x), y) for x, y in zip(data, expected, strict=True))
    assert [tt.stats(model)[path].hits for path in LAYERS] == [3, 3, 3]


def test_twins_are_rebound_where_the_backend_can(make, data, auto, bench):
    """One build, and a rebind for each other twin."""
    fast = FakeBackend(bench, rebinds=True)
    auto(make(Row), data, fast, min_depth=1, max_depth=1)
    assert [entry for entry in fast.log if entry[0] != "close"] == [
        ("build", "layers.0"),
        ("rebind", "layers.1"),
        ("rebind", "layers.2"),
    ]


class WrongRebind(FakeBackend):
    """Rebinding forgets that the weights are others."""

    def _made(self, unit, calls, pace):
        made = super()._made(unit, calls, pace)
        if self.log[-1] == ("rebind", "layers.1"):
            made.call._forward = torch.zeros_like
        return made


def test_each_twin_is_checked(make, data, auto, bench):
    """A rebound that is wrong is closed, and the unit built anew."""
    fast = WrongRebind(bench, rebinds=True)
    result = auto(make(Row), data, fast, min_depth=1, max_depth=1)
    assert fast.count("build", "layers.1") == 1
    assert fast.count("close", "layers.1") == 1
    assert result.selected.tuned == 3


def test_a_twin_that_cannot_take_the_choice_searches_itself(make, data, auto, bench):
    """Where the first twin's candidate fails on another one, that one tries them all and has a choice of its own."""

    def fail(unit, calls):
        if unit.path == "layers.1":
            raise RuntimeError("out of registers")

    fast = FakeBackend(bench, pace=0.3, during=fail)
    result = auto(make(Row), data, fast, FakeBackend(bench, "second", 0.6), min_depth=1, max_depth=1)
    found = {choice.unit: (choice.candidate.name, choice.members) for choice in result.plan.choices}
    assert found == {"layers.0": ("fast", ("layers.0", "layers.2")), "layers.1": ("second", ("layers.1",))}


def test_eager_is_a_choice_too(make, data, auto, bench):
    """Nothing won on the first twin: the others are not even built."""
    slow = FakeBackend(bench, "slow", 2.0)
    result = auto(make(Row), data, slow, min_depth=1, max_depth=1)
    assert slow.count("build") == 1
    assert [choice.members for choice in result.depths[0].choices] == [LAYERS]
    assert "layers.0-2 (3 FakeLayer)" in str(result)


def test_other_strategies_are_no_twins(make, data, auto, bench):
    """A unit with a strategy of its own does not take another one's choice."""
    fast = FakeBackend(bench)
    own = {"layers.1": tt.OneBackendStrategy("fast")}
    result = auto(make(Row), data, fast, strategies=own, min_depth=1, max_depth=1)
    assert [choice.members for choice in result.plan.choices] == [("layers.0", "layers.2"), ("layers.1",)]


@pytest.mark.parametrize(
    "change",
    [
        lambda layer: layer.register_parameter("bias", nn.Parameter(torch.zeros(1))),
        lambda layer: layer.train(),
        lambda layer: setattr(layer, "weight", nn.Parameter(layer.weight.data.T)),
    ],
    ids=["shape", "training", "stride"],
)
def test_what_differs_by_more_than_values_is_filtered(make, data, auto, bench, monkeypatch, change):
    """Shapes, strides and flags tell before anything is exported."""
    exported = []
    original = twins._fingerprint
    monkeypatch.setattr(twins, "_fingerprint", lambda unit, keys: exported.append(unit.path) or original(unit, keys))
    model = make(Row, (0.01, 0.01))
    change(model.layers[1])
    auto(model, data, FakeBackend(bench), min_depth=1, max_depth=1)
    assert exported == []


class Scaled(nn.Module):
    """A program that a number decides."""

    def __init__(self, bench, scale):
        super().__init__()
        self.bench, self.scale = bench, scale
        self.weight = nn.Parameter(torch.eye(4))

    def forward(self, x):
        self.bench.work(0.01)
        return x @ self.weight * self.scale


class Scales(nn.Module):
    def __init__(self, bench, *scales):
        super().__init__()
        self.parts = nn.ModuleList(Scaled(bench, scale) for scale in scales)

    def forward(self, x):
        for part in self.parts:
            x = part(x)
        return x


def test_other_programs_are_no_twins(make, data, auto, bench):
    """A constant in the program parts those that share everything else."""
    fast = FakeBackend(bench, rebinds=True)
    auto(make(Scales, 0.5, 0.25, 0.5), data, fast, min_depth=1, max_depth=1)
    assert [entry for entry in fast.log if entry[0] != "close"] == [
        ("build", "parts.0"),
        ("build", "parts.1"),
        ("rebind", "parts.2"),
    ]


class Branching(nn.Module):
    """Looks at values, and so does not export."""

    def __init__(self, bench):
        super().__init__()
        self.bench, self.weight = bench, nn.Parameter(torch.eye(4))

    def forward(self, x):
        self.bench.work(0.01)
        return x @ self.weight if float(x.sum()) > -1e9 else x


class Pair(nn.Module):
    def __init__(self, bench):
        super().__init__()
        self.left, self.right = Branching(bench), Branching(bench)

    def forward(self, x):
        return self.right(self.left(x))


def test_what_does_not_export_has_no_twins(make, data, auto, bench):
    """Both search for themselves."""
    fast = FakeBackend(bench, rebinds=True)
    result = auto(make(Pair), data, fast, min_depth=1, max_depth=1)
    assert fast.count("build") == 2
    assert [choice.members for choice in result.plan.choices] == [("left",), ("right",)]


def test_nothing_is_exported_without_candidates(make, data, auto, monkeypatch):
    """With eager alone there is nothing to choose, and no twin to find."""
    monkeypatch.setattr(group.twins, "fingerprints", lambda *a, **k: pytest.fail("exported for nothing"))
    result = auto(make(Row), data, min_depth=1, max_depth=1)
    assert not result.changed
