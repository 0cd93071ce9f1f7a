"""Guards: a compiled predicate that says yes to the calls a built was made for, and to no other."""

from __future__ import annotations

import math
from collections import OrderedDict, deque

import numpy as np
import pytest
import torch
from guard_units import Batch, Block, Free, Pair, X, falls, guard, key_of, says, unit_of
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.modeling_outputs import BaseModelOutput

from tt_core.guards import FIXES, Fall
from tt_core.guards.around import disjoint, forks
from tt_core.values import Axis, Call, Facts, Shapes, Weights


def test_every_spelling_is_bound_by_python():
    """Positional, keyword and defaulted spellings are all accepted; what does not fit the signature is not."""
    found = guard(Call(X, 1))
    assert says(found, X, 1)
    assert says(found, value=1, x=X)
    assert says(found, X, value=1, flag=False)
    assert not says(found, X)
    assert falls(found, y=1) is Fall.SIGNATURE
    assert falls(found, X, 1, 2) is Fall.STRUCTURE
    assert falls(found, X, 1, other=2) is Fall.STRUCTURE


def test_parameter_names_cannot_clash():
    """Parameters named like names of ours, and every kind of parameter, are compiled and bound."""

    class Odd(nn.Module):
        def forward(self, tt_seen, /, tt_learn=1, *, torch=2, **tt_module):
            return tt_seen

    found = guard(Call(X, torch=3, extra=4), Odd().eval())
    assert says(found, X, torch=3, extra=4)
    assert says(found, X, 1, torch=3, extra=4)
    assert not says(found, X, torch=3)


def test_the_source_can_be_read():
    """The text of a guard is kept on the function, with the call it is for."""
    found = guard(Call(X, 3), covers=Shapes(leaves=((Axis(lo=1, hi=9, symbol="s0"), 4),)))
    assert found.accepts.__source__ == found.source
    assert "# x: f32[1..9, 4], value: 3" in found.source


@pytest.mark.parametrize(
    "make",
    [
        lambda: None, lambda: 3, lambda: True, lambda: 2.5, lambda: 0.0, lambda: math.nan, lambda: -math.inf, lambda: 1j,
        lambda: "a'\n", lambda: b"b", lambda: torch.float16, lambda: torch.device("cpu"), lambda: torch.strided,
        lambda: torch.Size([1, 2]), lambda: slice(1, None), lambda: range(3), lambda: np.float32(2), lambda: [1, (2, X)],
        lambda: {"a": X, 1: {"b": []}}, lambda: OrderedDict(z=X, a=1), lambda: Pair(X, 2), lambda: Batch(X, (1,)),
        lambda: deque([X, 1]), lambda: BaseModelOutput(last_hidden_state=X), lambda: (), dict,
        lambda: torch.ones(3).max(0), lambda: (X, X.double(), X[0]),
    ],
)  # fmt: skip
def test_equal_calls_are_accepted(make):
    """A call made of equal constants and containers of the same kinds is accepted."""
    assert says(guard(Call(X, make())), X, make())


@pytest.mark.parametrize(
    ("tuned", "given_", "kind"),
    [
        (1, True, Fall.CONSTANT), (1, 1.0, Fall.CONSTANT), (0.0, -0.0, Fall.CONSTANT), (-0.0, 0.0, Fall.CONSTANT),
        (math.nan, 0.0, Fall.CONSTANT), (None, False, Fall.CONSTANT), (None, X, Fall.STRUCTURE), (X, None, Fall.STRUCTURE),
        ("a", "b", Fall.CONSTANT), (np.float32(1), 1.0, Fall.CONSTANT), ([1], (1,), Fall.STRUCTURE),
        ([1], [1, 2], Fall.STRUCTURE), ({"a": 1, "b": 2}, {"b": 2, "a": 1}, Fall.STRUCTURE),
        ({"a": 1}, {"a": 1, "b": 1}, Fall.STRUCTURE), ({"a": 1}, OrderedDict(a=1), Fall.STRUCTURE),
        (Pair(1, 2), (1, 2), Fall.STRUCTURE), (Batch(1), Pair(1, None), Fall.STRUCTURE),
        (BaseModelOutput(last_hidden_state=X), BaseModelOutput(hidden_states=X), Fall.STRUCTURE), (1, object(), Fall.OPAQUE),
        (X, X.double(), Fall.DTYPE), (X, X.to("meta"), Fall.DEVICE), (X, X.to_sparse(), Fall.LAYOUT),
        (X, nn.Parameter(X, requires_grad=False), Fall.TYPE), (X, X[0], Fall.SHAPE),
        (torch.zeros(2, dtype=torch.complex64), torch.zeros(2, dtype=torch.complex64).conj(), Fall.STRIDES),
    ],
)  # fmt: skip
def test_other_calls_fall_by_kind(tuned, given_, kind):
    """A call that differs in one thing is refused, and the reason is of that kind, with a fix."""
    found = guard(Call(X, tuned))
    assert says(found, X, tuned)
    assert falls(found, X, given_) is kind
    assert FIXES[kind] in str(found.explain((X, given_), {})[0])


@settings(deadline=None, max_examples=60)
@given(st.one_of(st.floats(), st.integers(), st.booleans(), st.text(max_size=5), st.none()), st.data())
def test_guard_agrees_with_the_key(value, data):
    """For any two constants the guard says yes exactly when the keys are equal."""
    other = data.draw(st.one_of(st.just(value), st.floats(), st.integers(), st.booleans(), st.text(max_size=5)))
    unit = unit_of(Free().eval())
    found = guard(Call(X, value))
    assert says(found, X, other) == (key_of(unit, Call(X, value)) == key_of(unit, Call(X, other)))


def test_equal_axes_must_be_equal():
    """Sizes in range are accepted, sizes out of range or unequal where they must be equal are not: no broadcast slips."""
    axis, free = Axis(lo=1, hi=8, symbol="s0"), Axis(lo=2, hi=4, symbol="s1")
    found = guard(Call(X, X), covers=Shapes(leaves=((axis, 4), (axis, free))))
    assert says(found, torch.zeros(8, 4), torch.zeros(8, 3))
    for one, other in [((9, 4), (9, 3)), ((8, 4), (1, 3)), ((8, 3), (8, 3)), ((8, 4), (8, 5)), ((0, 4), (0, 3))]:
        assert falls(found, torch.zeros(one), torch.zeros(other)) is Fall.SHAPE


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 5), min_size=4, max_size=4))
def test_guard_agrees_with_shapes(sizes):
    """For any sizes the guard says what `Shapes.admit` says."""
    axis, fixed = Axis(lo=1, hi=4, symbol="a"), 3
    shapes = Shapes(leaves=((axis, fixed), (Axis(lo=2, hi=4, symbol="b"), Axis(lo=2, hi=3, symbol="a"))))
    one, other = tuple(sizes[:2]), tuple(sizes[2:])
    assert says(guard(Call(X, X), covers=shapes), torch.zeros(one), torch.zeros(other)) == shapes.admit([one, other])


def test_strides_only_where_they_matter():
    """A transposed input is refused only where the built needs contiguous inputs."""
    square = torch.zeros(4, 4)
    assert says(guard(Call(square)), torch.rand(4, 2).t()[:4].contiguous().t().t())
    assert says(guard(Call(square)), torch.rand(4, 4).t())
    assert falls(guard(Call(square), needs_strides=True), torch.rand(4, 4).t()) is Fall.STRIDES


def test_inputs_that_share_memory():
    """Where inputs are written to, inputs that share memory are refused; otherwise they are fine."""
    both = torch.zeros(4, 4)
    writes = guard(Call(X, X), facts=Facts(writes_inputs=True))
    assert says(writes, torch.zeros(2, 4), torch.zeros(2, 4))
    assert says(writes, both[:2], both[2:])
    assert falls(writes, both[:2], both[1:3]) is Fall.OVERLAP
    assert falls(writes, torch.zeros(1, 4).expand(2, 4), torch.zeros(2, 4)) is Fall.OVERLAP
    assert says(guard(Call(X, X)), both[:2], both[:2])


def test_disjoint_is_careful():
    """Empty tensors share nothing; the same tensor twice does."""
    assert disjoint(torch.zeros(0), torch.zeros(0))
    assert not disjoint(X, X)


def test_gradients_wanted():
    """Grad mode alone is fine; with an input or a parameter that requires grad the call falls."""
    needs = X.clone().requires_grad_()
    plain, block = guard(Call(X)), Block().eval()
    assert says(plain, X)
    assert falls(plain, needs) is Fall.GRAD
    with torch.no_grad():
        assert says(plain, needs)
    for weights in Weights:
        found = guard(Call(X), block.requires_grad_(True), weights)
        assert falls(found, X) is Fall.GRAD
        with torch.inference_mode():
            assert says(found, X)
        block.requires_grad_(False)
        assert says(found, X)
        with torch.no_grad():
            assert says(found, X)


def test_inference_tensors_are_plain():
    """Inference tensors and normal ones are one call, in and out of inference mode."""
    found = guard(Call(X))
    with torch.inference_mode():
        inner = torch.zeros(2, 4)
        assert says(found, inner)
        assert says(found, X)
    assert says(found, inner)


def test_training_and_autocast():
    """Another training flag or autocast state falls; a key recorded so is served so."""
    module = Free().eval()
    found = guard(Call(X), module)
    with torch.autocast("cpu", torch.bfloat16):
        assert falls(found, X) is Fall.AUTOCAST
        inside = guard(Call(X), module)
        assert says(inside, X)
    assert falls(inside, X) is Fall.AUTOCAST
    with torch.autocast("cpu", torch.float16):
        assert falls(inside, X) is Fall.AUTOCAST
    module.train()
    assert falls(found, X) is Fall.TRAINING
    assert says(guard(Call(X), module), X)


class _Mode(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("call", [Call(X), Call(None)])
def test_tracing_is_refused(call):
    """Under jit.trace, vmap, a dispatch mode and forward AD the answer is no, also without tensors."""
    found, seen = guard(call), []

    def ask(*_):
        seen.append(falls(found, *call.args))
        return X + 1

    torch.jit.trace(ask, (X,), check_trace=False)
    torch.func.vmap(lambda x: ask() + x)(torch.zeros(3, 2, 4))
    torch.func.grad(lambda x: (ask() + x).sum())(X)
    with _Mode():
        ask()
    with forward_ad.dual_level():
        ask()
    assert seen == [Fall.TRACING] * 5
    assert says(found, *call.args)


def test_a_fork_is_another_process():
    """A built that does not survive a fork is not called in the child."""
    safe, unsafe = guard(Call(X)), guard(Call(X), fork_safe=False)
    forks[0] += 1
    try:
        assert says(safe, X)
        assert falls(unsafe, X) is Fall.PROCESS
    finally:
        forks[0] -= 1
