"""The public calls: arguments checked before any work, strategies, dry runs, and what a result says."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import tt_core as tt
from tt_core.session import Run
from tt_core.testing.fakes import Bench, FakeBackend, FakeLayer


class Pair(nn.Module):
    """Two layers of different sizes."""

    def __init__(self, bench):
        super().__init__()
        self.first, self.second = FakeLayer(bench), nn.Sequential(FakeLayer(bench, seed=1), nn.Tanh())
        self.register_buffer("shift", torch.zeros(4), persistent=False)

    def forward(self, x):
        return self.second(self.first(x)) + self.shift


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.setenv("TT_DISABLE_AUTOLOAD", "1")
    return Bench()


@pytest.fixture
def fast(bench):
    return FakeBackend(bench)


@pytest.fixture
def model(bench):
    return Pair(bench).eval()


@pytest.fixture
def settings(bench, fast):
    return lambda *plugins, **fields: tt.Settings(plugins=(bench, fast, *plugins), **fields)


DATA = (torch.ones(2, 4), torch.ones(3, 4))


class Labelled(nn.Module):
    def forward(self, x):
        return x


BAD = {
    "empty dataset": (lambda m: (m, []), {}, tt.UsageError, "the dataset is empty"),
    "no dataset": (lambda m: (m, None), {}, tt.KindError, "the dataset is None"),
    "bare tuple": (lambda m: (m, DATA), {}, tt.UsageError, r"write \[your_tuple\] .* or list\(your_tuple\)"),
    "depths": (lambda m: (m, list(DATA)), {"min_depth": 2, "max_depth": 1}, tt.UsageError, "min_depth=2 is deeper"),
    "negative depth": (lambda m: (m, list(DATA)), {"min_depth": -1}, tt.UsageError, "min_depth=-1"),
    "budget": (lambda m: (m, list(DATA)), {"time_budget": 0}, tt.UsageError, "time_budget=0: seconds above 0"),
    "tie": (lambda m: (m, list(DATA)), {"tie_tolerance": 1.0}, tt.UsageError, "tie_tolerance=1.0"),
    "tolerance": (lambda m: (m, list(DATA)), {"tolerance": -1.0}, tt.UsageError, "tolerance=-1.0"),
    "samples": (lambda m: (m, list(DATA)), {"max_samples": 0}, tt.UsageError, "max_samples=0"),
    "no modules": (lambda m: (object(), list(DATA)), {}, tt.UsageError, "'object' holds no torch.nn.Module"),
    "not callable": (
        lambda m: ([m], list(DATA)),
        {},
        tt.UsageError,
        "'list' cannot be called: give inference_function",
    ),
    "compiled": (lambda m: (torch.compile(m), list(DATA)), {}, tt.KindError, "already compiled by torch.compile"),
    "scripted": (lambda m: (torch.jit.script(nn.ReLU()), list(DATA)), {}, tt.KindError, "is a ScriptModule"),
    "parallel": (lambda m: (nn.DataParallel(m), list(DATA)), {}, tt.KindError, "give the module that it wraps"),
    "device": (lambda m: (m, list(DATA)), {"device": "meta"}, tt.UsageError, r"call obj.to\('meta'\) first"),
    "no device": (lambda m: (m, list(DATA)), {"device": "gpu"}, tt.UsageError, "device 'gpu'"),
    "select": (lambda m: (m, list(DATA)), {"select": [nn.Linear]}, tt.UsageError, "patterns of paths or class names"),
    "progress": (lambda m: (m, list(DATA)), {"progress": "yes"}, tt.UsageError, "progress='yes'"),
    "backend": (lambda m: (m, list(DATA)), {"backends": ["fist"]}, tt.UnknownBackendError, "Known: eager, fast"),
    "exclude": (lambda m: (m, list(DATA)), {"exclude": ["fist"]}, tt.UnknownBackendError, "Known: eager, fast"),
    "strategy": (
        lambda m: (m, list(DATA)),
        {"strategy": tt.OneBackendStrategy("fist")},
        tt.UnknownBackendError,
        "Known: eager, fast",
    ),
    "strategies": (
        lambda m: (m, list(DATA)),
        {"strategies": {"first": tt.FirstWinsStrategy(["fast", "fist"])}},
        tt.UnknownBackendError,
        "'fist' is not known",
    ),
    "labels": (
        lambda m: (Labelled(), [(DATA[0], 1)]),
        {},
        tt.UsageError,
        r"inference_function=lambda m, s: m\(s\[0\]\)",
    ),
    "sample": (
        lambda m: (m, [DATA[0], torch.ones(2, 5)]),
        {},
        tt.SampleError,
        "sample 1 of 2 cannot be run: RuntimeError",
    ),
}


@pytest.mark.parametrize(("given", "fields", "error", "says"), BAD.values(), ids=BAD)
def test_bad_input_is_a_clear_error_before_any_work(model, fast, settings, given, fields, error, says):
    """The message says what, where and what to write instead; nothing was built."""
    obj, dataset = given(model)
    with pytest.raises(error, match=says) as caught:
        tt.auto_tune(obj, dataset, settings=settings(), **{"progress": False, **fields})
    assert isinstance(caught.value, ValueError | TypeError | RuntimeError)
    assert fast.log == []


@pytest.mark.parametrize(
    ("units", "says"),
    [(-1, "units=-1"), ([], "give a list of paths"), ("first", "give a list of paths"), (["third"], "no module 'third' ran"),
     (["second", "second.0"], "'second.0' runs inside 'second'"), (tt.Cut(depths=(1,), units=("x",)), "no module 'x' ran")],
)  # fmt: skip
def test_bad_units_are_an_error(model, fast, settings, units, says):
    """Units by paths or as a cut of another object."""
    with pytest.raises(tt.UsageError, match=says):
        tt.tune(model, list(DATA), units=units, settings=settings(), progress=False)
    assert fast.log == []


@pytest.mark.parametrize("field", ["unit_race_s", "pass_race_s", "record_bytes", "samples_per_key", "build_timeout"])
def test_bad_settings_are_an_error(field):
    """Numbers that must be above 0."""
    with pytest.raises(tt.UsageError, match=rf"Settings\({field}=0\)"):
        tt.Settings(**{field: 0})


@pytest.mark.parametrize(
    "dataset",
    [
        DATA[0],
        {"x": DATA[0]},
        tt.Call(x=DATA[0]),
        [(DATA[0],), ((), {"x": DATA[1]})],
        (x for x in DATA),
        DataLoader(TensorDataset(torch.ones(6, 4)), batch_size=3),
    ],
    ids=["tensor", "mapping", "call", "list", "iterator", "loader"],
)
def test_every_kind_of_dataset(model, settings, dataset):
    """One sample, many, or a loader: all tune."""
    assert tt.auto_tune(model, dataset, max_depth=0, settings=settings(), progress=False).changed


@pytest.mark.parametrize(
    ("units", "tuned"),
    [(0, [""]), (1, ["first", "second"]), (["second"], ["second"]), (tt.Cut(depths=(1,), units=("first",)), ["first"])],
)
def test_tune_takes_a_depth_paths_or_a_cut(model, settings, units, tuned):
    """Only these units are tuned, and the whole is raced once."""
    result = tt.tune(model, list(DATA), units=units, settings=settings(), progress=False)
    assert list(tt.stats(model)) == tuned
    assert result.selected.timing is not None


def test_a_strategy_is_fresh_for_each_key_of_each_unit(model, settings, monkeypatch):
    """`strategy=None` is the default one, never one shared instance."""
    asked = []
    original = Run.strategy_for
    monkeypatch.setattr(Run, "strategy_for", lambda run, unit: asked.append(original(run, unit)) or asked[-1])
    tt.auto_tune(model, list(DATA), settings=settings(), progress=False)
    assert len(asked) >= 4
    assert len({id(one) for one in asked}) == len(asked)
    assert all(type(one) is tt.HighestThroughputStrategy for one in asked)


def test_strategies_by_pattern(bench, model, settings):
    """A unit whose path or class matches has its own strategy; the others have the default one."""
    slow = FakeBackend(bench, "slow", 2.0)
    own = {"second*": tt.OneBackendStrategy("slow")}
    result = tt.tune(model, list(DATA), units=1, strategies=own, settings=settings(slow), progress=False)
    assert {choice.unit: choice.candidate.name for choice in result.plan.choices} == {"first": "fast", "second": "slow"}
    assert "not faster, installed because it was asked for by name" in next(
        choice.why for choice in result.plan.choices if choice.unit == "second"
    )


def test_a_candidate_with_options(model, fast, settings):
    """A strategy may name a candidate with options; the backend gets them, the report shows them."""
    wanted = tt.Candidate.of("fast", level=3)
    result = tt.auto_tune(
        model, list(DATA), strategy=tt.OneBackendStrategy(wanted), max_depth=0, settings=settings(), progress=False
    )
    assert fast.options == [{"level": 3}]
    assert "fast(level=3)" in str(result)


def test_first_wins_ends_the_search(bench, model, fast, settings):
    """In the order given; what comes after the first that wins is not built."""
    slow, later = FakeBackend(bench, "slow", 2.0), FakeBackend(bench, "later", 0.1)
    tt.auto_tune(
        model,
        list(DATA),
        strategy=tt.FirstWinsStrategy(["slow", "fast", "later"]),
        max_depth=0,
        settings=settings(slow, later),
        progress=False,
    )
    assert [plugin.count("build") for plugin in (slow, fast, later)] == [1, 1, 0]


@pytest.mark.parametrize(("calls", "name"), [(None, "quick"), (10, None), (10_000, "cheap"), (1_000_000, "quick")])
def test_expected_calls_score_the_lifecycle(bench, model, calls, name):
    """With few calls to come no build pays; with some the cheap one does; with many the quickest. 20 ms a call."""
    plugins = (bench, FakeBackend(bench, "quick", 0.2, build_s=100.0), FakeBackend(bench, "cheap", 0.5, build_s=1.0))
    settings = tt.Settings(plugins=plugins, expected_calls=calls)
    result = tt.auto_tune(model, list(DATA), max_depth=0, settings=settings, progress=False)
    assert [choice.candidate.name for choice in result.plan.choices] == [name] if name else not result.changed
    if name is None:
        assert "no build pays for itself within the expected calls" in result.headline


def test_a_dry_run_builds_and_changes_nothing(model, fast, settings):
    """Each depth with the modules that it wraps and the memory that tuning it needs."""
    before = [(list(vars(module)), [id(value) for value in vars(module).values()]) for module in model.modules()]
    result = tt.auto_tune(model, list(DATA), dry_run=True, settings=settings(), progress=False)
    assert (result.dry_run, result.changed, result.trials) == (True, False, ())
    assert [(depth.cut.depths, depth.wrapped) for depth in result.depths] == [((0,), 1), ((1,), 2), ((2,), 3)]
    assert fast.log == []
    assert before == [
        (list(vars(module)), [id(value) for value in vars(module).values()]) for module in model.modules()
    ]
    layer, shift, inputs = 20 * 4, 4 * 4, (2 + 3) * 4 * 4
    whole = 2 * layer + shift
    assert [depth.bytes_needed for depth in result.depths] == [
        whole + 2 * whole + inputs + 4 * inputs,  # one candidate's copy, float64, recorded inputs, results
        2 * layer + 2 * layer + 2 * (inputs + 4 * inputs),
        2 * layer + 2 * layer + 3 * (inputs + 4 * inputs),
    ]
    capped = tt.auto_tune(
        model, list(DATA), dry_run=True, max_depth=0, settings=settings(record_bytes=10), progress=False
    )
    assert capped.depths[0].bytes_needed == whole + 2 * whole + 10 + 4 * inputs


def test_without_a_backend_the_headline_says_so(model, monkeypatch):
    """Nothing to try: one sentence with where to look."""
    monkeypatch.setenv("TT_DISABLE_AUTOLOAD", "1")
    result = tt.auto_tune(model, list(DATA), progress=False)
    assert result.headline.startswith(
        "Nothing was installed, the object is as before: no backend but eager is ready on cpu"
    )
    assert "tt_core doctor" in result.headline


def test_backends_and_exclude(bench, model, fast, settings):
    """Only the named ones are tried; what is left out says so."""
    other = FakeBackend(bench, "other", 0.4)
    result = tt.auto_tune(model, list(DATA), exclude=["other"], max_depth=0, settings=settings(other), progress=False)
    assert other.count("build") == 0
    assert ("other", "left out by you") in {(refusal.name, refusal.reason) for refusal in result.refused}
    tt.auto_tune(model, list(DATA), backends=["other"], max_depth=0, settings=settings(other), progress=False)
    assert (other.count("build"), fast.count("build")) == (1, 1)


def test_the_environment_has_the_seed(model, settings):
    """What random runs and the order of races hang on is in the result."""
    result = tt.auto_tune(model, list(DATA), max_depth=0, settings=settings(seed=7), progress=False)
    assert result.environment["seed"] == "7"
    assert result.plan.environment["seed"] == "7"


def test_the_default_tries_nothing_lossy(bench, model, settings):
    """A LOSSY backend takes part only when it is named."""
    half = FakeBackend(bench, "half", 0.1, fidelity=tt.Fidelity.LOSSY)
    tt.auto_tune(model, list(DATA), max_depth=0, settings=settings(half), progress=False)
    assert half.count("build") == 0
    tt.auto_tune(model, list(DATA), max_depth=0, settings=settings(half), backends=["half"], progress=False)
    assert half.count("build") == 1
