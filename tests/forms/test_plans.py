"""Plans as JSON and as a text: what is written is read back; what is malformed is a StoreError and nothing else."""

from __future__ import annotations

import json

import pytest
from form_values import X, changed, made, planned, through

import tt_core as tt
from tt_core import forms
from tt_core.errors import StoreError


def test_a_plan_comes_back():
    """Every field of it."""
    key = made(X)
    plan = planned(key)
    again = forms.read_plan(through(forms.plan_form(plan)))
    assert (again.cut, again.environment, again.weights_print) == (plan.cut, plan.environment, plan.weights_print)
    (one,), (other,) = again.choices, plan.choices
    assert [one.unit, one.key, one.candidate, one.covers, one.members, one.why] == [
        other.unit,
        other.key,
        other.candidate,
        other.covers,
        other.members,
        other.why,
    ]


def test_an_eager_plan_comes_back():
    """A plan of nothing."""
    plan = tt.Plan(cut=tt.Cut(depths=(), units=()), choices=())
    again = forms.read_plan(through(forms.plan_form(plan)))
    assert (again.cut, again.choices) == (plan.cut, ())


BENT = [
    ((["kind"], "pickle"), "this is no plan"),
    ((["kind"], ...), "this is no plan"),
    ((["format"], 2), "the plan has format 2, this tt-core reads 1: install a newer tt-core"),
    ((["format"], 0), "out of range"),
    ((["format"], True), "not a whole number"),
    ((["format"], "1"), "not a whole number"),
    ((["more"], 1), "unknown field 'more'"),
    ((["cut"], None), "not a table"),
    ((["cut", "units"], "head"), "not a list"),
    ((["cut", "units"], ["a", "a"]), "twice"),
    ((["cut", "units"], ["head"]), "no unit of its cut"),
    ((["cut", "units", 0], "x" * 2000), "at most 1024"),
    ((["cut", "depths"], [-1]), "out of range"),
    ((["choices"], {}), "not a list"),
    ((["choices", 0, "unit"], ...), "has no field 'unit'"),
    ((["choices", 0, "unit"], 3), "not a text"),
    ((["choices", 0, "members"], ["gone"]), "no unit of its cut"),
    ((["choices", 0, "candidate"], []), "has no step"),
    ((["choices", 0, "candidate", 0, "backend"], "os.system"), "no name of a backend"),
    ((["choices", 0, "candidate", 0, "options"], []), "no table"),
    ((["choices", 0, "candidate", 0, "options", "fast"], {}), "not a text"),
    ((["choices", 0, "candidate", 0, "options", "sizes"], [[1]]), "not a text"),
    ((["choices", 0, "covers", 0], [2]), "do not fit its call key"),
    ((["choices", 0, "covers", 0, 0], "2"), "not a whole number"),
    ((["choices", 0, "covers", 0, 0], {"lo": 3, "hi": 2, "symbol": "s"}), "out of range"),
    ((["choices", 0, "covers", 0, 0], 2**63), "out of range"),
    ((["environment"], []), "environment"),
    ((["environment", "torch"], 2.13), "not a text"),
    ((["weights_print"], None), "not a text"),
]


@pytest.mark.parametrize(("change", "match"), BENT)
def test_a_malformed_plan_is_refused(change, match):
    """With a sentence that says what is wrong."""
    with pytest.raises(StoreError, match=match):
        forms.read_plan(changed(forms.plan_form(planned(made(X))), *change))


@pytest.mark.parametrize(
    "text", ["", "{", b"\xff", "[" * 100_000, "9" * 5000, "NaN", "3", "[]", '"x"', "null", None, 3, []]
)
def test_a_text_that_is_no_plan(text):
    """Whatever it is."""
    with pytest.raises(StoreError, match="no plan"):
        tt.Plan.from_json(text)


def test_a_plan_is_a_text():
    """As dict, text or bytes; the text is readable and names nothing of this machine."""
    plan = planned(made(X))
    text = json.dumps(plan.to_json(), indent=2)
    assert '"call": "value: f32[2, 2], more: 1"' in text
    for form in (plan.to_json(), text, text.encode()):
        assert tt.Plan.from_json(form).to_json() == plan.to_json()
    assert not plan.eager
