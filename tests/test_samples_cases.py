"""The 42 behaviour cases through the rooms before any backend: read, inspect, cut, record. Nothing is touched."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

from tt_core.cuts import cuts
from tt_core.samples import read, record, refuse
from tt_core.state import identical, take
from tt_core.survey import inspect
from tt_core.trees import tensors

FILE = Path(__file__).parent / "cases" / "public_cases.py"
SPEC = importlib.util.spec_from_file_location("tt_samples_public_cases", FILE)
lib = importlib.util.module_from_spec(SPEC)
sys.modules[SPEC.name] = lib  # dataclasses look their module up
SPEC.loader.exec_module(lib)

FACTS = {
    "inputs_changed_in_place": {"writes_inputs"},
    "kv_cache_in_buffers": {"writes_state"},
    "batchnorm_left_in_train_mode": {"writes_state"},
    "hooks_that_change_values": {"hooks_inside"},
    "tied_embedding_and_head": {"tied"},
    "returns_view_of_input": {"aliases"},
    "custom_autograd_function": {"custom_autograd"},
    "complex_rotary_embedding": {"tensor_kinds"},
    "sparse_coo_input": {"tensor_kinds"},
    "dataclass_output": {"non_tensors"},
    "nested_tuple_list_dict": {"non_tensors"},
    "zero_dim_and_python_numbers": {"non_tensors"},
    "batch_one_after_batch_four": {"non_tensors"},
}
"""What eager runs of the whole model show; all other cases show nothing special."""
NAMES = {name for names in FACTS.values() for name in names} | {"random"}


def _run(model, data):
    feed = read(data, model)
    refuse(model)
    inspection = inspect(model, feed, lambda: 0.0)
    units = {unit.path: unit for unit in inspection.units()}
    planned = cuts(inspection, 0, 2)
    return planned, [record(model, feed, [units[path] for path in cut.units], byte_cap=1 << 28) for cut in planned]


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize("case", lib.CASES, ids=lambda case: case.name)
def test_a_case_is_recorded_and_untouched(case):
    """Every call key of every unit is tunable, its facts are right, and model, RNG and samples are as before."""
    (model, data), (_, twin) = case.make(), case.make()
    before, rng, state = [list(vars(m).items()) for m in model.modules()], torch.random.get_rng_state(), take(model)
    planned, recorded = _run(model, data)
    assert planned[0].units == ("",)
    everything = [calls for each in recorded for group in each.values() for calls in group]
    assert everything
    assert not [calls.untunable for calls in everything if calls.untunable]
    assert all(calls.samples and calls.shapes.leaves for calls in everything)
    whole = [calls.facts for calls in recorded[0][""]]
    assert {name for name in NAMES for facts in whole if getattr(facts, name)} == FACTS.get(case.name, set())
    assert sum(calls.seen for calls in recorded[0][""]) == len(data)
    after = [list(vars(m).items()) for m in model.modules()]
    assert [[(k, id(v)) for k, v in one] for one in before] == [[(k, id(v)) for k, v in one] for one in after]
    assert state.changed() == {}
    assert torch.equal(rng, torch.random.get_rng_state())
    assert all(identical(a, b) for a, b in zip(tensors(list(data)), tensors(list(twin)), strict=True))
