"""Replicas of arguments: deep where something can change, the same object where it cannot."""

from __future__ import annotations

import threading
from collections import UserDict
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from tt_core.trees import replica


class Cache:
    """An opaque object, such as a key-value cache."""

    def __init__(self, tensor):
        self.layers = [tensor]
        self.model = nn.Linear(1, 1)
        self.generator = torch.Generator().manual_seed(3)


def test_opaque_objects_are_copied_and_share_tensors_with_the_rest():
    """A cache object is copied deeply; a tensor that is in it and beside it stays one; its modules are the same objects."""
    tensor = torch.ones(3)
    cache = Cache(tensor)
    (copy, beside), array = replica(((cache, tensor), np.zeros(2)))
    assert copy is not cache
    assert copy.layers[0] is beside
    assert beside is not tensor
    assert copy.model is cache.model
    torch.rand(1, generator=copy.generator)
    assert torch.equal(cache.generator.get_state(), torch.Generator().manual_seed(3).get_state())
    array[0] = 1
    beside.add_(1)
    assert tensor.tolist() == [1, 1, 1]


def test_one_memo_keeps_sharing_over_several_replicas():
    """Objects met in two trees with one memo become one object."""
    cache, memo = Cache(torch.ones(1)), {}
    assert replica([cache], memo)[0] is replica({"a": cache}, memo)["a"]


def test_what_cannot_change_or_refuses_is_passed_on():
    """Modules, functions, locks, iterators and constants are the same objects."""
    for value in (
        nn.Linear(1, 1),
        lambda x: x,
        threading.Lock(),
        (x for x in [1]),
        torch.float32,
        "text",
        1.5,
        slice(1),
    ):
        assert replica(value) is value


def test_non_leaf_tensors_inside_objects_do_not_stop_the_copy():
    """copy.deepcopy refuses tensors with history; a replica makes leaves of them."""
    cache = Cache(torch.ones(2, requires_grad=True) * 2)
    copy = replica(cache)
    assert copy is not cache
    assert copy.layers[0].is_leaf
    assert copy.layers[0].requires_grad


def test_containers_of_every_kind_are_rebuilt():
    """Dataclasses and mapping classes are new objects of their class."""

    @dataclass
    class Out:
        a: torch.Tensor

    data = UserDict(x=Out(torch.ones(1)))
    copy = replica(data)
    assert type(copy) is UserDict
    assert type(copy["x"]) is Out
    assert copy["x"].a is not data["x"].a


def test_views_conjugates_and_negations_keep_values_and_sharing():
    """Two views of one storage stay views of one; lazy conjugation and negation keep their values."""
    base = torch.arange(6.0)
    left, right = replica((base[:4], base[2:]))
    left[2] = 50
    assert right[0] == 50
    values = torch.tensor([1 + 2j, 3 - 1j])
    assert torch.equal(replica(values.conj()), values.conj())
    assert torch.equal(replica(values.conj().imag), values.conj().imag)
