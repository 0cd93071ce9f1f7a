"""The survey: which modules run, how often, how long, with what calls; and no trace of it."""

from __future__ import annotations

import json
import threading

import pytest
import torch
from torch import nn

from tt_core.callkey import key_of
from tt_core.errors import SampleError
from tt_core.samples import read
from tt_core.state import take
from tt_core.survey import inspect


class Clock:
    """A clock that moves only when told."""

    def __init__(self):
        self.time = 0.0

    def __call__(self):
        self.time += 0.001
        return self.time


class Work(nn.Module):
    """Takes a given time of the fake clock, half before and half after its children."""

    def __init__(self, clock, seconds, *children):
        super().__init__()
        self.clock, self.seconds = [clock], seconds
        self.inner = nn.ModuleList(children)

    def forward(self, x):
        self.clock[0].time += self.seconds / 2
        for child in self.inner:
            x = child(x)
        self.clock[0].time += self.seconds / 2
        return x


def _inspect(obj, dataset, **options):
    return inspect(obj, read(dataset, obj, **options), Clock())


X = torch.ones(2, 3)


def test_total_and_own_seconds_are_free_of_the_cost_of_watching(monkeypatch):
    """A parent's total is its own work and its children's, not what watching them costs (here 1000 s a call)."""
    clock = Clock()

    def slow_key(*args, **kwargs):
        clock.time += 1000
        return key_of(*args, **kwargs)

    monkeypatch.setattr("tt_core.survey.watch.key_of", slow_key)
    model = Work(clock, 100, Work(clock, 30), Work(clock, 50, Work(clock, 7)))
    seen = inspect(model, read([X, X], model), clock)
    assert {one.path: (one.calls, round(one.total_s), round(one.own_s)) for one in seen.modules} == {
        "": (2, 374, 200),
        "inner.0": (2, 60, 60),
        "inner.1": (2, 114, 100),
        "inner.1.inner.0": (2, 14, 14),
    }
    assert round(seen.seconds) == 374
    assert seen.idle == ("inner", "inner.0.inner", "inner.1.inner", "inner.1.inner.0.inner")


def test_time_in_other_methods_is_outside_the_modules():
    """What runs around the modules is shown as time outside."""
    clock = Clock()
    model = Work(clock, 10)

    def run(obj, sample):
        clock.time += 40
        return obj.forward(sample)

    seen = inspect(model, read([X], model, inference_function=run), clock)
    assert seen.outside_s == pytest.approx(40, abs=1)
    assert seen[""].calls == 1


def test_depth_counts_executed_ancestors_and_is_the_least_over_the_calls():
    """Containers that are never called do not count; a shared module has its shallowest depth, and all its callers."""

    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.act = nn.Tanh()
            self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(3, 3), self.act)])

        def forward(self, x):
            for block in self.blocks:
                x = block(x)
            return self.act(x)

    seen = _inspect(Shared(), [X])
    assert {one.path: (one.depth, one.parent, one.parents) for one in seen.modules} == {
        "": (0, None, ()),
        "act": (1, "", ("blocks.0", "")),
        "blocks.0": (1, "", ("",)),
        "blocks.0.0": (2, "blocks.0", ("blocks.0",)),
    }
    assert seen["blocks.0.1"].path == "act"
    assert seen.cut(1).units == ("blocks.0",)
    assert [unit.path for unit in seen.units()] == [one.path for one in seen.modules]
    assert [(unit.depth, unit.parent) for unit in seen.units()] == [(one.depth, one.parent) for one in seen.modules]


def test_direct_forward_calls_and_hidden_modules_are_seen():
    """`self.model.forward(...)` is seen, and so are modules in lists, dicts and plain objects."""

    class Pipe:
        def __init__(self):
            self.model, self.stages, self.by = nn.Linear(3, 3), [nn.ReLU()], {"x": nn.Tanh()}

        def __call__(self, x):
            return self.by["x"](self.stages[0].forward(self.model.forward(x)))

    seen = _inspect(Pipe(), [X])
    assert [(one.path, one.calls, one.depth) for one in seen.modules] == [
        ("model", 1, 0),
        ("stages.0", 1, 0),
        ("by['x']", 1, 0),
    ]


def test_the_fused_encoder_layer_is_a_leaf():
    """nn.TransformerEncoderLayer runs fused in eval: its children do not run, and watching does not change that."""
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2).eval()
    seen = _inspect(model, [torch.ones(1, 4, 8)])
    assert [one.path for one in seen.modules] == ["", "layers.0", "layers.1"]
    assert not seen["layers.0"].children_executed


def test_recursion_is_flagged_and_not_counted_twice():
    """A module that runs inside itself is flagged; its seconds count once."""
    clock = Clock()

    class Again(nn.Module):
        def forward(self, x, n=2):
            clock.time += 10
            return self(x, n - 1) if n else x

    model = Again()
    seen = inspect(model, read([X], model), clock)
    assert seen[""].recursive
    assert (seen[""].calls, seen[""].depth) == (3, 0)
    assert seen[""].total_s == pytest.approx(30, abs=4)
    assert seen.cut(0).units == ()


def test_parametrizations_belong_to_their_module():
    """A parametrized layer is one unit: what computes its weight is no unit of its own."""
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)))
    assert [one.path for one in _inspect(model, [X]).modules] == ["", "0"]


def test_modules_on_worker_threads_are_inside_what_started_them():
    """A module that runs on a thread of its own is inside the module that is running."""

    class Threaded(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(3, 3)

        def forward(self, x):
            thread = threading.Thread(target=self.lin, args=(x,))
            thread.start()
            thread.join()
            return x

    seen = _inspect(Threaded(), [X])
    assert (seen["lin"].depth, seen["lin"].parent) == (1, "")


def test_keys_parameters_and_dtypes_are_told():
    """Call keys as text with the sizes seen, parameters of the whole subtree, dtypes."""
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).eval()
    seen = _inspect(model, [X, torch.ones(5, 3)])
    assert seen[""].keys == ("input: f32[2..5, 3]",)
    assert seen[""].parameters == 3 * 4 + 4 + 4 + 4
    assert seen[""].dtypes == ("float32", "int64")
    assert seen["0"].kind == "Linear"


@pytest.mark.parametrize("fails", [False, True])
def test_no_trace_is_left(fails):
    """vars() of each module has the same keys in the same order with the same objects, state and RNG, also on errors."""

    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.drop, self.n, self.log = nn.Dropout(), 0, []
            self.register_buffer("seen", torch.zeros(1), persistent=False)

        def forward(self, x):
            self.n += 1
            self.log.append(x)
            self.seen += 1
            self.late = self.drop(x)
            if fails:
                raise ZeroDivisionError
            return x

    model, data = Counts(), [X.clone()]
    model.drop.forward = own = lambda x: x * torch.rand(())
    before, rng, content = [list(vars(m).items()) for m in model.modules()], torch.random.get_rng_state(), take(model)
    if fails:
        with pytest.raises(SampleError, match="sample 0 of 1"):
            _inspect(model, data)
    else:
        assert _inspect(model, data).changed == ("late", "log", "n", "seen")
    after = [list(vars(m).items()) for m in model.modules()]
    assert [[(k, id(v)) for k, v in one] for one in before] == [[(k, id(v)) for k, v in one] for one in after]
    assert vars(model.drop)["forward"] is own
    assert content.changed() == {}
    assert torch.equal(rng, torch.random.get_rng_state())
    assert torch.equal(data[0], X)


def test_the_table_fits_and_is_plain():
    """describe() has no line over 80 columns and no control character, whatever the names are."""
    deep = nn.Linear(3, 3)
    for _ in range(12):
        holder = nn.Module()
        holder.add_module("a_module_with_a_very_long_name", deep)
        holder.forward = deep.forward
        holder = nn.Sequential(deep)
        deep = holder
    model = nn.ModuleDict({"bad\x1b[31m": deep})
    text = _inspect(model, [X], inference_function=lambda m, s: m["bad\x1b[31m"](s)).describe()
    assert max(map(len, text.splitlines())) <= 80
    assert "\x1b" not in text
    assert "Linear" in text
    assert "Never called: 1 modules: (the object)" in text


def test_json_is_plain():
    """to_json() holds plain values only and survives json."""
    found = _inspect(nn.Sequential(nn.Linear(3, 3)), [X]).to_json()
    assert json.loads(json.dumps(found)) == found
    assert [one["path"] for one in found["modules"]] == ["", "0"]
