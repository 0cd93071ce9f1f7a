"""`tt.refresh`: stale units are built again for the weights they have now, or left on their original forward."""

from __future__ import annotations

import warnings

import pytest
import torch

import tt_core as tt
from tt_core.install import Dispatcher
from tt_core.session import prepare
from tt_core.testing.fakes import FakeBackend

ALL = ("stem", "blocks.0", "blocks.1")


@pytest.fixture
def refreshed(bench):
    """`tt.refresh` with the bench and plugins as positional arguments."""
    return lambda obj, *plugins, **fields: tt.refresh(obj, settings=tt.Settings(plugins=(bench, *plugins)), **fields)


@pytest.fixture
def tuned(stack, data, auto, bench):
    """The stack with its three parts tuned by a backend that has copied the weights; the backend."""
    fast = FakeBackend(bench, baked=True)
    assert auto(stack, data, fast, min_depth=1, max_depth=1).changed
    return fast


def served(model, x):
    """The result, and the paths of units that served it without a word."""
    tt.stats(model, hits=True)
    with torch.no_grad(), warnings.catch_warnings(action="ignore", category=tt.FallbackWarning):
        result = model(x)
    return result, {path for path, one in tt.stats(model).items() if one.hits}


def write(parameter):
    with torch.no_grad():
        parameter.mul_(1.5)


def write_unseen(parameter):
    parameter.data.mul_(1.5)


@pytest.mark.parametrize("change", [write, write_unseen])
def test_a_stale_unit_is_built_again(stack, data, tuned, refreshed, change):
    """Weights were written, also where no guard notices: only that unit is built anew, and serves the new weights."""
    change(stack.blocks[0].first.weight)
    assert tt.stale(stack) == ("blocks.0",)
    builds = tuned.count("build")
    assert refreshed(stack, tuned) == ("blocks.0",)
    assert (tuned.count("build"), tuned.open) == (builds + 1, 3)
    assert tt.stale(stack) == ()
    result, who = served(stack, data[2])
    assert who == set(ALL)
    tt.untune(stack)
    with torch.no_grad():
        assert torch.equal(stack(data[2]), result)


def test_nothing_stale_nothing_done(stack, tuned, refreshed):
    """The very dispatchers stay."""
    before = [vars(module).get("forward") for module in stack.modules()]
    assert refreshed(stack, tuned) == ()
    assert [vars(module).get("forward") for module in stack.modules()] == before


def test_the_backend_may_rebind(stack, data, auto, bench, refreshed):
    """`tt_rebind` is asked before a new build."""
    fast = FakeBackend(bench, baked=True, rebinds=True)
    auto(stack, data, fast, max_depth=0)
    write(stack.stem.weight)
    assert refreshed(stack, fast) == ("",)
    assert [entry for entry in fast.log if entry[0] != "close"] == [("build", ""), ("rebind", "")]
    assert fast.open == 1
    assert served(stack, data[0])[1] == {""}


def test_what_cannot_be_built_stays_on_its_original_forward(stack, data, auto, bench, refreshed):
    """One sentence; the others are refreshed all the same."""
    broken = []

    def fail(unit, calls):
        if broken and unit.path == "stem":
            raise tt.BuildRefusedError("the licence ran out")

    fast = FakeBackend(bench, baked=True, during=fail)
    auto(stack, data, fast, min_depth=1, max_depth=1)
    write(stack.stem.weight)
    write(stack.blocks[1].first.weight)
    broken.append(1)
    with pytest.warns(tt.FallbackWarning, match="unit 'stem' was not built again: fast: the licence ran out"):
        assert refreshed(stack, fast) == ("blocks.1",)
    assert "forward" not in vars(stack.stem)
    assert fast.open == 2
    assert served(stack, data[0])[1] == {"blocks.0", "blocks.1"}


def test_what_is_wrong_now_is_not_installed(stack, data, auto, bench, refreshed):
    """Each is checked against the original forward with the weights it has now."""
    lies = []
    fast = FakeBackend(bench, baked=True, breaks=lambda call: lambda x: call(x) * (3 if lies else 1))
    auto(stack, data, fast, max_depth=0)
    write(stack.stem.weight)
    lies.append(1)
    with pytest.warns(tt.FallbackWarning, match="the tuned Stack was not built again: fast: output is"):
        assert refreshed(stack, fast) == ()
    assert "forward" not in vars(stack)
    assert fast.open == 0


def test_a_backend_that_is_gone(stack, tuned, refreshed):
    """Its units go back to their original forward, and the sentence names it."""
    write(stack.stem.weight)
    with pytest.warns(tt.FallbackWarning, match="backend 'fast' is not there any more"):
        assert refreshed(stack) == ()


def test_another_training_flag(stack, tuned, refreshed):
    """The recorded calls were made in eval mode."""
    write(stack.stem.weight)
    stack.stem.train()
    with pytest.warns(tt.FallbackWarning, match=r"call \.eval\(\) or \.train\(\) first"):
        assert refreshed(stack, tuned) == ()


def test_a_unit_that_does_not_run_any_more(stack, tuned, refreshed):
    """The recorded calls do not fit: tune again."""
    stack.stem.weight = torch.nn.Parameter(torch.zeros(5, 4))
    with pytest.warns(tt.FallbackWarning, match="does not run the recorded calls: RuntimeError.*; tune again"):
        assert refreshed(stack, tuned) == ()


def test_an_interrupted_refresh_leaves_the_tuning(stack, data, auto, bench, refreshed):
    """The stale dispatcher is back, and what was built meanwhile is closed."""
    stop = []

    def interrupt(unit, calls):
        if stop:
            raise KeyboardInterrupt

    fast = FakeBackend(bench, baked=True, during=interrupt)
    auto(stack, data, fast, max_depth=0)
    dispatcher = vars(stack)["forward"]
    write(stack.stem.weight)
    stop.append(1)
    with pytest.raises(KeyboardInterrupt):
        refreshed(stack, fast)
    assert vars(stack)["forward"] is dispatcher
    assert fast.open == 1


def test_live_units_hold_no_calls(stack, data, auto, bench):
    """What reads its weights when it is called never goes stale, and keeps no recorded inputs alive."""
    auto(stack, data, FakeBackend(bench), max_depth=0)
    dispatcher = vars(stack)["forward"]
    assert isinstance(dispatcher, Dispatcher)
    assert [route.entry.calls for route in dispatcher.routes] == [None]


def test_recorded_calls_stay_within_their_bytes(stack, data, tuned, auto, bench, monkeypatch):
    """Results are dropped; inputs beyond the limit too, but for the smallest."""
    (route,) = vars(stack.stem)["forward"].routes
    assert [len(sample.call.args[0]) for sample in route.entry.calls.samples] == [2, 3, 8]
    assert all(sample.truth is None and sample.expected.result is None for sample in route.entry.calls.samples)
    monkeypatch.setattr(prepare, "_KEPT", 1)
    auto(stack, data, FakeBackend(bench, baked=True), max_depth=0)
    (route,) = vars(stack)["forward"].routes
    assert [len(sample.call.args[0]) for sample in route.entry.calls.samples] == [2]
