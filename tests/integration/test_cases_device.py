"""The cases moved to an accelerator, where there is one: right with a device graph, Inductor, and one over the other."""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import tt_core as tt

ROOT = Path(__file__).resolve().parents[2]
KIND = next((kind for kind in ("cuda", "xpu") if getattr(torch, kind).is_available()), None)
pytestmark = [
    pytest.mark.skipif(KIND is None, reason="no accelerator is here"),
    pytest.mark.filterwarnings("ignore::UserWarning"),  # torch's words about precision, sparse tensors and compilers
]
GRAPH = tt.Candidate.of(f"{KIND}_graph")
CHAIN = tt.Candidate.of("inductor").over(f"{KIND}_graph")
SETTINGS = tt.Settings(unit_race_s=0.1, pass_race_s=0.1)


def _glue() -> ModuleType:
    """`tests/cases/glue.py`, loaded once for all tests."""
    if "tt_cases_glue" not in sys.modules:
        spec = importlib.util.spec_from_file_location("tt_cases_glue", ROOT / "tests" / "cases" / "glue.py")
        sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules["tt_cases_glue"]


glue = _glue()


@pytest.fixture
def device() -> torch.device:
    return torch.device(KIND, 0)


def moved(tree: Any, device: torch.device) -> Any:
    """The tree with its tensors on the device, shared ones still shared."""
    leaves, spec = tt.flatten(tree)
    memo: dict[int, torch.Tensor] = {}
    there = [memo.setdefault(id(x), x.to(device)) if isinstance(x, torch.Tensor) else x for x in leaves]
    return tt.unflatten(spec, there)


def on_device(case: Any, device: torch.device) -> Any:
    """The case with its module, its samples and what its check makes on the device."""

    def make() -> Any:
        module, data = case.make()
        return module.to(device), tt.replica(moved(data, device))

    def check(*answers: Any) -> None:
        with device:
            case.check(*answers)

    return dataclasses.replace(case, make=make, check=None if case.check is None else check)


def judged(name: str, device: torch.device, strategy: tt.Strategy | None) -> Any:
    """What became of a case on the device; skips where the case itself does not run there."""
    case = on_device(glue.CASES[name], device)
    try:
        alone = glue.harness.evaluate(case, lambda module, _: module, glue.lib)
    except (RuntimeError, ValueError, TypeError) as error:  # its lengths or its attributes belong on the CPU
        alone = [str(error).splitlines()[0]]
    if alone:
        pytest.skip(f"the case itself does not run there: {alone[0]}")
    return glue.judge(case, lambda obj, data: tt.tune(obj, data, device=device, strategy=strategy, settings=SETTINGS))


def told(found: Any, record: Any) -> None:
    """The outcome for the log of the run."""
    record("outcome", "served" if found.served else found.why[:300])
    record("hits", found.hits)
    record("falls", str(found.falls))


@pytest.mark.real
@pytest.mark.parametrize("name", glue.CASES)
def test_a_case_with_graphs(name, device, record_property):
    """Right, whether or not a graph could be captured, and every call that no graph served is counted."""
    found = judged(name, device, tt.OneBackendStrategy(GRAPH))
    told(found, record_property)
    assert found.fails == []
    assert found.counted
    assert found.unsaid == 0, found.why


@pytest.mark.long
@pytest.mark.parametrize("candidate", [tt.Candidate.of("inductor"), CHAIN], ids=str)
@pytest.mark.parametrize("name", glue.CASES)
def test_a_case_with_inductor(name, candidate, device, record_property):
    """Compiled, and compiled under a graph."""
    found = judged(name, device, tt.OneBackendStrategy(candidate))
    told(found, record_property)
    assert found.fails == []
    assert found.counted


@pytest.mark.long
@pytest.mark.parametrize("name", glue.CASES)
def test_a_case_by_default(name, device, record_property):
    """Right with whatever the default strategy installs there."""
    found = judged(name, device, None)
    told(found, record_property)
    assert found.fails == []
    assert found.counted
