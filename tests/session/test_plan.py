"""Plans as recipes: committed, applied without a search, and tried first by one."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import tt_core as tt
from tt_core.clock import UNIT
from tt_core.install import Dispatcher
from tt_core.session import units
from tt_core.testing.fakes import FakeBackend, FakeLayer, raising, tripling


@pytest.fixture
def apply(bench):
    def run(obj, plan, dataset, *plugins, **fields):
        return tt.apply(obj, plan, dataset, settings=tt.Settings(plugins=(bench, *plugins)), progress=False, **fields)

    return run


@pytest.fixture
def plan(make, data, auto, bench):
    """Both blocks fast, the stem eager: a plan of depth 1."""
    fast = FakeBackend(bench, pace=lambda unit, calls: 0.5 if unit.path.startswith("blocks") else 2.0)
    return auto(make(), data, fast, min_depth=1, max_depth=1).plan


def tuned(obj):
    return [path for path, module in obj.named_modules() if isinstance(vars(module).get("forward"), Dispatcher)]


def test_a_plan_is_applied_without_a_search(stack, plan, data, apply, bench):
    """Per unit only the chosen candidate is built; what is installed is the plan."""
    fast, other = FakeBackend(bench), FakeBackend(bench, "other", 0.1)
    result = apply(stack, json.loads(json.dumps(plan.to_json())), data, fast, other)
    assert [path for _, path in fast.log if _ == "build"] == ["blocks.0", "blocks.1"]
    assert other.count("build") == 0
    assert tuned(stack) == ["blocks.0", "blocks.1"]
    assert result.headline.startswith("Installed the plan at depth 1 (2 of 3 modules, fast): ")
    assert (result.plan.cut, [c.candidate for c in result.plan.choices]) == (
        plan.cut,
        [c.candidate for c in plan.choices],
    )
    assert [(d.origin, d.cut.depths) for d in result.depths] == [("plan", (1,))]
    assert [(trial.unit, trial.candidate.name) for trial in result.trials] == [
        ("blocks.0", "fast")
    ]  # its twin searches nothing
    assert "1 (plan)" in str(result)


def test_a_plan_in_a_file(stack, plan, data, apply, bench, tmp_path):
    """By its path, as text or as an object."""
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(plan.to_json(), indent=2), "utf-8")
    for given in (path, str(path), path.read_text("utf-8"), plan):
        assert apply(stack, given, data, FakeBackend(bench)).changed
        tt.untune(stack)


@pytest.mark.parametrize(
    ("content", "match"),
    [(None, "cannot be read: No such file"), ("{", "no JSON"), ("{}", "this is no plan"), ("PK\x03\x04", "no JSON")],
)
def test_a_file_that_is_no_plan(stack, data, apply, tmp_path, content, match):
    """Names the file and what is wrong."""
    path = tmp_path / "plan.json"
    if content is not None:
        path.write_text(content, "utf-8")
    with pytest.raises(tt.StoreError, match=match) as caught:
        apply(stack, path, data)
    assert "plan.json" in str(caught.value)


@pytest.mark.parametrize("given", [None, 3, ["plan"]])
def test_something_else_than_a_plan(stack, data, apply, given):
    """Says what is needed."""
    with pytest.raises(tt.UsageError, match="what plan"):
        apply(stack, given, data)


def test_a_plan_that_is_not_faster_is_not_installed(stack, plan, data, apply, bench, same):
    """The headline says why; the plan of the result says eager."""
    check = same(stack)
    result = apply(stack, plan, data, FakeBackend(bench, pace=1.5))
    assert result.headline.startswith("Nothing was installed, the object is as before: the best depth runs at 0.7")
    assert result.plan.eager
    check()


def test_a_unit_need_only_be_correct(stack, make, data, auto, apply, bench):
    """One of three is slower alone, and the cut wins end to end."""
    found = auto(make(), data, FakeBackend(bench), min_depth=1, max_depth=1).plan
    fast = FakeBackend(bench, pace=lambda unit, calls: 1.1 if unit.path == "stem" else 0.1)
    result = apply(stack, found, data, fast)
    assert tuned(stack) == ["stem", "blocks.0", "blocks.1"]
    assert any("not faster, installed because the plan says so" in choice.why for choice in result.plan.choices)


def test_a_plan_whose_candidate_is_wrong(stack, plan, data, apply, bench, same):
    """A wrong candidate stays out, whatever the plan says."""
    check = same(stack)
    result = apply(stack, plan, data, tripling(bench, "fast"))
    assert "every unit failed to tune: fast: " in result.headline
    assert all(trial.failed for trial in result.trials)
    check()


def test_a_unit_that_does_not_build_any_more_stays_eager(stack, plan, data, apply, bench):
    """The rest of the plan is installed."""

    def fail(unit, calls):
        if unit.path == "blocks.1":
            raise RuntimeError("no kernel")

    result = apply(stack, plan, data, FakeBackend(bench, during=fail))
    assert tuned(stack) == ["blocks.0"]
    assert result.changed


def test_calls_that_the_plan_does_not_know_stay_eager(stack, plan, data, apply, bench):
    """With a sentence that names them; the calls that it knows are tuned."""
    more = [*data, data[0].double()]
    for module in stack.modules():
        if isinstance(module, FakeLayer):
            module.forward = wide.__get__(module)
    fast = FakeBackend(bench)
    result = apply(stack, plan, more, fast)
    assert fast.count("build") == 2
    assert any(
        "the plan does not know these calls, which stay eager: stem with x: f64[2, 4]" in n for n in result.notes
    )
    assert "stays eager: the plan does not know this call" in {c.why for c in result.plan.choices}


def wide(self, x):
    self.bench.work(self.seconds)
    return x @ self.weight.to(x.dtype) + self.bias.to(x.dtype)


def test_a_plan_that_knows_no_call(stack, plan, data, apply, bench):
    """Nothing is built, and the headline says so."""
    stack.double()
    fast = FakeBackend(bench)
    result = apply(stack, plan, [x.double() for x in data], fast)
    assert "the plan has no candidate for any call of the dataset" in result.headline
    assert fast.log == []


def test_an_eager_plan(stack, make, data, auto, apply, bench, same):
    """Nothing won: the plan says eager, can be written, and is applied by leaving the object alone."""
    check = same(stack)
    found = auto(make(), data, FakeBackend(bench, pace=2.0)).plan
    again = tt.Plan.from_json(json.dumps(found.to_json()))
    fast = FakeBackend(bench)
    result = apply(stack, again, data, fast)
    assert result.headline == "Nothing was installed, the object is as before: the plan says eager."
    assert result.plan.eager
    assert fast.log == []
    check()


def test_a_plan_of_another_object(make, plan, data, apply, bench):
    """An error before any work, which names a unit."""
    layer = FakeLayer(bench).eval()
    fast = FakeBackend(bench)
    with pytest.raises(tt.UsageError, match=r"the object has no module 'stem' and 2 more of its units"):
        apply(layer, plan, data, fast)
    assert fast.log == []


def test_a_unit_that_does_not_run(plan, data, apply, bench, stack):
    """A unit that is there and never runs is an error too."""
    stack.blocks = nn.ModuleList([*stack.blocks])
    with pytest.raises(tt.UsageError, match=r"no module 'blocks\.0' ran on the dataset"):
        apply(stack, plan, data, FakeBackend(bench), inference_function=lambda obj, x: obj.stem(x))


@pytest.mark.parametrize(
    ("devices", "match"), [(None, "'fast' is not known here"), ({"xpu"}, "backend 'fast' cannot be used")]
)
def test_a_backend_that_is_not_ready(stack, plan, data, apply, bench, devices, match):
    """An error before any work."""
    plugins = [] if devices is None else [FakeBackend(bench, devices=devices)]
    with pytest.raises(tt.UsageError, match=match):
        apply(stack, plan, data, *plugins)


def test_options_and_chains_are_kept(stack, make, data, auto, apply, bench):
    """The candidate is built with the very options, and a chain with its layer."""
    plugins = [
        FakeBackend(bench, "base", 0.9, options=[{"level": 1}, {"level": 2}], capturable=True),
        FakeBackend(bench, "graph", lambda unit, calls: 0.2, layer=True),
    ]
    strategy = tt.OneBackendStrategy(tt.Candidate.of("base", level=2).over("graph"))
    found = auto(make(), data, *plugins, max_depth=0, strategy=strategy).plan
    plugins[0].options.clear()
    result = apply(stack, found.to_json(), data, *plugins)
    assert str(result.plan.choices[0].candidate) == "base(level=2)+graph"
    assert plugins[0].options == [{"level": 2}]


def test_twins_take_the_choice_once(bench, data, auto, apply):
    """A plan's members are all tuned, as one search."""

    def layers():
        return nn.Sequential(*(FakeLayer(bench, seed=seed) for seed in range(3))).eval()

    found = auto(layers(), data, FakeBackend(bench), min_depth=1, max_depth=1).plan
    assert found.choices[0].members == ("0", "1", "2")
    model, fast = layers(), FakeBackend(bench)
    result = apply(model, found.to_json(), data, fast)
    assert tuned(model) == ["0", "1", "2"]
    assert result.plan.choices[0].members == ("0", "1", "2")
    assert len(result.trials) == 1


def test_a_plan_by_an_alias(bench, data, apply):
    """A shared module is found by any of its paths."""
    shared = FakeLayer(bench)
    model = nn.Sequential(shared, shared).eval()
    key = tt_key(data)
    choice = tt.Choice(unit="1", key=key, candidate=tt.Candidate.of("fast"))
    result = apply(model, tt.Plan(cut=tt.Cut(depths=(), units=("1",)), choices=(choice,)), data, FakeBackend(bench))
    assert tuned(model) == ["0"]
    assert result.selected.cut == tt.Cut(depths=(1,), units=("0",))


def tt_key(data):
    from tt_core.callkey import key_of

    return key_of(lambda x: x, tt.Call(data[0]), training=False)


def test_the_caller_checks_a_plan_too(stack, plan, data, apply, bench, same):
    """`check=` may veto."""
    check = same(stack)
    result = apply(stack, plan, data, FakeBackend(bench), check=lambda expected, actual: "I do not like it")
    assert "I do not like it" in result.headline
    check()


def test_an_interrupted_apply_leaves_nothing(stack, plan, data, apply, bench, same):
    """As `auto_tune`."""
    check, fast = same(stack), FakeBackend(bench)

    def stop(event):
        if event.stage == "passes":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tt.apply(stack, plan, data, settings=tt.Settings(plugins=(bench, fast)), progress=stop)
    assert fast.open == 0
    check()


def test_auto_tune_tries_a_plan_first(stack, plan, data, auto, bench):
    """It is one more contender, marked; the search goes on as usual, and the best is installed."""
    built = []
    fast = FakeBackend(bench, pace=0.5, during=lambda unit, calls: built.append(unit.path))
    result = auto(stack, data, fast, max_depth=1, plan=plan)
    assert built[:2] == ["blocks.0", "blocks.1"]
    assert [(d.origin, d.cut.depths) for d in result.depths] == [("", (0,)), ("plan", (1,)), ("", (1,))]
    assert result.selected.cut.depths == (0,)
    assert tuned(stack) == [""]
    assert fast.open == 1


def test_auto_tune_installs_the_plan_where_it_is_best(stack, plan, data, auto, bench):
    """A plan outside the searched depths wins where nothing else does."""
    fast = FakeBackend(bench, pace=lambda unit, calls: 0.5 if unit.path.startswith("blocks") else 2.0)
    result = auto(stack, data, fast, max_depth=0, plan=plan.to_json())
    assert result.selected.origin == "plan"
    assert result.headline.startswith("Installed the plan at depth 1")
    assert tuned(stack) == ["blocks.0", "blocks.1"]
    assert fast.open == 2


def test_auto_tune_without_a_plan_that_fits(stack, plan, make, data, auto, bench):
    """What cannot be tried is a note; the search is as without it."""
    layer = FakeLayer(bench).eval()
    result = auto(layer, data, FakeBackend(bench), plan=plan)
    assert any(note.startswith("the plan was not tried: the object has no module 'stem'") for note in result.notes)
    assert result.changed
    result = auto(stack, data, FakeBackend(bench, "other"), plan=plan)
    assert any("the plan was not tried: backend 'fast' is not known here" in note for note in result.notes)
    assert result.changed


def test_auto_tune_with_a_plan_that_fails(stack, plan, data, auto, bench):
    """A plan that is wrong today does no harm to the search."""
    result = auto(stack, data, raising(bench, "fast"), FakeBackend(bench, "other"), max_depth=0, plan=plan)
    assert {c.candidate.name for c in result.plan.choices} == {"other"}
    assert "no kernel for this" in next(d.error for d in result.depths if d.origin == "plan")


def test_the_plan_of_runs_that_decide_nothing(stack, data, auto, bench):
    """A dry run has none; a run that broke off has none."""
    assert auto(stack, data, FakeBackend(bench), dry_run=True).plan is None

    def stop(event):
        if event.stage == "build":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        auto(stack, data, FakeBackend(bench), progress=stop)
    assert caught.value.result.plan is None
    with torch.no_grad():
        stack(data[0])


def test_a_planned_unit_is_raced_as_short_as_can_be(stack, plan, data, apply, auto, bench, monkeypatch):
    """Its candidate is installed whatever the race says; a search looks again and again."""
    looks, race = [], units.race

    def watched(timer, runners, calls, rules, **more):
        looks.append(len(rules.looks))
        return race(timer, runners, calls, rules, **more)

    monkeypatch.setattr(units, "race", watched)
    assert apply(stack, plan, data, FakeBackend(bench)).changed
    assert set(looks) == {1}
    looks.clear()
    auto(stack, data, FakeBackend(bench), max_depth=1)
    assert set(looks) == {len(UNIT.looks)}
