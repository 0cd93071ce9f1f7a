"""Call keys as JSON: what is written is read back equal, and what has no form is refused when it is written."""

from __future__ import annotations

import collections
import dataclasses
import json
import subprocess
import sys

import pytest
import torch
from form_values import VALUES, X, keyed, made, planned, through

from tt_core import forms
from tt_core.errors import StoreError


@pytest.mark.parametrize("name", VALUES)
def test_a_key_comes_back_equal(name):
    """Equal, of the same hash and print, and a file may sort it."""
    key = made(VALUES[name])
    again = forms.read_key(through(forms.key_form(key)))
    assert again == key
    assert hash(again) == hash(key)
    assert forms.key_print(again) == forms.key_print(key)


def test_model_outputs_come_back():
    """Classes that are registered with torch's pytree keep what they hold beside their tensors."""
    outputs = pytest.importorskip("transformers.modeling_outputs")
    key = made(outputs.BaseModelOutput(last_hidden_state=X, hidden_states=(X, X)))
    again = forms.read_key(through(forms.key_form(key)))
    assert again == key
    assert type(again.tree.unflatten([1, 2, 3, 4])["value"]) is outputs.BaseModelOutput


def test_what_surrounds_a_call_comes_back():
    """Autocast in its order, and training."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        key = made(X, training=True)
    again = forms.read_key(through(forms.key_form(key)))
    assert again == key
    assert again.ambient.autocast == (("cpu", torch.bfloat16),)


def test_different_keys_have_different_prints():
    """No two of the values above share a print."""
    prints = [forms.key_print(made(value)) for value in VALUES.values()]
    assert len(set(prints)) == len(prints)


def test_a_print_is_the_same_in_another_process():
    """Nothing of the process is in it."""
    code = (
        "import torch, tt_core as tt; from tt_core.callkey import key_of; from tt_core import forms;"
        "print(forms.key_print(key_of(lambda value, more=1: value, tt.Call({'b': torch.zeros(2, 3), 'a': -0.0}), training=False)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == forms.key_print(made({"b": X, "a": -0.0}))


def test_a_long_text_is_hashed():
    """It is not in the form; a plan with it still matches, a call with it cannot be made."""
    text = "secret " * 20
    key = made([text, slice(text.encode())])
    form = forms.key_form(key)
    assert "secret" not in json.dumps(form)
    with pytest.raises(StoreError, match=f"a text constant of {len(text)} characters is not kept"):
        forms.read_key(form)
    plan = planned(key)
    assert "secret" not in json.dumps(forms.plan_form(plan))
    again = forms.read_plan(through(forms.plan_form(plan)))
    assert forms.key_print(again.choices[0].key) == forms.key_print(key)
    assert forms.plan_form(again) == forms.plan_form(plan)


def test_an_inner_class_has_no_name():
    """It is refused when it is written, not when it is read."""

    @dataclasses.dataclass
    class Inner:
        x: int

    with pytest.raises(StoreError, match="define it in a module"):
        forms.key_form(made(Inner(1)))


def test_a_default_dict_has_no_form():
    """Its factory is code."""
    with pytest.raises(StoreError, match="defaultdict"):
        forms.key_form(made(collections.defaultdict(list, a=1)))


def test_deep_arguments_have_no_form():
    """And a deep form is refused without running out of stack."""
    deep, form = X, "x"
    for _ in range(100):
        deep = [deep]
    for _ in range(900):
        form = {"list": [form]}
    with pytest.raises(StoreError, match="nested more than 64 deep"):
        forms.key_form(made(deep))
    with pytest.raises(StoreError, match="nested more than 64 deep"):
        forms.read_key(keyed(form))
