"""A broken plugin costs only itself: another backend still wins, the results are the model's, and a sentence says why."""

from __future__ import annotations

import copy
import os
import sys

import pytest
import torch
from torch import nn

import tt_core as tt
from tt_core.testing.contract.portrait import Portrait, Process
from tt_core.testing.fakes import Bench, FakeBackend, FakeLayer, meddling, moving, raising, tripling


class Broken:
    """A plugin with a backend `broken` that is eager under another name; subclasses break a hook."""

    def __init__(self, **fields):
        self.fields = fields

    @tt.hookimpl
    def tt_backends(self):
        usual = {"name": "broken", "devices": {"*"}, "fidelity": tt.Fidelity.CLOSE, "keeps": frozenset(tt.Keeps)}
        return tt.Backend(**(usual | self.fields))

    @tt.hookimpl
    def tt_build(self, unit):
        return tt.Built(call=unit.forward, weights=tt.Weights.LIVE)


class NoDeclaration(Broken):
    @tt.hookimpl
    def tt_backends(self):
        raise OSError("libbroken.so: no such file")


class DeclaresNumbers(Broken):
    @tt.hookimpl
    def tt_backends(self):
        return [1, 2]


class ProbeRaises(Broken):
    @tt.hookimpl
    def tt_probe(self):
        raise RuntimeError("the driver is too old")


class ProbeAnswersText(Broken):
    @tt.hookimpl
    def tt_probe(self):
        return "yes"


class BuildAnswersNumber(Broken):
    @tt.hookimpl
    def tt_build(self):
        return 3


class BuiltIsNoCallable(Broken):
    @tt.hookimpl
    def tt_build(self):
        return tt.Built(call="fast", weights=tt.Weights.LIVE)


class RaisesWhenCalled(Broken):
    @tt.hookimpl
    def tt_build(self):
        return tt.Built(call=lambda *_: 1 / 0, weights=tt.Weights.LIVE)


class CoversNonsense(Broken):
    @tt.hookimpl
    def tt_build(self, unit):
        return tt.Built(call=unit.forward, weights=tt.Weights.LIVE, covers=tt.Shapes(leaves=((1,), (2, 3), (4,))))


class CloseRaises(Broken):
    @tt.hookimpl
    def tt_build(self, unit):
        def close():
            raise RuntimeError("already closed")

        return tt.Built(call=unit.forward, weights=tt.Weights.LIVE, close=close)


class Api99(Broken):
    def __init__(self):
        super().__init__(api=99)


class TakesEager(Broken):
    def __init__(self):
        super().__init__(name="eager")


class TakesFast(Broken):
    def __init__(self):
        super().__init__(name="fast")


class UnknownArgument(Broken):
    @tt.hookimpl
    def tt_build(self, unit, phase_of_the_moon):
        return tt.Built(call=unit.forward)


class Misspelt(Broken):
    @tt.hookimpl
    def tt_biuld(self, unit):
        return unit


class RaisesWhenTold(Broken):
    @tt.hookimpl
    def tt_trial_done(self):
        raise RuntimeError("no room in the log")


class Retrains(Broken):
    """Switches the unit to training and leaves a hook and an attribute behind."""

    @tt.hookimpl
    def tt_build(self, unit):
        for module in unit.module.modules():
            module.train()
            module.visited = True
        unit.module.register_forward_hook(lambda *_: None)
        return tt.Built(call=unit.forward, weights=tt.Weights.LIVE)


REFUSED = {
    NoDeclaration: "OSError: libbroken.so: no such file",
    DeclaresNumbers: "it answered int, not tt.Backend",
    ProbeRaises: "RuntimeError: the driver is too old",
    ProbeAnswersText: "answered str, not Ready or Unavailable",
    Api99: "speaks API 99, this core speaks 1 to 1",
    TakesEager: "did so before",
    TakesFast: "did so before",
    UnknownArgument: "phase_of_the_moon",
    Misspelt: "tt_biuld",
}
"""Plugins that do not take part, and what the refusal says."""
FAILED = {
    BuildAnswersNumber: "answered int, not Built",
    BuiltIsNoCallable: "not callable",
    RaisesWhenCalled: "division by zero",
    CoversNonsense: "",
}
"""Plugins whose trials fail, and what the failures say."""
HARMLESS = (CloseRaises, RaisesWhenTold, Retrains)
"""Plugins that lose the race, and do damage beside it."""
FAKES = {"raising": raising, "tripling": tripling, "meddling": meddling, "moving": moving}


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.setenv("TT_DISABLE_AUTOLOAD", "1")
    return Bench()


@pytest.fixture
def tuned(bench):
    """`tuned(plugin)`: a run with the plugin and a good backend; fails unless the good one won and nothing else changed."""

    def run(*plugins):
        model = nn.Sequential(FakeLayer(bench, 0.01, seed=1), FakeLayer(bench, 0.01, seed=2)).eval()
        data = [torch.randn(n, 4, generator=torch.Generator().manual_seed(n)) for n in (2, 3, 8)]
        with torch.no_grad():
            expected = [model(x) for x in data]
        portrait, process = Portrait(model), Process()
        settings = tt.Settings(plugins=(bench, FakeBackend(bench, "fast", pace=0.5), *plugins))
        result = tt.auto_tune(model, data, max_depth=0, settings=settings, progress=False)
        choices = [choice.candidate.name for choice in result.plan.choices]
        with torch.no_grad():
            found = [model(x) for x in data]
        tt.untune(model)

        assert choices == ["fast"]
        assert all(map(torch.equal, expected, found))
        assert not process.changed()
        assert not portrait.changed()
        return result

    return run


@pytest.mark.parametrize("kind", REFUSED, ids=lambda kind: kind.__name__)
def test_refused_with_its_sentence(tuned, kind):
    """It does not take part; the others do."""
    result = tuned(kind())

    assert any(REFUSED[kind] in refusal.reason for refusal in result.refused)
    assert not [trial for trial in result.trials if trial.candidate.name == "broken"]


@pytest.mark.parametrize("kind", FAILED, ids=lambda kind: kind.__name__)
def test_failed_with_its_sentence(tuned, kind):
    """Its trials fail, with a reason; the others' do not."""
    trials = tuned(kind()).trials
    failures = [trial.outcome for trial in trials if isinstance(trial.outcome, tt.Failure)]

    assert {failure.candidate.name for failure in failures} == {"broken"}
    assert all(failure.reason and FAILED[kind] in failure.reason for failure in failures)


@pytest.mark.parametrize("kind", HARMLESS, ids=lambda kind: kind.__name__)
def test_damage_is_put_back(tuned, kind):
    """What it does beside its trial is put back, or costs nothing."""
    assert [trial for trial in tuned(kind()).trials if trial.candidate.name == "broken"]


@pytest.mark.parametrize("name", FAKES)
def test_fakes(tuned, bench, name):
    """The broken fakes of the kit: a build that raises, wrong results, a meddler, a mover of weights."""
    made = FAKES[name](bench)
    if name in {"meddling", "moving"}:
        made._pace = 2.0  # slower than the good one, or it would win by right
    result = tuned(made)

    assert [trial for trial in result.trials if trial.candidate.name == made.name]


def test_a_timer_that_is_none(tuned):
    """What is no timer is refused, and the next one measures."""

    class Timeless:
        @tt.hookimpl
        def tt_timer(self):
            return "a quarter to three"

    assert any("timer" in refusal.reason for refusal in tuned(Timeless()).refused)


def test_all_at_once(tuned, bench):
    """Twenty broken plugins in one run cost no more than themselves."""
    named = [copy.copy(kind()) for kind in (*REFUSED, *FAILED, *HARMLESS)]
    for index, plugin in enumerate(named):
        plugin.__name__ = f"broken_{index}"
        if "name" not in plugin.fields:
            plugin.fields = {**plugin.fields, "name": f"broken_{index}"}

    tuned(*named, raising(bench), tripling(bench))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("raise RuntimeError('no kernels for this chip')", "RuntimeError: no kernels for this chip"),
        ("import a_module_that_is_not_there", "No module named 'a_module_that_is_not_there'"),
        ("def broken(:", "SyntaxError"),
    ],
)
def test_import_that_fails(tuned, monkeypatch, tmp_path, text, says):
    """A module that cannot be imported is refused with its error."""
    name = f"tt_broken_{os.urandom(4).hex()}"
    (tmp_path / f"{name}.py").write_text(text, "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("TT_PLUGINS", name)
    result = tuned()

    assert [says in refusal.reason for refusal in result.refused if refusal.name == name] == [True]
    assert name not in sys.modules
