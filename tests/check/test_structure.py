"""Structure, types, constants and kinds of tensors: everything that must be equal, and what cannot be compared."""

from __future__ import annotations

import dataclasses
import enum
from collections import OrderedDict
from typing import NamedTuple

import numpy as np
import pytest
import torch
from transformers.modeling_outputs import BaseModelOutput

from tt_core.check import compare, whole
from tt_core.values import Facts, Observation, Tolerance

T = torch.arange(12.0).reshape(3, 4)


class Pair(NamedTuple):
    score: object
    index: object


@dataclasses.dataclass
class Head:
    logits: object
    hidden: object = None


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Cache:
    """A leaf that nobody can look into."""


def judged(want, got, true=None, facts=None, tolerance=None):
    observations = [None if tree is None else Observation(result=tree) for tree in (want, got, true)]
    return compare(facts or Facts(), observations[:1], observations[1:2], observations[2:], tolerance or Tolerance())


SAME = {
    "namedtuple": lambda: (Pair(T, T.argmax(-1)), T),
    "nested containers": lambda: {"a": [T, (T, None)], "b": 3},
    "OrderedDict": lambda: OrderedDict(a=T),
    "dataclass": lambda: Head(T),
    "ModelOutput": lambda: BaseModelOutput(last_hidden_state=T),
    "constants": lambda: [1, True, 2.5, 1j, "x", b"y", None, Colour.RED, torch.float32, torch.device("cpu"), slice(1)],
    "complex": lambda: T.to(torch.complex64) * 1j,
    "sparse": T.to_sparse,
    "sparse rows": T.to_sparse_csr,
    "quantised": lambda: torch.quantize_per_tensor(T, 0.1, 0, torch.quint8),
    "nested": lambda: torch.nested.nested_tensor([T, T[:1]]),
    "jagged": lambda: torch.nested.nested_tensor([T, T[:1]], layout=torch.jagged),
    "bool": lambda: T > 3,
    "uint16": lambda: T.to(torch.uint16),
    "float8": lambda: T.to(torch.float8_e4m3fn),
    "empty": lambda: torch.empty(0, 3),
    "scalar": lambda: torch.tensor(3.0),
    "numpy": T.numpy,
    "numpy scalar": lambda: np.float32(2.5),
    "numpy text": lambda: np.array(["a", "b"]),
    "nan": lambda: float("nan"),
    "nothing": tuple,
    "parameter": lambda: torch.nn.Parameter(T),
}


@pytest.mark.parametrize("name", SAME)
@pytest.mark.filterwarnings("ignore:Sparse CSR", "ignore:The PyTorch API of nested", "ignore:torch.quantize_per_tensor")
def test_equal_trees_are_right(name):
    """Every kind of result equals itself, and nothing of it is left out."""
    verdict = judged(SAME[name](), SAME[name]())

    assert verdict.ok, verdict
    assert not verdict.skipped


DIFFERENT = [
    ((T, T), [T, T], "output", "a list where eager gives a tuple"),
    ((T, T), (T,), "output", "1 entries where eager's holds 2"),
    (Pair(T, T), (T, T), "output", "a tuple where eager gives a Pair"),
    (BaseModelOutput(last_hidden_state=T), {"last_hidden_state": T}, "output", "a dict where eager gives a BaseMod"),
    ({"x": {"a": T}}, {"x": OrderedDict(a=T)}, "output['x']", "a OrderedDict where eager gives a dict"),
    ({"a": T, "b": T}, {"b": T, "a": T}, "output", "['b', 'a'] where eager's holds ['a', 'b']"),
    ({"x": (1, [T])}, {"x": (1, [(T,)])}, "output['x'][1][0]", "a tuple where eager gives a single value"),
    (Head(T), Head((T,)), "output.logits", "a tuple where eager gives a single value"),
    (Head(T), Head(T, T), "output.hidden", "a Tensor where eager gives a NoneType"),
    (T, T.double(), "output", "dtype torch.float64"),
    (T, T.reshape(4, 3), "output", "shape (4, 3) where eager's is (3, 4)"),
    (T, T[None], "output", "shape (1, 3, 4)"),
    (T, T.to_sparse(), "output", "layout torch.sparse_coo"),
    (T, T.to("meta"), "output", "device meta"),
    (T, T.numpy(), "output", "a ndarray where eager gives a Tensor"),
    (1, True, "output", "a bool where eager gives a int"),
    (1, 1.0, "output", "a float where eager gives a int"),
    (3, 4, "output", "4 where eager gives 3"),
    ("a", "b", "output", "'b' where eager gives 'a'"),
    (Colour.RED, Colour.BLUE, "output", "Colour.BLUE"),
    (2.5, 2.6, "output", "2.6 where eager gives 2.5"),
    (float("nan"), 1.0, "output", "1.0 where eager gives nan"),
    (1j, 1.1j, "output", "1.1j where eager gives 1j"),
    (np.float32(1), np.float64(1), "output", "a float64 where eager gives a float32"),
    (np.array(["a", "b"]), np.array(["a", "c"]), "output", "where eager gives"),
    (T.to_sparse(), (T * 1.01).to_sparse(), "output[2,3]", "relative L2"),
    (T.numpy(), T.numpy() * np.float32(1.01), "output[2,3]", "relative L2"),
    (T.to(torch.complex64), T * 1.01 + 0j, "output[2,3]", "relative L2"),
]


@pytest.mark.parametrize(("want", "got", "where", "words"), DIFFERENT, ids=lambda value: str(value)[:30])
def test_different_trees_are_wrong(want, got, where, words):
    """Any difference in structure, type or constant is refused at its place, whatever the tolerance."""
    exact = "relative" not in words and "eager gives 2.5" not in words and "1j" not in words
    verdict = judged(want, got, tolerance=Tolerance(factor=1e6) if exact else None)

    assert not verdict.ok
    assert verdict.where.startswith(where)
    assert verdict.where.endswith("sample 0")
    assert words in verdict.reason


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool])
def test_integers_are_exact(dtype):
    """One other integer or boolean among many is refused and named."""
    want = torch.zeros(4, 5, dtype=dtype)
    got = want.clone()
    got[2, 3] = 1

    verdict = judged((want,), (got,), tolerance=Tolerance(factor=1e6))

    assert verdict.where == "output[0][2,3], row 2, sample 0"
    assert verdict.reason == "1 where eager gives 0 at output[0][2,3], row 2, sample 0"


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_quantized_steps_show():
    """A quantised result one step off is refused."""
    want = torch.quantize_per_tensor(T, 0.1, 0, torch.quint8)
    got = torch.quantize_per_tensor(T + 0.1, 0.1, 0, torch.quint8)

    assert not judged(want, got).ok


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_parts_are_named():
    """The parts of a nested tensor are compared one by one."""
    want, got = (torch.nested.nested_tensor([T, T[:2] * by]) for by in (1, 1.01))

    assert judged(want, got).where == "output[1][1,3], row 1, sample 0"
    assert "shape" in judged(want, torch.nested.nested_tensor([T, T[:1]])).reason


def test_complex_non_finite():
    """The imaginary part's NaN shows too."""
    want = T.to(torch.complex64)
    got = want.clone()
    got[1, 1] = complex(5, float("nan"))

    assert judged(want, got).where == "output[1,1], row 1, sample 0"


def test_other_kinds_are_skipped():
    """A leaf of a kind that cannot be compared is left out and named; the rest decides."""
    verdict = judged({"y": T, "cache": Cache()}, {"y": T, "cache": Cache()})

    assert verdict.ok
    assert verdict.compared == 1
    assert verdict.skipped == ("output['cache'] (Cache)",)
    assert not judged({"y": T, "cache": Cache()}, {"y": T + 1, "cache": Cache()}).ok
    assert not judged(Cache(), T).ok


def test_nothing_to_compare_is_not_right():
    """Where every leaf is of an unknown kind, nothing was shown."""
    for verdict in (judged([Cache()], [Cache()]), whole([Cache()], [Cache()], Tolerance())):
        assert not verdict.ok
        assert verdict.compared == 0
        assert verdict.reason == "nothing in the results could be compared"


def test_truth_of_another_structure_is_ignored():
    """A truth that does not fit is no truth: eager decides."""
    verdict = judged((T, T), (T, T), true=(T.double(),))

    assert verdict.ok
    assert verdict.eager_error is None


ALIASED = frozenset({(0, ("input", 0))})
RESULTS = frozenset({(1, ("result", 0))})


@pytest.mark.parametrize(
    ("eager", "candidate", "fact", "ok"),
    [
        (frozenset(), frozenset(), False, True),
        (frozenset(), ALIASED, False, False),
        (frozenset(), RESULTS, False, False),
        (ALIASED, ALIASED, True, True),
        (ALIASED, frozenset(), True, False),
        (ALIASED, RESULTS, True, False),
        (ALIASED, frozenset(), False, True),
    ],
)
def test_aliases(eager, candidate, fact, ok):
    """Results share memory exactly where eager's do, where that is a fact of the unit; and never where eager's do not."""
    want, got = (Observation(result=(T, T), aliases=aliases) for aliases in (eager, candidate))

    verdict = compare(Facts(aliases=fact), [want], [got], [None], Tolerance())

    assert verdict.ok is ok
    assert ok or verdict.where in {"output[0], sample 0", "output[1], sample 0"}
