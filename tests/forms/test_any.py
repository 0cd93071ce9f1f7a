"""Anything at all, drawn: trees come back, and bent plans are read or refused."""

from __future__ import annotations

import collections

from form_values import Item, Kind, Pair, X, changed, made, planned, through
from hypothesis import given, settings
from hypothesis import strategies as st

import tt_core as tt
from tt_core import forms
from tt_core.errors import StoreError

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.complex_numbers(),
    st.text(max_size=20),
    st.binary(max_size=20),
)
TREES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=5), inner, max_size=3),
        st.dictionaries(st.text(max_size=5), inner, max_size=3).map(collections.OrderedDict),
        st.tuples(inner, inner).map(lambda pair: Pair(*pair)),
        st.tuples(inner, inner).map(lambda pair: Item(*pair)),
    ),
    max_leaves=8,
)


@given(TREES)
@settings(max_examples=200, deadline=None)
def test_any_tree_comes_back(value):
    """Whatever the nesting."""
    key = made(value)
    again = forms.read_key(through(forms.key_form(key)))
    assert again == key
    assert forms.key_print(again) == forms.key_print(key)


JSONS = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=8)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)),
    max_leaves=6,
)
BASE = forms.plan_form(planned(made({"a": [X, Pair(1, 2.5), Item(Kind.ONE)], "b": slice(1, None, "x")})))


def places(form, path=()):
    yield path
    steps = form.items() if isinstance(form, dict) else enumerate(form) if isinstance(form, list) else ()
    for step, value in steps:
        yield from places(value, (*path, step))


@given(st.sampled_from([path for path in places(BASE) if path]), JSONS)
@settings(max_examples=600, deadline=None)
def test_a_bent_plan_is_read_or_refused(path, value):
    """Any value at any place of a plan: it is read, or a StoreError says why not; no other exception."""
    try:
        plan = forms.read_plan(changed(BASE, path, value))
    except StoreError:
        return
    assert isinstance(plan, tt.Plan)
    forms.plan_form(plan)
