"""Values of every kind that a form holds, and keys and plans with them."""

from __future__ import annotations

import collections
import dataclasses
import json
from enum import Enum, IntEnum
from typing import NamedTuple

import numpy as np
import torch

import tt_core as tt
from tt_core.callkey import evidence, key_of


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


def keyed(value):
    return {"arguments": {"dict": [["x", value]]}, "training": False, "autocast": []}


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
