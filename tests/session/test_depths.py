"""`auto_tune` over depths: inspected once, each cut raced, the shallowest of the fastest installed, or nothing."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import tt_core as tt
from tt_core.session import passes as session_passes
from tt_core.testing.fakes import FakeBackend, FakeLayer, moving, raising


def by_depth(*paces):
    """A pace for each depth of the unit."""
    return lambda unit, calls: paces[unit.depth]


def events(seen, stage):
    return [event for event in seen if event.stage == stage]


def races(monkeypatch):
    """The names of the runners of every end-to-end race, in order."""
    raced = []
    original = session_passes.passes

    def noted(timer, runners, *args, **kwargs):
        raced.append([runner.name for runner in runners])
        return original(timer, runners, *args, **kwargs)

    monkeypatch.setattr(session_passes, "passes", noted)
    return raced


def test_inspected_once_and_equal_cuts_are_one(stack, data, auto, bench, monkeypatch):
    """The object is surveyed once, however many depths there are; depths with the same units are one cut."""
    seen, surveys = [], []
    original = tt.api.survey.inspect
    monkeypatch.setattr(tt.api.survey, "inspect", lambda *a, **k: surveys.append(1) or original(*a, **k))
    result = auto(stack, data, FakeBackend(bench), max_depth=5, progress=seen.append)
    assert len(surveys) == 1
    assert [depth.cut.depths for depth in result.depths] == [(0,), (1,), (2, 3, 4, 5)]
    assert [depth.wrapped for depth in result.depths] == [1, 3, 5]
    assert len(events(seen, "record")) == 3


def test_each_cut_races_untuned_and_the_best_so_far(stack, data, auto, bench, monkeypatch):
    """Every new cut meets the untuned object and the best cut so far; the last race has all of them."""
    raced = races(monkeypatch)
    auto(stack, data, FakeBackend(bench, pace=by_depth(0.8, 0.4, 0.6)))
    assert raced == [
        ["untuned", "depth 0"],
        ["untuned", "depth 1", "depth 0"],
        ["untuned", "depth 2", "depth 1"],
        ["untuned", "depth 0", "depth 1", "depth 2"],
    ]


def test_a_unit_of_several_depths_is_tuned_once(stack, data, auto, bench):
    """`stem` is a leaf at depth 1 and so in the cut of depth 2 too: built once, chosen in both."""
    fast = FakeBackend(bench)
    result = auto(stack, data, fast)
    assert fast.count("build", "stem") == 1
    assert all(any(c.unit == "stem" for c in depth.choices) for depth in result.depths[1:])


@pytest.mark.parametrize(("paces", "wins"), [((0.5, 0.495, 0.5), 0), ((0.5, 0.4, 0.395), 1), ((0.5, 0.4, 0.3), 2)])
def test_the_shallowest_of_the_fastest_wins(stack, data, auto, bench, paces, wins):
    """Within the tie tolerance of the fastest the shallowest cut is installed; beyond it the fastest."""
    result = auto(stack, data, FakeBackend(bench, pace=by_depth(*paces)))
    assert result.selected is not None
    assert result.selected.cut.depths == (wins,)
    assert f"depth {wins}" in result.headline


def test_nothing_is_installed_when_no_depth_wins(stack, data, auto, bench, same):
    """Slower units: the object is as before, and the headline says by how much the best lost."""
    check = same(stack)
    result = auto(stack, data, FakeBackend(bench, pace=2.0))
    assert not result.changed
    assert result.selected is None
    assert str(result).startswith("Nothing was installed, the object is as before: no unit won")
    assert "0.50x eager" in result.headline
    check()


def test_only_the_end_to_end_race_decides(stack, data, auto, bench, same):
    """Units that were asked for by name are in the cut, but a cut that is slower than untuned is not installed."""
    check = same(stack)
    result = auto(stack, data, FakeBackend(bench, "slow", 1.25), strategy=tt.OneBackendStrategy("slow"))
    assert [depth.tuned for depth in result.depths] == [1, 3, 5]
    assert result.selected is None
    assert "0.80x untuned" in result.headline
    check()


def test_a_depth_where_every_unit_fails_is_skipped_with_its_reasons(stack, data, auto, bench):
    """The failing depth has no timing and says what went wrong; the others go on."""

    def fail(unit, calls):
        if unit.depth == 1:
            raise tt.BuildRefusedError("no kernel for depth 1")

    result = auto(stack, data, FakeBackend(bench, during=fail), max_depth=1)
    bad = result.depths[1]
    assert (bad.timing, bad.failed, bad.tuned) == (None, 3, 0)
    assert bad.error == "every unit failed to tune: fast: no kernel for depth 1"
    assert result.selected is result.depths[0]


def test_a_failed_unit_keeps_its_original_forward(stack, data, auto, bench):
    """One unit fails, its siblings are installed."""

    def fail(unit, calls):
        if unit.path == "stem":
            raise RuntimeError("not this one")

    result = auto(stack, data, FakeBackend(bench, during=fail), min_depth=1, max_depth=1)
    assert (result.selected.tuned, result.selected.failed) == (2, 1)
    assert "forward" not in vars(stack.stem)
    assert "forward" in vars(stack.blocks[0])
    assert "not this one" in str(result)


class TwoWays(nn.Module):
    def __init__(self, bench):
        super().__init__()
        self.layer = FakeLayer(bench)

    def forward(self, x, twice=False):
        return self.layer(self.layer(x) if twice else x)


def test_one_failing_key_leaves_the_others_tuned(make, data, auto, bench):
    """The key that fails stays eager with its reason; the other one is served."""

    def fail(unit, calls):
        if any(sample.call.kwargs.get("twice") for sample in calls.samples):
            raise RuntimeError("never twice")

    model = make(TwoWays)
    calls = [tt.Call(data[0]), tt.Call(data[1], twice=True)]
    result = auto(model, calls, FakeBackend(bench, during=fail), max_depth=0)
    assert [choice.candidate.name for choice in result.plan.choices] == ["fast", "eager"]
    assert (result.selected.tuned, result.selected.failed) == (1, 0)
    tt.stats(model, hits=True)
    with torch.no_grad():
        model(data[0])
        with pytest.warns(tt.FallbackWarning, match="twice"):
            model(data[1], twice=True)
    found = tt.stats(model)[""]
    assert (found.hits, found.fell) == (1, 1)


def test_moved_tensors_are_back_before_the_next_depth(stack, data, auto, bench, same):
    """Every build finds the very parameters, in the very memory, whatever the backend before it moved."""
    check = same(stack)
    home = [(id(p), p.data_ptr()) for p in stack.parameters()]
    found = []
    look = FakeBackend(
        bench, "look", 2.0, during=lambda unit, calls: found.append([(id(p), p.data_ptr()) for p in stack.parameters()])
    )
    result = auto(stack, data, moving(bench), look, strategy=tt.HighestThroughputStrategy(["moving", "look"]))
    assert len(found) >= 3
    assert all(one == home for one in found)
    assert result.changed
    tt.untune(stack)
    check()


def test_no_depth_starts_once_the_budget_is_used_up(stack, data, auto, bench):
    """The depth in progress finishes; those not started say why, and what was found is installed."""
    fast = FakeBackend(bench, build_s=100.0)
    result = auto(stack, data, fast, time_budget=50.0)
    assert [depth.error for depth in result.depths] == ["", "time budget used up", "time budget used up"]
    assert [depth.timing is None for depth in result.depths] == [False, True, True]
    assert fast.count("build") == 1
    assert result.selected is result.depths[0]


def test_the_untuned_object_is_measured_again_in_the_end(stack, data, auto, bench, monkeypatch):
    """The last race has untuned in it, and the lower latency of each sample counts for both sides."""
    raced = races(monkeypatch)
    result = auto(stack, data, FakeBackend(bench), max_depth=1)
    assert raced[-1] == ["untuned", "depth 0", "depth 1"]
    assert len(raced) == 3
    assert result.untuned_sample_s == pytest.approx((0.05,) * 3)
    assert result.selected.sample_s == pytest.approx((0.025,) * 3)


def test_a_slow_first_measurement_of_untuned_favours_nobody(bench, data, auto, same):
    """Untuned gets faster after its first race: what beat it then is not installed."""
    model = Throttled(bench).eval()
    check = same(model)

    def cold_then_warm(event):
        if event.stage == "passes" and event.depth is None:
            bench.throttle = 1.0

    bench.throttle = 4.0
    result = auto(model, data, FakeBackend(bench, pace=1.0, breaks=constant(bench, 0.020)), progress=cold_then_warm)
    assert result.depths[0].tuned == 1
    assert result.selected is None
    assert result.untuned_sample_s == pytest.approx((0.010,) * 3)
    check()


class Throttled(nn.Module):
    """Ten milliseconds times the machine's throttle."""

    def __init__(self, bench):
        super().__init__()
        self.bench = bench

    def forward(self, x):
        self.bench.work(0.010 * self.bench.throttle)
        return x + 1


def constant(bench, seconds):
    """A built that takes as long as it likes, whatever eager takes."""

    def breaks(call):
        def run(*args, **kwargs):
            with bench.paced(0.0):
                result = call(*args, **kwargs)
            bench.work(seconds)
            return result

        return run

    return breaks


def test_no_last_race_without_a_measured_depth(stack, data, auto, bench, monkeypatch):
    """Nothing was tuned, so nothing is raced."""
    raced = races(monkeypatch)
    result = auto(stack, data, raising(bench))
    assert raced == []
    assert result.untuned is None


def test_disagreement_over_a_pass_takes_the_next_best(stack, data, auto, bench):
    """Units that were right one by one are not right as a whole: that cut is off, the next best is installed."""
    lying = []

    def breaks(call):
        return lambda x: call(x) * (3 if lying else 1)

    def listen(event):
        lying[:] = [1] if event.stage == "install" and event.depth == 1 else []

    fast = FakeBackend(bench, pace=by_depth(0.6, 0.3, 0.5), breaks=breaks)
    result = auto(stack, data, fast, progress=listen)
    assert result.depths[1].error.startswith("results differ from untuned over a pass: output")
    assert result.selected.cut.depths == (2,)
    assert "forward" not in vars(stack.blocks[0])
    assert "forward" in vars(stack.blocks[0].first)


def test_disagreement_of_every_cut_installs_nothing(stack, data, auto, bench, same):
    """When no cut agrees over a pass, the object is as before, and the headline says that results differ."""
    check = same(stack)
    result = auto(stack, data, FakeBackend(bench), max_depth=0, check=lambda expected, actual: "not my numbers")
    assert result.selected is None
    assert "your check said: not my numbers" in result.headline
    check()


def test_the_whole_model_is_tuned_in_place(stack, data, auto, bench, same):
    """The root wins: `result.model` is the object itself, of its own class, and `untune` gives it back as it was."""
    check = same(stack)
    with torch.no_grad():
        expected = stack(data[2])
    result = auto(stack, data, FakeBackend(bench), max_depth=0)
    assert result.model is stack
    assert result.changed
    assert "forward" in vars(stack)
    tt.stats(stack, hits=True)
    with torch.no_grad():
        assert torch.equal(stack(data[2]), expected)
    assert tt.stats(stack)[""].hits == 1
    assert tt.untune(stack) == ("",)
    check()


def test_a_unit_is_raced_with_its_sizes_mixed_as_in_a_pass(stack, data, auto, bench):
    """A backend that prepares itself whenever the size changes is no winner where it changes with each sample."""

    def resizing(call):
        last = []

        def served(x):
            if last[-1:] != [len(x)]:
                bench.clock.sleep(1.0)
            last.append(len(x))
            return call(x)

        return served

    quick = FakeBackend(bench, "quick", pace=0.3, breaks=resizing)
    result = auto(stack, data, quick, FakeBackend(bench, "steady", pace=0.6), max_depth=0)
    assert [choice.candidate.name for choice in result.selected.choices] == ["steady"]
    alike = auto(stack, [data[0], data[0] + 1], quick, FakeBackend(bench, "steady", pace=0.6), max_depth=0)
    assert [choice.candidate.name for choice in alike.selected.choices] == ["quick"]
