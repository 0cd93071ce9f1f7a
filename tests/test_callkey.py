"""Call keys: what makes two calls the same call."""

from __future__ import annotations

import enum
import inspect
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from transformers import DynamicCache
from transformers.modeling_outputs import BaseModelOutput

from tt_core.callkey import Opaque, canonical, describe, evidence, key_of, tensors_of
from tt_core.values import Axis, Call, CallKey, Shapes


class Pair(NamedTuple):
    a: Any
    b: Any


class Mode(enum.Enum):
    FAST = 1
    SLOW = 2


@dataclass
class Batch:
    ids: Any
    mask: Any = None


def free(x, value=None, *rest, flag=False, **more):
    return x


def key(*args, forward=free, training=False, **kwargs) -> CallKey:
    found = key_of(forward, Call(*args, **kwargs), training=training)
    assert isinstance(found, CallKey), found
    return found


X = torch.zeros(2, 3)


def spelled(x, scale=2.0, *, mask=None):
    return x


def test_every_spelling_is_one_call():
    """Positional, keyword, reordered and defaulted spellings share one key."""
    calls = [Call(X), Call(x=X), Call(X, 2.0), Call(X, scale=2.0), Call(mask=None, scale=2.0, x=X), Call(X, mask=None)]
    assert len({key_of(spelled, call, training=False) for call in calls}) == 1


def test_canonical_is_in_signature_order():
    """Canonical arguments stand in signature order, extra ones as a tuple and a dict."""
    found = canonical(inspect.signature(free), Call(X, 1, 2, 3, b=5, a=4))
    assert list(found) == ["x", "value", "rest", "flag", "more"]
    assert found["rest"] == (2, 3)
    assert found["more"] == {"b": 5, "a": 4}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, True), (1, 1.0), (0, False), (0.0, -0.0), (None, 0), ("1", 1), ("a", b"a"), (1.0, 1 + 0j), (Mode.FAST, 1),
        (Mode.FAST, Mode.SLOW), (torch.float32, torch.float64), (torch.device("cpu"), torch.device("meta")),
        (torch.strided, torch.sparse_coo), (torch.Size([1, 2]), (1, 2)), (slice(1, 2), slice(1, 3)),
        (slice(0, 1), slice(False, 1)), (range(3), range(4)), (np.float32(1), np.float64(1)), (np.float64(1), 1.0),
        (np.int64(1), 1), (complex(0.0, 0.0), complex(0.0, -0.0)), ([1], (1,)), ({"a": 1}, OrderedDict(a=1)),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}), (Pair(1, 2), (1, 2)), (Batch(1), {"ids": 1, "mask": None}),
    ],
)  # fmt: skip
def test_constants_differ_by_type_and_value(one, other):
    """Constants and containers that a model could tell apart have different keys."""
    assert key(X, one) != key(X, other)


@pytest.mark.parametrize(
    "make",
    [
        lambda: float("nan"), lambda: -float("nan"), lambda: np.float32("nan"), lambda: complex("nan"), lambda: "a" * 50,
        lambda: slice(None, 3), lambda: range(2, 9, 3), lambda: Mode.SLOW, lambda: torch.Size([4]), lambda: np.int8(3),
        lambda: Pair(1, [2]), lambda: Batch(1, {"a": None}), lambda: BaseModelOutput(last_hidden_state=1.5),
        lambda: 10**30, lambda: np.datetime64("2020-01-01"),
    ],
)  # fmt: skip
def test_equal_values_are_equal_keys(make):
    """Values made twice share a key, which hashes; NaN equals itself."""
    assert key(X, make()) == key(X, make())
    assert hash(key(X, make())) == hash(key(X, make()))


@given(st.one_of(st.floats(), st.integers(), st.booleans(), st.text(), st.binary(), st.complex_numbers()))
def test_any_plain_constant_has_an_identity(value):
    """Whatever plain constant comes, its key equals itself, and a tensor in its place is another call."""
    assert key(X, value) == key(X, value)
    assert key(X, value) != key(X, X)


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (torch.zeros(2, 3, dtype=torch.float64), "dtype"), (torch.zeros(6), "rank"), (X.to("meta"), "device"),
        (X.to_sparse(), "layout"), (nn.Parameter(X), "class"),
    ],
)  # fmt: skip
def test_tensors_differ_by_kind(other, why):
    """Tensors differ by dtype, rank, device, layout and exact class."""
    assert key(X) != key(other), why


def test_sizes_and_strides_are_no_identity():
    """Sizes, strides, values and requires_grad are no part of a key."""
    assert key(X) == key(torch.ones(5, 7).t()) == key(X.clone().requires_grad_())


@pytest.mark.parametrize(
    ("value", "word"),
    [
        (torch.Generator(), "Generator"), (DynamicCache(), "DynamicCache"), (np.zeros(2), "numpy.ndarray"),
        (object(), "object"), ({1, 2}, "set"), (lambda: 0, "function"), (nn.Linear(1, 1), "Linear"),
    ],
)  # fmt: skip
def test_other_objects_are_opaque(value, word):
    """A leaf that is neither tensor nor plain constant makes the call opaque; the reason names argument and type."""
    found = key_of(free, Call(X, {"inner": [value]}), training=False)
    assert isinstance(found, Opaque)
    assert word in found.reason
    assert "value['inner'][0]" in found.reason


def test_a_call_that_does_not_fit_is_opaque():
    """A call that the signature refuses has no key, and the reason says so."""
    found = key_of(spelled, Call(X, 1, 2), training=False)
    assert isinstance(found, Opaque)
    assert "signature" in found.reason


def test_training_and_autocast_belong_to_the_key():
    """The training flag and the autocast of every device type, with its dtype, are part of the identity."""
    with torch.autocast("cpu", torch.bfloat16):
        cpu = key(X)
    with torch.autocast("cpu", torch.float16):
        half = key(X)
    assert len({key(X), key(X, training=True), cpu, half}) == 4
    assert cpu.ambient.autocast == (("cpu", torch.bfloat16),)


def test_tensors_come_in_key_order():
    """Tensor leaves come in canonical order, whatever the spelling: the call's own objects."""
    a, b, c = X, X + 1, X + 2
    found = tensors_of(free, Call(flag=c, value=[b, 3], x=a))
    assert [id(t) for t in found] == [id(a), id(b), id(c)]


def test_evidence_shares_symbols():
    """Axes that never moved are fixed, axes that were always equal share a symbol."""
    sizes = [((2, 8), (2, 3)), ((5, 8), (5, 4)), ((1, 8), (1, 9))]
    assert evidence(sizes) == Shapes(
        leaves=(
            (Axis(lo=1, hi=5, symbol="s0"), 8),
            (Axis(lo=1, hi=5, symbol="s0"), Axis(lo=3, hi=9, symbol="s1")),
        )
    )
    assert evidence([((2, 8), ())]) == Shapes(leaves=((2, 8), ()))
    assert evidence([(), ()]) == Shapes(leaves=())


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=6))
def test_evidence_admits_what_it_saw(pairs):
    """The evidence of some calls admits each of them, and no size beyond."""
    sizes = [((a, 3), (b, a)) for a, b in pairs]
    shapes = evidence(sizes)
    assert all(shapes.admit(each) for each in sizes)
    assert not shapes.admit(((99, 3), (pairs[0][1], 99)))


def test_description_reads_well():
    """A key is described with sizes, constants and modes."""
    with torch.autocast("cpu", torch.bfloat16):
        found = key({"ids": X.long(), "m": X}, 3, flag=-0.0, training=True)
    shapes = evidence([((2, 8), (2, 1)), ((2, 128), (2, 1))])
    expected = "x['ids']: i64[2, 8..128], x['m']: f32[2, 1], value: 3, flag: -0.0, training, autocast cpu bf16"
    assert describe(found, shapes) == expected
    assert describe(key(nn.Parameter(X).to("meta"), "s" * 99)).startswith("x: f32[?, ?]@meta, value: 'sss")
