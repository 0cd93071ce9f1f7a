"""Keys that are malformed: a StoreError with a sentence, nothing imported, and no constructor run."""

from __future__ import annotations

import dataclasses
import sys

import pytest
from form_values import Item, Kind, Pair, keyed

import tt_core as tt
from tt_core import forms
from tt_core.errors import StoreError


def named(kind):
    return f"{kind.__module__}:{kind.__qualname__}"


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
