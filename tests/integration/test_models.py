"""Real models on real backends: whatever is chosen, the results are kept and the object stays the user's."""

from __future__ import annotations

import copy
import os

import numpy as np
import pytest
import torch
from _zoo import ZOO, made

import tt_core as tt

os.environ.setdefault("HF_HUB_OFFLINE", "1")
SHORT = tt.Settings(unit_race_s=0.3, pass_race_s=2.0)


def results(entry, obj, samples) -> list:
    run = entry.run or (lambda o, s: o(**s) if isinstance(s, dict) else o(s))
    with torch.no_grad():
        return [run(obj, sample) for sample in copy.deepcopy(samples)]


def leaves(tree) -> list[torch.Tensor]:
    found = tt.flatten(tree)[0]
    return [torch.as_tensor(leaf) for leaf in found if isinstance(leaf, torch.Tensor | np.ndarray)]


def attributes(obj) -> dict:
    """Every module's attributes, as objects."""
    modules = obj.modules() if isinstance(obj, torch.nn.Module) else [obj.features, *obj.heads]
    return {id(m): {name: id(value) for name, value in vars(m).items()} for m in modules}


def check(entry, **options) -> tt.AutoTuneResult:
    obj, samples = made(entry, small=True)
    expected, before = results(entry, obj, samples), attributes(obj)
    run = tt.auto_tune if "max_depth" in options else tt.tune
    result = run(obj, samples, inference_function=entry.run, settings=SHORT, **options)
    assert result.model is obj
    actual = results(entry, obj, samples)
    assert [type(one) for one in actual] == [type(one) for one in expected]
    for want, got in zip(leaves(expected), leaves(actual), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-4)
    if result.changed:
        stats = tt.stats(obj, hits=True)
        results(entry, obj, samples)
        assert all(unit.falls == {} for unit in tt.stats(obj).values())
        assert all(unit.hits for unit in tt.stats(obj).values())
        chosen = [c for c in result.plan.choices if c.candidate.name != "eager"]
        assert set(stats) == {path for c in chosen for path in c.members}  # twins share one choice
    tt.untune(obj)
    assert attributes(obj) == before
    return result


@pytest.mark.long
@pytest.mark.parametrize("entry", ZOO, ids=lambda e: e.name)
def test_auto_tune_keeps_results(entry):
    """`auto_tune` with every installed backend at depths 0 to 1."""
    result = check(entry, max_depth=1)
    assert len(result.depths) >= 1
    assert str(result)
    assert all(len(line) <= 80 for line in str(result).splitlines())


@pytest.mark.long
@pytest.mark.parametrize("backend", ["inductor", "openvino"])
@pytest.mark.parametrize("entry", ZOO, ids=lambda e: e.name)
def test_each_backend_by_name(entry, backend):
    """Each backend forced on the deepest cut that it can take: right, or refused with a sentence."""
    result = check(entry, units=1, strategy=tt.OneBackendStrategy(backend))
    for trial in result.trials:
        assert not trial.failed or trial.outcome.reason


@pytest.mark.real
def test_a_real_encoder_on_openvino():
    """One real model on one real backend that builds in seconds: tuned, right, and undone."""
    result = check(ZOO[1], units=0, strategy=tt.OneBackendStrategy("openvino"))
    assert result.changed, result.headline
