"""Ctrl-C at every boundary, in builds and in races: the object is as it was, and the exception tells what was found."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

import tt_core as tt
from tt_core.testing.fakes import FakeBackend, FakeLayer, moving

STAGES = ["inspect", "record", "unit", "build", "check", "race", "passes", "install", "done"]


class Two(nn.Module):
    """Two layers of different sizes, which are no twins."""

    def __init__(self, bench):
        super().__init__()
        self.up, self.steps = FakeLayer(bench, size=4), 0
        self.down = nn.Sequential(nn.Tanh(), FakeLayer(bench, size=4))

    def forward(self, x):
        self.steps += 1
        return self.down(self.up(x))


@pytest.fixture
def model(make):
    return make(Two)


def interrupting(at):
    """A listener that is Ctrl-C at the event of this number."""
    seen = []

    def listen(event):
        seen.append(event)
        if len(seen) - 1 == at:
            raise KeyboardInterrupt

    return listen, seen


def test_events_tell_where_the_run_is(model, data, auto, bench):
    """Every stage is told, with depth, unit, candidate, count and seconds that only grow."""
    listen, seen = interrupting(None)
    auto(model, data, FakeBackend(bench), max_depth=1, progress=listen)
    assert list(dict.fromkeys(event.stage for event in seen)) == STAGES
    assert all(a.elapsed_s <= b.elapsed_s for a, b in itertools.pairwise(seen))
    assert {(event.unit, event.candidate) for event in seen if event.stage == "build"} == {
        ("", "fast"),
        ("up", "fast"),
        ("down", "fast"),
    }
    units = [(event.depth, event.done, event.total) for event in seen if event.stage == "unit"]
    assert units == [(0, 0, 1), (1, 0, 2), (1, 1, 2)]


def test_an_interrupt_at_any_boundary_leaves_the_object_as_it_was(model, data, auto, bench, same):
    """At each event in turn: nothing of the object has changed, nothing stays open, `.result` has what was found."""
    check = same(model)
    listen, seen = interrupting(None)
    auto(model, data, moving(bench), max_depth=1, progress=listen)
    tt.untune(model)
    check()
    for at, event in enumerate(seen):
        listen, _ = interrupting(at)
        plugin = moving(bench)
        with pytest.raises(KeyboardInterrupt) as caught:
            auto(model, data, plugin, max_depth=1, progress=listen)
        check()
        assert plugin.open == 0, event
        result = caught.value.result
        assert isinstance(result, tt.AutoTuneResult)
        assert not result.changed
        assert "broke off" in str(result)
    assert result.depths[0].timing is not None
    assert {trial.unit for trial in result.trials} == {"", "up", "down"}


@pytest.mark.parametrize("path", ["", "up", "down"])
def test_an_interrupt_inside_a_build(model, data, auto, bench, same, path):
    """Whatever the build did until then is put back."""
    check = same(model)

    def stop(unit, calls):
        if unit.path == path:
            unit.module.train()
            for parameter in unit.module.parameters():
                parameter.data.zero_()
            raise KeyboardInterrupt

    plugin = FakeBackend(bench, during=stop)
    with pytest.raises(KeyboardInterrupt) as caught:
        auto(model, data, plugin, max_depth=1)
    check()
    assert plugin.open == 0
    assert isinstance(caught.value.result, tt.AutoTuneResult)


@pytest.mark.parametrize("at", [1, 5, 30, 200])
def test_an_interrupt_inside_a_call(model, data, auto, bench, same, at):
    """In the first call, in the check, in a race of a unit and in a race of passes."""
    check, calls = same(model), []

    def breaks(call):
        def run(*args):
            calls.append(1)
            if len(calls) == at:
                raise KeyboardInterrupt
            return call(*args)

        return run

    plugin = FakeBackend(bench, breaks=breaks)
    with pytest.raises(KeyboardInterrupt):
        auto(model, data, plugin, max_depth=1)
    check()
    assert plugin.open == 0


def test_an_error_of_the_model_carries_the_result_too(model, data, auto, bench, same):
    """A sample that cannot be run says which, and leaves no trace."""
    check = same(model)
    with pytest.raises(tt.SampleError, match="sample 1 of 2 cannot be run") as caught:
        auto(model, [data[0], torch.zeros(2, 5)], FakeBackend(bench))
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert isinstance(caught.value.result, tt.AutoTuneResult)
    check()


def test_tune_is_interrupted_alike(model, data, tune, bench, same):
    """The other call keeps the same promise."""
    check = same(model)
    for stage in STAGES:

        def listen(event, stage=stage):
            if event.stage == stage:
                raise KeyboardInterrupt

        plugin = FakeBackend(bench)
        with pytest.raises(KeyboardInterrupt):
            tune(model, data, plugin, units=["up"], progress=listen)
        check()
        assert plugin.open == 0
