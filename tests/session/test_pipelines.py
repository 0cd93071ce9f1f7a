"""Objects that hold modules, `select=` and `skip=`, and datasets from real traffic."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import tt_core as tt
from tt_core.testing.fakes import FakeBackend, FakeLayer


class Pipeline:
    """Modules in an attribute, a list, a tuple and a dict; a method that is not `forward`."""

    def __init__(self, bench):
        self.encoder = FakeLayer(bench, seed=1)
        self.heads = [FakeLayer(bench, seed=2)]
        self.pair = (FakeLayer(bench, seed=3),)
        self.by_name = {"last": FakeLayer(bench, seed=4)}
        self.bench = bench

    def __call__(self, x):
        return self.predict(x)

    def predict(self, x):
        self.bench.work(0.010)
        return self.by_name["last"](self.pair[0](self.heads[0](self.encoder(x))))


PATHS = ("encoder", "heads.0", "pair.0", "by_name['last']")


@pytest.fixture
def pipeline(bench):
    return Pipeline(bench)


def test_a_pipeline_is_tuned_in_place(pipeline, data, auto, bench):
    """Modules in attributes, lists, tuples and dicts; time outside of them counts end to end."""
    with torch.no_grad():
        expected = pipeline(data[0])
    result = auto(pipeline, data, FakeBackend(bench), max_depth=0)
    assert result.model is pipeline
    assert set(result.selected.cut.units) == set(PATHS)
    assert result.speedup == pytest.approx(50 / 30)
    with torch.no_grad():
        assert torch.equal(pipeline(data[0]), expected)
    assert set(tt.untune(pipeline)) == set(PATHS)


def test_an_inference_function_runs_the_samples(pipeline, data, auto, bench):
    """What one sample means is the caller's: labels stay out, other methods are called."""
    labelled = [(x, 1) for x in data]
    run = lambda obj, sample: obj.predict(sample[0])  # noqa: E731
    result = auto(pipeline, labelled, FakeBackend(bench), inference_function=run, max_depth=0)
    assert result.selected.tuned == 4


def test_methods_other_than_forward_are_time_outside(pipeline, data, bench, monkeypatch):
    """The inspection shows what no tuned unit can save."""
    monkeypatch.setattr(tt.api.clock, "WallTimer", lambda device: bench.clock)
    seen = tt.inspect(pipeline, data)
    assert seen.outside_s == pytest.approx(0.030)
    assert seen.seconds == pytest.approx(0.150)


@pytest.mark.parametrize(
    ("fields", "tuned"),
    [
        ({"select": ["heads.*"]}, {"heads.0"}),
        ({"select": "FakeLayer"}, set(PATHS)),
        ({"skip": ["by_name*", "encoder"]}, {"heads.0", "pair.0"}),
        ({"select": ["heads.*", "pair.*"], "skip": ["pair.0"]}, {"heads.0"}),
    ],
)
def test_select_and_skip(pipeline, data, auto, bench, fields, tuned):
    """Patterns of paths or class names; what is left out is not even recorded."""
    fast = FakeBackend(bench)
    auto(pipeline, data, fast, max_depth=0, **fields)
    assert {path for what, path in fast.log if what == "build"} == tuned
    assert set(tt.stats(pipeline)) == tuned


def test_a_selection_of_nothing_says_so(pipeline, data, auto, bench):
    """The headline names the arguments."""
    result = auto(pipeline, data, FakeBackend(bench), select=["decoder.*"])
    assert "select= and skip= leave none of its units to tune" in result.headline


def test_recorded_traffic_of_a_module_is_a_dataset(stack, data, auto, bench, same):
    """Every call while the block runs, copied; the module is as before, and the list tunes it."""
    check = same(stack)
    sent = data[0].clone()
    with torch.no_grad(), tt.record(stack) as calls:
        stack(sent)
        sent.zero_()
        stack(x=data[1])
    check()
    assert [(len(call.args), list(call.kwargs)) for call in calls] == [(1, []), (0, ["x"])]
    assert torch.equal(calls[0].args[0], data[0])
    assert calls.inference_function is None
    assert auto(stack, calls, FakeBackend(bench), inference_function=calls.inference_function, max_depth=0).changed


def test_recorded_traffic_of_a_pipeline(pipeline, data, auto, bench):
    """The outermost modules are watched; the recording brings the function that runs its samples."""
    pipeline.heads[0] = nn.Sequential(pipeline.heads[0], nn.Identity())
    with torch.no_grad(), tt.record(pipeline) as calls:
        pipeline(data[0])
    assert [call.args[0] for call in calls] == list(PATHS)
    result = auto(pipeline, calls, FakeBackend(bench), inference_function=calls.inference_function, max_depth=0)
    assert result.selected.tuned == 4


def test_recording_stops_at_its_limit(stack, data):
    """What is beyond is counted, and the object serves on."""
    with torch.no_grad(), tt.record(stack, max_calls=2) as calls:
        results = [stack(x) for x in data]
    assert (len(calls), calls.missed, len(results)) == (2, 1, 3)


def test_recording_a_tuned_module_leaves_it_tuned(stack, data, auto, bench):
    """The dispatcher is watched from outside and is back in its place."""
    auto(stack, data, FakeBackend(bench), max_depth=0)
    dispatcher = vars(stack)["forward"]
    tt.stats(stack, hits=True)
    with torch.no_grad(), tt.record(stack) as calls:
        stack(data[0])
    assert len(calls) == 1
    assert tt.stats(stack)[""].hits == 1
    assert vars(stack)["forward"] is dispatcher


def test_a_module_that_raises_is_left_alone(stack):
    """The error passes, the recording ends."""
    with pytest.raises(RuntimeError), tt.record(stack):
        stack(torch.zeros(2, 5))
    assert "forward" not in vars(stack)


def test_recording_needs_a_module():
    """An object without one, or a limit below one, is an error before anything is watched."""
    with pytest.raises(tt.UsageError, match=r"holds no torch\.nn\.Module"), tt.record(object()):
        pass
    with pytest.raises(tt.UsageError, match="max_calls=0"), tt.record(nn.Identity(), max_calls=0):
        pass
