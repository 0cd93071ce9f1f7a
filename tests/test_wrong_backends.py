"""The wrong-backend matrix: each way to be wrong is refused by the promise that it breaks, and by name."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn
from transformers import BertConfig, BertModel
from transformers.modeling_outputs import BaseModelOutput

import tt_core as tt
from tt_core.callkey import evidence, key_of, tensors_of
from tt_core.check import compare, covers_probe, stale_after_write
from tt_core.plugins import Plugins
from tt_core.samples import observe
from tt_core.samples.facts import watched
from tt_core.testing.results import assert_same_results
from tt_core.testing.wrong import WRONG, to_backend
from tt_core.truth import truth_of

PLACE = re.compile(r"^(output|input)[^,]*(\[[\d,]+\], row \d+)?, sample \d+$")


class Pair(nn.Module):
    """Two tensors of one batch in, a `ModelOutput` with tensors of several ranks out."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.norm = nn.Linear(12, 24), nn.Linear(24, 10), nn.LayerNorm(24)

    def forward(self, x, y):
        h = self.norm(torch.tanh(self.a(x + y)))
        return BaseModelOutput(last_hidden_state=self.b(h), hidden_states=(h, h.mean(-1)))


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 6, 3), nn.Linear(6, 9)

    def forward(self, x, y):
        return self.head(torch.relu(self.conv(x)).mean((-1, -2))) + y


def bert():
    config = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    return BertModel(BertConfig(vocab_size=60, **config), add_pooling_layer=False)


def pair_calls():
    return [tt.Call(torch.randn(n, 5, 12), torch.randn(n, 5, 12)) for n in (2, 3, 5)]


def image_calls():
    return [tt.Call(torch.randn(n, 3, 8, 8), y=torch.randn(n, 9)) for n in (2, 3, 5)]


def bert_calls():
    return [
        tt.Call(input_ids=torch.randint(0, 60, (n, 7)), attention_mask=torch.ones(n, 7, dtype=torch.long))
        for n in (2, 3, 5)
    ]


UNITS = {"pair": (Pair, pair_calls), "images": (Images, image_calls), "bert": (bert, bert_calls)}


@pytest.fixture(scope="module")
def trials():
    """Unit, calls with eager's observations, by name."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(11)
        return {name: trial(make().eval(), calls()) for name, (make, calls) in UNITS.items()}


def trial(module, given):
    unit = tt.Unit(path="unit", module=module, forward=module.forward)
    observed, facts = watched(unit, given, seed=0, like=None)
    samples = tuple(
        tt.Sample(call=call, expected=seen, truth=truth_of(unit, call, seen), index=index)
        for index, (call, seen) in enumerate(zip(given, observed, strict=True))
    )
    sizes = [tuple(tuple(t.shape) for t in tensors_of(unit.forward, call)) for call in given]
    key = key_of(unit.forward, given[0], training=False)
    return unit, tt.Calls(key=key, shapes=evidence(sizes), samples=samples, seen=len(given), facts=facts)


def built_by(name, unit, calls):
    plugins = Plugins.load(extra=[to_backend(WRONG[name])], environ={"TT_DISABLE_AUTOLOAD": "1"})
    built = plugins.build(f"wrong_{name}", unit, calls, torch.device("cpu"), {}, None, tt.Limits(seconds=60.0))
    assert isinstance(built, tt.Built), built
    return built


def values(unit, calls, built):
    given = [sample.call for sample in calls.samples]
    actual = observe(built.call, unit, given, seed=0)
    expected, truth = zip(*((sample.expected, sample.truth) for sample in calls.samples), strict=True)
    return compare(calls.facts, expected, actual, truth, tt.Tolerance())


@pytest.mark.parametrize("unit_name", UNITS)
@pytest.mark.parametrize("name", [name for name, wrong in WRONG.items() if wrong.caught_by == "values"])
def test_wrong_values_are_refused(trials, unit_name, name):
    """The comparison refuses it, in one sentence, at a place that names leaf, row and sample."""
    unit, calls = trials[unit_name]
    assert all(sample.truth is not None for sample in calls.samples)

    verdict = values(unit, calls, built_by(name, unit, calls))

    assert not verdict.ok
    assert verdict.reason
    assert PLACE.match(verdict.where), verdict.where


@pytest.mark.parametrize("unit_name", UNITS)
def test_eager_is_let_through(trials, unit_name):
    """The same three promises let a right backend through: the matrix does not pass by refusing everything."""
    unit, calls = trials[unit_name]
    built = tt.Built(call=unit.forward, weights=tt.Weights.LIVE, covers=calls.shapes)

    assert values(unit, calls, built).ok
    assert stale_after_write(unit, built, calls.samples[0].call).ok
    assert stale_after_write(unit, built, calls.samples[0].call).compared > 0
    assert covers_probe(calls, built).ok


@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("row", r"output\.[a-z_]+(\[\d\])?\[2(,\d+)*\], row 2, sample 1"),
        ("nan_last", r"output\.[a-z_]+(\[\d\])?\[4(,\d+)*\], row 4, sample 2"),
        ("overwritten", r"output\.[a-z_]+(\[\d\])?\[.*\], row \d, sample [01]"),
        ("container", r"output, sample 0"),
        ("padded", r"output\.last_hidden_state, sample 0"),
        ("dtype", r"output\.last_hidden_state, sample 0"),
        ("input_written", r"input.*, sample 0"),
    ],
)
def test_place_of_the_wrong(trials, name, where):
    """The place is where the backend was broken: that row, that sample."""
    unit, calls = trials["pair"]

    assert re.fullmatch(where, values(unit, calls, built_by(name, unit, calls)).where)


@pytest.mark.parametrize("unit_name", UNITS)
def test_stale_weights_are_refused(trials, unit_name):
    """Baked weights behind a claim of LIVE pass the comparison and fail the probe."""
    unit, calls = trials[unit_name]
    built = built_by("stale", unit, calls)

    assert values(unit, calls, built).ok
    verdict = stale_after_write(unit, built, calls.samples[-1].call)
    assert not verdict.ok
    assert PLACE.match(verdict.where)


@pytest.mark.parametrize("unit_name", UNITS)
def test_unequal_axes_are_refused(trials, unit_name):
    """Axes claimed to be free that were always equal pass the comparison and fail the probe."""
    unit, calls = trials[unit_name]
    built = built_by("unequal_axes", unit, calls)

    assert values(unit, calls, built).ok
    verdict = covers_probe(calls, built)
    assert not verdict.ok
    assert verdict.where.endswith("axis 0")


def test_unequal_axes_would_be_wrong(trials):
    """What the claim lets in is answered with other sizes than eager's, without an error."""
    unit, calls = trials["pair"]
    built = built_by("unequal_axes", unit, calls)
    x, y = torch.randn(3, 5, 12), torch.randn(1, 5, 12)

    assert unit.forward(x, y).last_hidden_state.shape[0] == 3
    assert built.call(x, y).last_hidden_state.shape[0] == 1


def test_every_way_says_what_it_is():
    """Names serve as backend names; the sentences and the promises are there."""
    assert len(WRONG) >= 13
    for name, wrong in WRONG.items():
        assert wrong.name == name
        assert wrong.says
        assert wrong.caught_by in {"values", "weights", "covers"}
    assert {wrong.caught_by for wrong in WRONG.values()} == {"values", "weights", "covers"}


def test_stale_needs_a_module():
    """A plain function has no weights that could be stale, and is not quietly left right."""
    with pytest.raises(TypeError, match="no method of a module"):
        WRONG["stale"].breaks(torch.relu)


def test_nan_without_recorded_calls():
    """Without recorded calls every third result has the NaN."""
    broken = WRONG["nan_last"].breaks(torch.relu)

    assert [bool(broken(torch.ones(3)).isnan().any()) for _ in range(4)] == [False, False, True, False]


def test_assert_same_results():
    """The assertion for tests passes rounding and fails anything else with the check's sentence."""
    want = {"y": torch.linspace(-1, 1, 100), "n": 3}

    assert_same_results(want, {"y": want["y"] * (1 + 1e-6), "n": 3})
    assert_same_results(want, {"y": want["y"] * 1.001, "n": 3}, tolerance=tt.Tolerance(factor=200))
    assert_same_results(want, {"y": want["y"] * 1.001, "n": 3}, noise=2e-4)
    with pytest.raises(AssertionError, match=r"relative L2.*worst at output\['y'\]\[\d+\]"):
        assert_same_results(want, {"y": want["y"] * 1.001, "n": 3})
    with pytest.raises(AssertionError, match="4 where eager gives 3"):
        assert_same_results(want, {"y": want["y"], "n": 4})
    with pytest.raises(AssertionError, match="could be compared"):
        assert_same_results([object()], [object()])
