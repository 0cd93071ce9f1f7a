"""The dispatcher in service: who answers a call, and with what."""

from __future__ import annotations

import pytest
import torch
from install_units import X, entry, plus, tuned, unit_of
from torch import nn

from tt_core.errors import DeclinedError, FallbackWarning
from tt_core.install import dispatcher, install, stats
from tt_core.values import Axis, Call, Shapes


class Modes(nn.Module):
    def forward(self, x, mode="a", *, scale=1.0):
        return x


class Pair(nn.Module):
    def forward(self, x, y, scale=1.0):
        return x


class Nothing(nn.Module):
    def forward(self, n):
        return n


def refuse(*_args, **_kwargs):
    raise AssertionError("asked")


def decline(_given):
    raise DeclinedError("not today")


def test_the_built_answers_what_it_covers(net):
    """A covered call is served by the built, every other by the original, and both are told apart in the stats."""
    want = net(X)
    axis = Axis(lo=1, hi=4, symbol="s0")
    tuned(net, covers=Shapes(leaves=((axis, 4),)))
    stats(net, hits=True)
    assert torch.equal(net(X), want + 1)
    assert torch.equal(net(x=X), want + 1)
    with pytest.warns(FallbackWarning, match=r"the tuned Net ran its original forward: x has sizes \[5, 4\].*sample"):
        assert net(torch.zeros(5, 4)).shape == (5, 4)
    found = stats(net)[""]
    assert (found.hits, dict(found.falls), found.candidates) == (2, {"shape": 1}, ("fake",))


def test_the_original_gets_the_callers_spelling():
    """A fall passes the arguments on as they were spelled: a decorated forward can tell."""

    class Spelled(nn.Module):
        def plain(self, x, mode="a"):
            return x

        def forward(self, *args, **kwargs):
            return len(args), sorted(kwargs)

        forward.__signature__ = __import__("inspect").signature(plain)

    module = Spelled().eval()
    tuned(module, lambda _: lambda *a, **k: "built")
    assert module(X) == module(x=X, mode="a") == "built"
    with pytest.warns(FallbackWarning):
        assert module(X, mode="b") == (1, ["mode"])
    assert module(mode="b", x=X) == (0, ["mode", "x"])


def test_many_keys_on_one_unit():
    """Each key has its own built; a call of no key falls."""
    module = Modes().eval()
    unit = unit_of(module)
    calls = [
        Call(X),
        Call(X, "b"),
        Call(X, 1),
        Call(X, 1.0),
        Call(X, scale=2.0),
        Call(X[0]),
        Call(X, X),
        Call(X.double()),
    ]
    install([entry(unit, lambda *_a, i=i, **_k: i, call) for i, call in enumerate(calls)])
    assert [module(*call.args, **call.kwargs) for call in calls] == list(range(8))
    assert module(scale=2.0, mode="a", x=X) == 4
    with pytest.warns(FallbackWarning, match="mode has a value that was not tuned"):
        assert module(X, "c") is X


def test_tensors_at_hand_are_given_to_a_built_that_takes_them():
    """In the key's order, however the call was spelled; with one key and with several."""
    unit = unit_of(Pair().eval())
    spelled = [Call(X, y=X + 1), Call(y=X + 1, x=X, scale=2.0), Call(X, scale=3.0, y=X + 1)]
    packed = lambda given: [each.mean().item() for each in given]  # noqa: E731
    for calls in (spelled[:1], spelled[1:]):
        installed = install([entry(unit, refuse, call, packed=packed) for call in calls])
        for call in calls:
            assert unit.module(*call.args, **call.kwargs) == [0.0, 1.0]
        installed.undo()


def test_a_built_that_takes_tensors_may_hand_them_back():
    """The original gets the caller's own spelling."""
    unit = unit_of(Pair().eval())
    install([entry(unit, refuse, Call(X, X), packed=decline)])
    with pytest.warns(FallbackWarning, match="not today"):
        assert torch.equal(unit.module(y=X, x=X + 1), X + 1)


def test_no_tensors_are_given_where_there_are_none():
    """A key without tensors is served by the call."""
    unit = unit_of(Nothing().eval())
    install([entry(unit, lambda n: n + 1, Call(1), packed=refuse)])
    assert unit.module(1) == 2


def test_one_key_with_two_ranges():
    """Two entries of one key and other sizes are both found."""
    module = Modes().eval()
    unit = unit_of(module)
    sizes = [Shapes(leaves=((n, 4),)) for n in (2, 3)]
    install([entry(unit, lambda *_a, i=i, **_k: i, covers=each) for i, each in enumerate(sizes)])
    assert module(X) == 0
    assert module(torch.zeros(3, 4)) == 1


def test_a_built_may_call_the_original(net):
    """`unit.forward` inside a built is the original: no recursion into the dispatcher."""
    tuned(net)
    stats(net, hits=True)
    net(X)
    assert stats(net)[""].hits == 1


def test_results_do_not_become_inference_tensors(net):
    """A built that runs in inference mode hands normal tensors to a caller that does not."""

    def built(x):
        with torch.inference_mode():
            return {"y": x + 1, "n": 3}

    tuned(net, lambda _: built)
    with torch.inference_mode():
        assert net(X)["y"].is_inference()
    for _ in range(3):
        result = net(X)
        assert not result["y"].is_inference()
        assert result["n"] == 3
    with torch.inference_mode():
        assert net(X)["y"].is_inference()


def test_a_dispatcher_alone_installs_nothing(net):
    """`dispatcher` makes what a race times, and leaves the module as it is."""
    unit = unit_of(net)
    made = dispatcher(unit, [entry(unit, plus(1)(unit))])
    assert torch.equal(made(X), net(X) + 1)
    assert "forward" not in vars(net)
