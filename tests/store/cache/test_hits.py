"""A second tuning starts from what the first one found, and checks it."""

from __future__ import annotations

import json
import random
import subprocess
import sys

import pytest
import torch
from remembered import HIT, chosen, hit

from tt_core.install import Dispatcher
from tt_core.testing.fakes import FakeBackend


def test_a_second_tuning_builds_what_is_planned(net, data, auto, fast, slow, folder):
    """Only the planned candidates; the same plan, checked and raced again, with its trials in the result."""
    first = auto(net(), data, fast, slow, max_depth=1)
    built = fast.count("build"), slow.count("build")
    obj = net()
    second = auto(obj, data, fast, slow, max_depth=1)
    assert not hit(first)
    assert hit(second)
    assert (fast.count("build") - built[0], slow.count("build") - built[1]) == (1, 0)
    assert chosen(second) == chosen(first)
    assert isinstance(vars(obj)["forward"], Dispatcher)
    assert [(t.candidate.name, t.failed) for t in second.trials] == [("fast", False)]
    assert [(d.origin, d.cut.depths, d.timing is not None) for d in second.depths] == [("cache", (0,), True)]
    assert second.speedup == pytest.approx(2.0)
    assert second.seconds <= first.seconds / 3
    assert len(list(folder.iterdir())) == 1


def test_a_tuned_object_is_the_same_object(net, data, auto, fast):
    """Tuning an object again hits too: it is looked at without its tuning."""
    obj = net()
    auto(obj, data, fast)
    assert hit(auto(obj, data, fast))
    assert fast.open == 1


def test_other_values_are_the_same_structure(net, data, auto, fast):
    """Weights and samples of other values, equal shapes: the plan is the same."""
    auto(net(), data, fast)
    other = net()
    with torch.no_grad():
        other.first.weight.mul_(0.5)
    assert hit(auto(other, [x + 1 for x in data], fast))


def test_a_remembered_plan_that_no_longer_wins(net, data, auto, bench, fast, slow):
    """It stays in the table, the search runs, and what that finds is remembered instead."""
    auto(net(), data, fast, slow)
    lame, better = FakeBackend(bench, "fast", 1.5), FakeBackend(bench, "slow", 0.5)
    result = auto(net(), data, lame, better)
    assert not hit(result)
    assert result.depths[0].origin == "cache"
    assert {c.candidate.name for c in result.plan.choices} == {"slow"}
    assert hit(auto(net(), data, lame, better))


def test_a_remembered_plan_in_a_noisy_hour(net, data, auto, bench, fast):
    """Ahead on the best guess of eight rounds is enough where it won before, and the headline says that it was short."""
    auto(net(), data, fast)
    rng = random.Random(0)

    def noisy(call):
        def serve(*args, **kwargs):
            with bench.paced(rng.choice((0.6, 0.7, 0.8, 2.2))):
                return call(*args, **kwargs)

        return serve

    result = auto(net(), data, FakeBackend(bench, "fast", 1.0, breaks=noisy))
    assert hit(result)
    assert "on the best guess of a short race" in result.headline
    assert len(result.selected.timing.ratios) == 8
    assert result.selected.timing.interval.high > 1.0


def test_a_remembered_plan_that_is_wrong_now(net, data, auto, bench, fast):
    """A candidate that gives wrong results today is not installed because it was right once."""
    auto(net(), data, fast)
    wrong = FakeBackend(bench, "fast", 0.1, breaks=lambda call: lambda *args, **kwargs: 3 * call(*args, **kwargs))
    result = auto(net(), data, wrong)
    assert not result.changed
    assert wrong.open == 0


def test_a_plan_of_the_callers_is_searched_and_remembered(net, data, auto, fast):
    """`plan=` asks for a search; its result is remembered."""
    plan = auto(net(), data, fast, mode="off").plan
    result = auto(net(), data, fast, plan=plan)
    assert [depth.origin for depth in result.depths] == ["plan", ""]
    assert hit(auto(net(), data, fast))


@pytest.mark.long
def test_a_second_process_finds_the_plan(bench, folder):
    """What one process found, another one takes up: nothing of the process is in the name."""
    code = (
        "import torch, tt_core as tt\n"
        "from tt_core.testing.fakes import Bench, FakeBackend, FakeLayer\n"
        "bench = Bench(); model = FakeLayer(bench).eval()\n"
        "plugins = (bench, FakeBackend(bench))\n"
        "print(tt.auto_tune(model, [torch.zeros(2, 4)], settings=tt.Settings(plugins=plugins), progress=False).headline)\n"
    )
    found = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    ]
    assert [HIT in text for text in found] == [False, True]


def test_the_report_tells(net, data, auto, fast):
    """The row of the table says where its cut comes from; the JSON too."""
    auto(net(), data, fast)
    result = auto(net(), data, fast)
    assert "0 (cache)" in str(result)
    assert [depth["origin"] for depth in result.to_json()["depths"]] == ["cache"]
    json.dumps(result.to_json(), allow_nan=False)
