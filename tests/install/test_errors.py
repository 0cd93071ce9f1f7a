"""Calls and builts that raise: whose error arrives, and what it costs."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from install_units import X, tuned
from torch import nn

from tt_core.errors import DeclinedError, FallbackWarning
from tt_core.install import stats
from tt_core.values import Facts


def test_wrong_calls_raise_what_the_original_raises(net):
    """A call that does not fit the signature raises the original's own TypeError."""
    tuned(net)
    with pytest.warns(FallbackWarning, match="signature"), pytest.raises(TypeError, match=r"Net\.forward\(\)"):
        net()
    with pytest.raises(TypeError, match=r"Net\.forward\(\) takes 2"):
        net(X, X)
    with pytest.raises(TypeError, match="unexpected keyword argument 'y'"):
        net(y=X)
    assert stats(net)[""].falls["signature"] == 3


class Raises:
    """A built that raises as often as it is told."""

    def __init__(self, times: int = 99) -> None:
        self.calls, self.times = 0, times

    def __call__(self, *_: Any, **__: Any) -> str:
        self.calls += 1
        if self.calls <= self.times:
            message = "no kernel\nand a long story"
            raise RuntimeError(message)
        return "built"


def test_a_raising_built_costs_only_itself(net):
    """A built that raises is answered for by the original, warned about once, and retired after three times."""
    built, want = Raises(), net(X)
    tuned(net, lambda _: built)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(5):
            assert torch.equal(net(X), want)
    assert built.calls == 3
    assert ["fake raised RuntimeError: no kernel" in str(each.message) for each in seen] == [True, False]
    assert "out of service" in str(seen[1].message)
    found = stats(net)[""]
    assert (dict(found.falls), found.retired) == ({"error": 3, "retired": 2}, 1)


def test_the_originals_exception_is_the_answer():
    """Where the original raises too, its exception arrives alone, and the built is not blamed."""

    class Picky(nn.Module):
        def forward(self, x):
            message = "only on Sundays"
            raise LookupError(message)

    module = Picky().eval()
    tuned(module, lambda _: Raises())
    with pytest.raises(LookupError, match="Sundays") as caught:
        module(X)
    assert caught.value.__context__ is None
    assert stats(module)[""].falls == {}


@pytest.mark.parametrize("facts", [Facts(writes_inputs=True), Facts(writes_state=("pos",))])
def test_a_unit_that_writes_is_not_run_twice(net, facts):
    """Where inputs or state may be half written already, the built's own error is raised, and counted."""
    tuned(net, lambda _: Raises(1), facts=facts)
    with pytest.warns(FallbackWarning), pytest.raises(RuntimeError, match="no kernel"):
        net(X)
    assert net(X) == "built"
    assert stats(net)[""].falls == {"error": 1}


@pytest.mark.parametrize("facts", [Facts(), Facts(writes_inputs=True)])
def test_a_call_that_is_handed_back_is_a_fall_of_its_own(net, facts):
    """The original answers, also where it writes; the built stays in service however often it declines."""
    want = net(X)

    def built(x):
        if x.shape == X.shape:
            message = "not these\nrows"
            raise DeclinedError(message)
        return "built"

    tuned(net, lambda _: built, facts=facts, covers=None)
    with pytest.warns(FallbackWarning, match="fake handed the call back: not these: tune again"):
        got = [net(X) for _ in range(5)]
    assert all(torch.equal(one, want) for one in got)
    found = stats(net)[""]
    assert (dict(found.falls), found.retired) == ({"declined": 5}, 0)


def test_ctrl_c_passes(net):
    """KeyboardInterrupt in a built is nobody's error."""

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    tuned(net, lambda _: interrupted)
    with pytest.raises(KeyboardInterrupt):
        net(X)
    assert stats(net)[""].falls == {}
