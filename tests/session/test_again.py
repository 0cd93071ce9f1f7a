"""Tuning again, two models, threads: every tuning starts from the untuned object, and is alone with it."""

from __future__ import annotations

import copy
import threading
import warnings

import pytest
import torch

import tt_core as tt
from tt_core.install import Dispatcher
from tt_core.testing.fakes import FakeBackend


def forwards(model):
    return {name: vars(module).get("forward") for name, module in model.named_modules()}


def test_tuning_again_starts_from_the_untuned_object(stack, data, auto, bench, same):
    """The second run sees, races and builds on the original forwards; the first one's builts are closed."""
    check, found = same(stack), []
    first = FakeBackend(bench, "first", 0.5)
    auto(stack, data, first, max_depth=0)
    assert first.open == 1
    second = FakeBackend(
        bench, "second", 0.6, during=lambda unit, calls: found.append((unit.forward, *forwards(stack).values()))
    )
    result = auto(stack, data, second, min_depth=1, max_depth=1)
    assert result.speedup == pytest.approx(1 / 0.6)
    assert not any(isinstance(each, Dispatcher) for one in found for each in one)
    assert first.open == 0
    assert [name for name, forward in forwards(stack).items() if forward] == ["stem", "blocks.0", "blocks.1"]
    tt.untune(stack)
    assert second.open == 0
    check()


def test_tuning_again_without_a_winner_leaves_it_untuned(stack, data, auto, bench, same):
    """The last run has the last word."""
    check = same(stack)
    auto(stack, data, FakeBackend(bench), max_depth=0)
    result = auto(stack, data, FakeBackend(bench, pace=2.0), max_depth=0)
    assert not result.changed
    check()


@pytest.mark.parametrize("baked", [False, True])
@pytest.mark.parametrize("stage", ["inspect", "build", "passes", "done"])
def test_an_interrupted_second_tuning_leaves_the_first(stack, data, auto, bench, stage, baked):
    """The very dispatchers of the first tuning serve on, and nothing that they need was closed."""
    first = FakeBackend(bench, "first", baked=baked)
    auto(stack, data, first, min_depth=1, max_depth=1)
    before = forwards(stack)

    def stop(event):
        if event.stage == stage:
            raise KeyboardInterrupt

    second = FakeBackend(bench, "second", 0.1)
    with pytest.raises(KeyboardInterrupt):
        auto(stack, data, second, max_depth=1, progress=stop)
    assert forwards(stack) == before
    assert (first.open, second.open) == (3, 0)
    tt.stats(stack, hits=True)
    with torch.no_grad():
        stack(data[0])
    assert [one.hits for one in tt.stats(stack).values()] == [1, 1, 1]


def test_looking_does_not_end_a_tuning(stack, data, auto, bench):
    """A dry run and `tt.inspect` see the untuned object, and the tuning is back afterwards."""
    auto(stack, data, FakeBackend(bench), max_depth=0)
    before = forwards(stack)
    dry = auto(stack, data, FakeBackend(bench), dry_run=True)
    assert [depth.wrapped for depth in dry.depths] == [1, 3, 5]
    assert len(tt.inspect(stack, data).modules) == 8
    assert forwards(stack) == before


def test_a_shallow_copy_shares_and_is_freed_alone(stack, data, auto, bench):
    """Tuning a `copy.copy` of a tuned module leaves the module that it was copied from tuned."""
    auto(stack, data, FakeBackend(bench), max_depth=0)
    dispatcher = vars(stack)["forward"]
    other = copy.copy(stack)
    auto(other, data, FakeBackend(bench, pace=2.0), max_depth=0)
    assert "forward" not in vars(other)
    assert vars(stack)["forward"] is dispatcher


def test_two_models_do_not_meet(make, data, auto, bench):
    """Two models of one class are tuned apart; untuning one leaves the other."""
    one, two = make(), make()
    auto(one, data, FakeBackend(bench), max_depth=0)
    auto(two, data, FakeBackend(bench), min_depth=1, max_depth=1)
    assert list(tt.stats(one)) == [""]
    assert list(tt.stats(two)) == ["stem", "blocks.0", "blocks.1"]
    tt.untune(one)
    assert list(tt.stats(one)) == []
    assert len(tt.stats(two)) == 3


def in_thread(call):
    """Runs `call` in a thread of its own; what it returned or raised, once joined."""
    found = {}

    def run():
        try:
            found["value"] = call()
        except Exception as error:  # noqa: BLE001  whatever it is, the test has to see it
            found["error"] = error

    thread = threading.Thread(target=run)
    thread.start()
    return thread, found


def test_tuning_in_a_thread(stack, data, auto, bench):
    """A thread that is not the main one tunes, and the model then serves the others."""
    thread, found = in_thread(lambda: auto(stack, data, FakeBackend(bench), max_depth=0))
    thread.join(60)
    assert found["value"].changed
    tt.stats(stack, hits=True)
    with torch.no_grad():
        stack(data[0])
    assert tt.stats(stack)[""].hits == 1


def test_an_object_that_another_thread_tunes_is_refused(stack, make, data, auto, tune, bench):
    """At once, for the object and for a part of it; another object waits for its turn."""
    reached, go_on = threading.Event(), threading.Event()

    def hold(unit, calls):
        reached.set()
        assert go_on.wait(60)

    thread, found = in_thread(lambda: auto(stack, data, FakeBackend(bench, during=hold), max_depth=0))
    assert reached.wait(60)
    other = make()
    try:
        for call in (
            lambda: auto(stack, data, FakeBackend(bench)),
            lambda: tune(stack.stem, data, FakeBackend(bench)),
            lambda: tt.inspect(stack, data),
            lambda: tt.refresh(stack),
        ):
            with pytest.raises(tt.BusyError, match="another thread is tuning this object"):
                call()
        waiting, later = in_thread(lambda: auto(other, data, FakeBackend(bench), max_depth=0))
        assert waiting.is_alive()
        assert not later
    finally:
        go_on.set()
    thread.join(60)
    waiting.join(60)
    assert found["value"].changed
    assert later["value"].changed


def test_calls_during_a_tuning_of_another_model(stack, make, data, auto, bench):
    """A tuned model serves while another one is tuned: nothing of the process is switched under it."""
    auto(stack, data, FakeBackend(bench), max_depth=0)
    tt.stats(stack, hits=True)

    def serve(unit, calls):
        with torch.no_grad(), warnings.catch_warnings(action="error"):
            stack(data[0])

    auto(make(), data, FakeBackend(bench, "other", during=serve), max_depth=0)
    assert tt.stats(stack)[""].hits == 1
