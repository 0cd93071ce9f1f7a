"""One look-up among the call keys of a unit."""

from __future__ import annotations

import math

import pytest
import torch
from guard_units import Batch, Free, Pair, X, key_of, unit_of

from tt_core import callkey, trees
from tt_core.guards import Claim, compile_guard, compile_pick
from tt_core.values import Call, Facts, Weights, evolve

CALLS = [
    Call(X), Call(X, X), Call(X.double()), Call(X[0]), Call(X, 1), Call(X, True), Call(X, 2.5), Call(X, math.nan),
    Call(X, "a"), Call(X, [X]), Call(X, [X, X]), Call(X, {"a": X}), Call(X, {"b": X}), Call(X, slice(1)),
    Call(X, slice(2)), Call(X, None, 1), Call(X, flag=True), Call(X, other=1), Call(X, Pair(1, 2)), Call(X, Batch(1)),
]  # fmt: skip


@pytest.mark.parametrize("some", [CALLS, CALLS[:2], CALLS[4:8], CALLS[9:13]])
def test_one_look_up_finds_the_key(some):
    """Among many keys the look-up always offers the right one, and never more than a few."""
    unit = unit_of(Free().eval())
    keys = [key_of(unit, call) for call in some]
    pick = compile_pick(unit, keys)
    for index, call in enumerate(some):
        offered = pick.table[pick.of(*call.args, **call.kwargs)]
        assert index in offered
        assert len(offered) <= 2


def test_look_up_by_training_and_autocast():
    """Keys that differ in what surrounds them are told apart too."""
    unit = unit_of(Free().eval())
    keys = [key_of(unit, Call(X))]
    with torch.autocast("cpu", torch.bfloat16):
        keys.append(key_of(unit, Call(X)))
        pick = compile_pick(unit, [*keys, callkey.key_of(unit.forward, Call(X), training=True)])
        assert pick.table[pick.of(X)] == (1,)
    assert pick.table[pick.of(X)] == (0,)


@pytest.mark.parametrize("name", ["__import__('os').getcwd()", "x if x else y", "1", ""])
def test_an_arguments_name_is_never_code(name):
    """A key may come out of a file: what is no name does not get into a generated function."""
    unit = unit_of(Free())
    tree = trees.flatten({name: torch.ones(2)})[1]
    key = evolve(key_of(unit, Call(torch.ones(2))), tree=tree, leaves=key_of(unit, Call(torch.ones(2))).leaves[:1])
    with pytest.raises(ValueError, match="cannot be named"):
        compile_guard(unit, Claim(key=key, weights=Weights.LIVE, covers=None, facts=Facts()))
    with pytest.raises(ValueError, match="cannot be named"):
        compile_pick(unit, [key, key])
