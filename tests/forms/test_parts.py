"""Options, facts and shapes as JSON."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from form_values import NAN, X, made, through

import tt_core as tt
from tt_core import forms
from tt_core.callkey import evidence, tensors_of
from tt_core.errors import StoreError


def test_an_option_without_form():
    """An option that JSON cannot hold is refused when it is written."""
    for value in (Path(), NAN, (1, (2,))):
        with pytest.raises(StoreError, match="option how="):
            forms.candidate_form(tt.Candidate.of("jit", how=value))


def test_facts_come_back():
    """Those that are unusual are written."""
    assert forms.facts_form(tt.Facts()) == {}
    facts = tt.Facts(writes_inputs=True, writes_state=("a", "b"), tensor_kinds=frozenset({"sparse", "complex"}))
    assert forms.read_facts(through(forms.facts_form(facts))) == facts
    for wrong in ({"random": 1}, {"more": True}, {"writes_state": "a"}, [], {"tensor_kinds": [1]}):
        with pytest.raises(StoreError):
            forms.read_facts(wrong)


def test_shapes_come_back():
    """Ranges keep their symbols; None covers everything."""
    key = made([X, X])
    shapes = evidence(
        [tuple(tuple(t.shape) for t in tensors_of(lambda v: v, tt.Call([torch.zeros(n, 3), X]))) for n in (2, 5)]
    )
    assert forms.read_shapes(through(forms.shapes_form(shapes))) == shapes
    assert len(shapes.leaves) == len(key.tensors)
    assert forms.read_shapes(forms.shapes_form(None)) is None
