"""All cases through the core alone: eager under another name is recorded, checked, raced, dispatched and taken off again."""

from __future__ import annotations

import importlib.util
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import pytest
import torch

import tt_core as tt


def _glue() -> ModuleType:
    """`glue.py` beside the cases, loaded once for all tests."""
    path = Path(__file__).with_name("glue.py")
    if "tt_cases_glue" not in sys.modules:
        spec = importlib.util.spec_from_file_location("tt_cases_glue", path)
        sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules["tt_cases_glue"]


glue = _glue()
every_case = pytest.mark.parametrize("name", glue.CASES)
pytestmark = [
    pytest.mark.filterwarnings("ignore::tt_core.errors.FallbackWarning"),  # some checks leave what was tuned
    pytest.mark.filterwarnings("ignore:Sparse invariant checks"),  # torch says it once a process
]


def tuned(units=0):
    """A tuner for the harness: `Fast` at a depth."""
    return lambda obj, dataset: tt.tune(obj, dataset, units=units, strategy=glue.FAST, settings=glue.quick())


def test_there_are_all_cases():
    """The 42 public cases, and harness and cases agree with themselves: an untouched twin passes each."""
    assert len(glue.CASES) == 42
    for case in glue.CASES.values():
        assert glue.harness.evaluate(case, lambda obj, _: obj, glue.lib) == [], case.name


@pytest.mark.parametrize("units", [0, 1])
@every_case
def test_a_tuned_case_behaves_as_before(name, units):
    """Each case passes the harness with every unit tuned at depth 0 and 1; no call of the recorded kinds falls."""
    judged = glue.judge(glue.CASES[name], tuned(units))
    assert judged.fails == []
    assert judged.served, judged.why
    assert judged.falls == {}
    assert judged.eager == judged.hits  # eager under another name: what tells real backends apart sees it


@every_case
def test_an_untuned_case_is_as_before(name):
    """After `untune` every module holds the very same attributes under the same names, and the case passes."""

    def there_and_back(obj, dataset):
        before = glue.held(obj)
        result = tuned()(obj, dataset)
        assert result.changed
        assert tt.untune(obj) == ("",)
        assert glue.held(obj) == before
        return result

    judged = glue.judge(glue.CASES[name], there_and_back)
    assert judged.fails == []
    assert judged.stats == {}


@every_case
def test_a_case_passes_when_four_threads_take_turns(name):
    """The harness's calls come from four threads in turn: nothing in a dispatcher belongs to the thread that tuned."""
    with ThreadPoolExecutor(4) as pool:
        barrier = threading.Barrier(4)
        assert len({pool.submit(_ident, barrier) for _ in range(4)}) == 4
        judged = glue.judge(glue.CASES[name], tuned(1), run=glue.in_turns(pool))
    assert judged.fails == []
    assert judged.served, judged.why


@pytest.mark.parametrize("name", sorted(set(glue.CASES) - glue.UNSHARED))
def test_a_case_passes_when_four_threads_call_at_once(name):
    """Four threads run the whole dataset at once, each with inputs of its own: all right, every call a hit."""
    case = glue.CASES[name]
    reference, data = case.make()
    want = glue.harness.run(reference, data)
    obj, dataset = case.make()
    tuned()(obj, dataset)
    tt.stats(obj, hits=True)
    answers = glue.at_once(obj, [case.make()[1] for _ in range(4)], rounds=3)
    for got in answers:
        glue.lib.close(want, got, case.rtol, case.atol)
    stats = tt.stats(obj)[""]
    assert (stats.hits, stats.falls) == (4 * 3 * len(data), {})


def _ident(barrier):
    barrier.wait()
    return threading.get_ident()


class Baked(glue.Fast):
    """Eager that claims to have its weights baked in: any write to them makes it stale."""

    @tt.hookimpl
    def tt_backends(self):
        return tt.Backend(
            name="baked",
            devices={"*"},
            fidelity=tt.Fidelity.EXACT,
            weights=tt.Weights.VALUES,
            keeps=frozenset(tt.Keeps),
        )

    @tt.hookimpl
    def tt_build(self, unit):
        return tt.Built(call=unit.forward, weights=tt.Weights.VALUES)


@every_case
def test_a_case_passes_after_refresh(name):
    """Written weights make a unit stale; `refresh` builds it again, and the case passes as if nothing had been."""
    settings = tt.Settings(plugins=(Baked(),), unit_race_s=0.01, pass_race_s=0.05)
    refreshed = []

    def written_and_refreshed(obj, dataset):
        result = tt.tune(obj, dataset, strategy=tt.OneBackendStrategy("baked"), settings=settings)
        with torch.no_grad():
            for parameter in obj.parameters():
                parameter.mul_(1.0)  # the same values, but written
        refreshed.extend(tt.refresh(obj, settings=settings))
        return result

    judged = glue.judge(glue.CASES[name], written_and_refreshed)
    assert judged.fails == []
    module, _ = glue.CASES[name].make()
    assert refreshed == ([""] if list(module.parameters()) else [])
