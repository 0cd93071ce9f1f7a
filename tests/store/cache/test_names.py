"""What a plan is remembered by: arguments, structure, samples, environment and backends."""

from __future__ import annotations

import pytest
import torch
from remembered import Net, hit
from torch.export import Dim

import tt_core as tt
from tt_core.store import cache
from tt_core.testing.fakes import FakeLayer

CHANGES = {
    "depths": {"max_depth": 1},
    "tolerance": {"tolerance": 1e-3},
    "tie tolerance": {"tie_tolerance": 0.05},
    "select": {"select": ["second", ""]},
    "skip": {"skip": ["first"]},
    "strategy": {"strategy": tt.HighestThroughputStrategy(["fast"])},
    "strategies": {"strategies": {"first": tt.OneBackendStrategy("fast")}},
    "backends": {"backends": ["eager", "fast"]},
    "declared": {"dynamic_shapes": {"x": {0: Dim("rows", min=2, max=16)}}},
    "expected calls": {"expected_calls": 1e6},
}


@pytest.mark.long
@pytest.mark.parametrize("name", CHANGES)
def test_arguments_that_matter(net, data, auto, fast, slow, name):
    """Each has plans of its own."""
    auto(net(), data, fast, slow)
    assert not hit(auto(net(), data, fast, slow, **CHANGES[name]))
    assert hit(auto(net(), data, fast, slow, **CHANGES[name]))
    assert hit(auto(net(), data, fast, slow))


def test_declared_bounds_matter(net, data, auto, fast):
    """Another bound is another declaration."""
    for most in (16, 32):
        assert not hit(auto(net(), data, fast, dynamic_shapes={"x": {0: Dim("rows", min=2, max=most)}}))


def test_another_structure_is_searched(net, data, auto, fast):
    """Other shapes of weights, another class, another order of modules."""
    auto(net(), data, fast)
    assert not hit(auto(net(size=8), [torch.cat([x, x], 1) for x in data], fast))

    class Other(Net):
        pass

    assert not hit(auto(Other(fast._bench).eval(), data, fast))


def test_other_samples_are_searched(net, data, auto, fast):
    """Other sizes, another number of samples, another constant, another weight."""
    auto(net(), data, fast)
    for other in (
        [*data, data[0]],
        [data[0], data[1][:4]],
        [tt.Call(x, k=2) for x in data],
        [tt.Call(x).weighted(3) for x in data],
    ):
        assert not hit(auto(net(), other, fast))


def test_long_texts_are_told_apart(bench, auto, fast, data):
    """Calls that differ only in the end of a long text: the remembered plan does not know them, and is not installed."""

    class Named(FakeLayer):
        def forward(self, x, name="x"):
            return super().forward(x)

    model = Named(bench).eval()
    auto(model, [tt.Call(data[0], "a" * 100)], fast)
    result = auto(model, [tt.Call(data[0], "a" * 99 + "b")], fast)
    assert not hit(result)
    assert result.depths[0].error == "the remembered plan does not know all calls of this run"
    assert result.changed


@pytest.mark.parametrize("name", ["torch", "device", "cpu", "threads", "plugin"])
def test_another_environment_is_searched(net, data, auto, fast, monkeypatch, name):
    """Versions and hardware."""
    from tt_core import environment
    from tt_core.session import remember

    auto(net(), data, fast)
    real = environment.environment
    monkeypatch.setattr(remember, "environment", lambda device: {**real(device), name: "another"})
    assert not hit(auto(net(), data, fast))


def test_another_backend_is_searched(net, data, auto, fast, slow):
    """A new backend may be faster than what is remembered."""
    auto(net(), data, fast)
    assert not hit(auto(net(), data, fast, slow))


def test_names_depend_on_everything():
    """Every part, its kind and its place."""
    parts = [None, 1, "1", True, [1], {"a": 1}, {"b": 1}, [1, 2], [2, 1], "\ud800"]
    assert len({cache.name_of(part) for part in parts}) == len(parts)
