"""Values as JSON: what is written is read back equal; what is malformed is a StoreError and nothing else."""

from __future__ import annotations

import collections
import dataclasses
import json
import subprocess
import sys
from enum import Enum, IntEnum
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tt_core as tt
from tt_core import forms
from tt_core.callkey import evidence, key_of, tensors_of
from tt_core.errors import StoreError


class Pair(NamedTuple):
    left: object
    right: object


@dataclasses.dataclass
class Item:
    x: object
    y: object = None


class Kind(Enum):
    ONE = "one"
    TWO = "two"


class Level(IntEnum):
    LOW = 1


class Bag(dict):
    pass


class Box(collections.UserDict):
    pass


NAN = float("nan")
X = torch.zeros(2, 3)
VALUES = {
    "tensor": X,
    "half on meta": torch.zeros(1, dtype=torch.float16, device="meta"),
    "scalar": torch.tensor(1),
    "parameter": torch.nn.Parameter(X),
    "sparse": X.to_sparse(),
    "none": None,
    "true": True,
    "one": 1,
    "one as a float": 1.0,
    "minus zero": -0.0,
    "nan": NAN,
    "infinite": float("-inf"),
    "tiny": 5e-324,
    "long": -(3**400),
    "at the word": 2**53,
    "complex": complex(-0.0, NAN),
    "text": "übung \n \x00",
    "bytes": b"\x00\xff",
    "dtype": torch.bfloat16,
    "device": torch.device("cuda:1"),
    "layout": torch.sparse_csr,
    "size": torch.Size([2, 3]),
    "slice": slice(None, 3, slice(1, 2.5)),
    "range": range(0, 10, 3),
    "enum": Kind.TWO,
    "int enum": Level.LOW,
    "numpy": np.float32(1.5),
    "numpy nan": np.float64("nan"),
    "numpy date": np.datetime64("2024-01-01", "s"),
    "tuple": (1, (X, [2, ()])),
    "list": [X, [], [None]],
    "dict": {"b": X, "a": 1, 3: 2, True: {}, None: 4, 2.5: NAN},
    "ordered": collections.OrderedDict(b=1, a=X),
    "deque": collections.deque([X, 1], maxlen=5),
    "endless deque": collections.deque([X]),
    "named": Pair(X, Pair(1, None)),
    "struct": torch.return_types.max((X, X)),
    "dataclass": Item(X, Item(1)),
    "dict class": Bag(b=X, a=1),
    "user dict": Box(b=X, a=1),
}


def made(value, *, training=False):
    key = key_of(lambda value, more=1: value, tt.Call(value), training=training)
    assert isinstance(key, tt.CallKey)
    return key


def through(form):
    """As a file that sorts its tables gives it back."""
    return json.loads(json.dumps(form, sort_keys=True, allow_nan=False))


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


def keyed(value):
    return {"arguments": {"dict": [["x", value]]}, "training": False, "autocast": []}


def named(kind):
    return f"{__name__}:{kind.__qualname__}"


WRONG = {
    "a number": 3,
    "no table": [],
    "no arguments": {"training": False, "autocast": []},
    "something more": {**keyed(1), "more": 1},
    "training": {**keyed(1), "training": 0},
    "autocast": {**keyed(1), "autocast": [["cpu", "float99"]]},
    "autocast of one": {**keyed(1), "autocast": [["cpu"]]},
    "no table of parameters": {**keyed(1), "arguments": {"list": [1]}},
    "a bare parameter": {**keyed(1), "arguments": 1},
    "a parameter that is no text": {**keyed(1), "arguments": {"dict": [[1, 1]]}},
    "a parameter twice": {**keyed(1), "arguments": {"dict": [["x", 1], ["x", 2]]}},
    "an entry of three": {**keyed(1), "arguments": {"dict": [["x", 1, 2]]}},
    "a bare float": keyed(1.5),
    "a huge number": keyed(10**30),
    "a short long": keyed({"int": "0x3"}),
    "no hexadecimal": keyed({"int": "12"}),
    "float text": keyed({"float": "1.5"}),
    "float too large": keyed({"float": "0x1.0000000000000p+9999"}),
    "float number": keyed({"float": 1}),
    "complex of one": keyed({"complex": ["nan"]}),
    "long text": keyed("x" * 65),
    "half a character": keyed("\ud800"),
    "odd bytes": keyed({"bytes": "abc"}),
    "no bytes": keyed({"bytes": "zz"}),
    "hash": keyed({"str": {"blake2b": "xy", "length": 70}}),
    "hash without length": keyed({"str": {"blake2b": "ab"}}),
    "dtype": keyed({"dtype": "nn"}),
    "layout": keyed({"layout": "float32"}),
    "device": keyed({"device": "toaster"}),
    "device by another name": keyed({"device": "cuda:01"}),
    "size": keyed({"size": ["2"]}),
    "slice of two": keyed({"slice": [1, 2]}),
    "slices for ever": keyed(
        {"slice": [{"slice": [{"slice": [{"slice": [{"slice": [1, 1, 1]}, 1, 1]}, 1, 1]}, 1, 1]}, 1, 1]}
    ),
    "enum of no member": keyed({"enum": named(Kind), "name": "THREE"}),
    "enum of no enum": keyed({"enum": "torch:Tensor", "name": "T"}),
    "enum alone": keyed({"enum": named(Kind)}),
    "name alone": keyed({"name": "x"}),
    "two kinds": keyed({"float": "nan", "bytes": ""}),
    "nothing": keyed({}),
    "unknown": keyed({"pickle": "gASV"}),
    "numpy of objects": keyed({"numpy": ["|O8", "00" * 8]}),
    "numpy of nothing": keyed({"numpy": ["<q3", "00"]}),
    "numpy too short": keyed({"numpy": ["<f4", "00"]}),
    "numpy of one": keyed({"numpy": ["<f4"]}),
    "numpy text": keyed({"numpy": [3, 4]}),
    "tensor without rank": keyed({"tensor": "float32", "device": "cpu"}),
    "tensor of rank -1": keyed({"tensor": "float32", "rank": -1, "device": "cpu"}),
    "tensor of rank true": keyed({"tensor": "float32", "rank": True, "device": "cpu"}),
    "tensor of no dtype": keyed({"tensor": "save", "rank": 1, "device": "cpu"}),
    "tensor of no tensor": keyed({"tensor": "float32", "rank": 1, "device": "cpu", "type": "torch:Size"}),
    "class not imported": keyed({"dataclass": "antigravity:X", "items": []}),
    "class in a lazy module": keyed({"dataclass": "torch:no_such", "items": []}),
    "class without module": keyed({"dataclass": "Item", "items": []}),
    "function as class": keyed({"dataclass": "os:system", "items": []}),
    "attribute of a number": keyed({"dataclass": "sys:maxsize.real", "items": []}),
    "no dataclass": keyed({"dataclass": "subprocess:Popen", "items": [["args", "ls"]]}),
    "dataclass with another field": keyed({"dataclass": named(Item), "items": [["z", 1]]}),
    "dataclass with a number": keyed({"dataclass": named(Item), "items": [[1, 1]]}),
    "no mapping": keyed({"mapping": "subprocess:Popen", "items": [["args", "ls"]]}),
    "dict as mapping": keyed({"mapping": "builtins:dict", "items": [["args", "ls"]]}),
    "no named tuple": keyed({"namedtuple": "builtins:tuple", "items": [1]}),
    "named tuple too short": keyed({"namedtuple": named(Pair), "items": [1]}),
    "size of a text": keyed({"Size": ["x"]}),
    "size below 0": keyed({"Size": [-1]}),
    "no node": keyed({"node": "subprocess:Popen", "items": ["ls"], "context": None}),
    "node without context": keyed({"node": "builtins:dict", "items": ["ls"]}),
    "node with wrong context": keyed({"node": "collections:OrderedDict", "items": [1], "context": 3}),
    "context of no kind": keyed({"node": "builtins:dict", "items": [1], "context": {"set": []}}),
    "deep context": keyed(
        {"node": "builtins:dict", "items": [1], "context": {"list": [{"list": [{"list": [{"list": [{"list": []}]}]}]}]}}
    ),
    "full deque": keyed({"deque": [1, 2], "maxlen": 1}),
    "deque without maxlen": keyed({"deque": [1, 2]}),
    "a key of a dict": keyed({"dict": [[{"float": "1.5"}, 1]]}),
    "a list that is a number": keyed({"list": 3}),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_malformed_key_is_refused(name):
    """With a sentence."""
    with pytest.raises(StoreError) as caught:
        forms.read_key(WRONG[name])
    assert str(caught.value)
    assert isinstance(caught.value, tt.TTError)


def test_nothing_is_imported_for_a_key():
    """Not even by looking into a module that imports lazily; the sentence says what to import."""
    with pytest.raises(StoreError, match="import 'antigravity' first"):
        forms.read_key(WRONG["class not imported"])
    assert "antigravity" not in sys.modules


def test_no_constructor_is_run():
    """A class of the process does nothing because a form names it."""
    form = keyed({"dataclass": named(Loud), "items": [["x", 1]]})
    assert forms.read_key(form).leaves[0].value == 1
    form = keyed({"namedtuple": named(LoudPair), "items": [1, 2]})
    assert forms.read_key(form).leaves[1].value == 2


@dataclasses.dataclass
class Loud:
    x: int

    def __post_init__(self):
        raise AssertionError


class LoudPair(Pair):
    def __new__(cls, *_):
        raise AssertionError


def planned(key, **fields):
    shapes = evidence([tuple(tuple(2 for _ in range(leaf.rank)) for leaf in key.tensors)])
    choice = tt.Choice(
        unit="layers.0",
        key=key,
        candidate=tt.Candidate.of("jit", fast=True, level=0.5, sizes=(1, 2), name=None).over("graph"),
        covers=shapes,
        members=("layers.0", "layers.1"),
        why="2.00x eager",
    )
    cut = tt.Cut(depths=(1, 2), units=("layers.0", "layers.1", "head"))
    return tt.Plan(**{"cut": cut, "choices": (choice,), "environment": {"torch": "9"}, "weights_print": "ab", **fields})


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


def changed(form, path, value):
    """A form with another value at a path; `...` removes it."""
    form = json.loads(json.dumps(form))
    *way, last = path
    place = form
    for step in way:
        place = place[step]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return form


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
