"""How everything goes back: off, undo and untune, and what is installed where."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from install_units import Net, X, entry, tuned, unit_of

from tt_core.errors import FallbackWarning, UsageError
from tt_core.install import Dispatcher, Entry, install, untune
from tt_core.values import Built, Weights


def test_on_and_off_leave_the_very_dict(net):
    """`off` leaves the same keys in the same order and the very objects, with and without an instance forward before."""
    for before in (None, lambda x: x):
        if before is not None:
            net.forward = before
            net.late = 1
        items = list(vars(net).items())
        made = tuned(net)
        made.off()
        assert [(k, id(v)) for k, v in vars(net).items()] == [(k, id(v)) for k, v in items]
        made.on()
        assert isinstance(net.forward, Dispatcher)
        made.on()
        made.off()
        made.off()
        assert [(k, id(v)) for k, v in vars(net).items()] == [(k, id(v)) for k, v in items]
        made.undo()


def test_undo_closes_once_outer_first(net):
    """`undo` closes every built, outer before inner, and a second time does nothing."""
    closed: list[str] = []
    inner = Built(call=lambda x: x, weights=Weights.LIVE, close=lambda: closed.append("inner"))
    made = tuned(net, inner=inner, close=lambda: closed.append("outer"))
    assert made.undo() == ()
    assert made.undo() == ()
    assert untune(net) == ()
    assert closed == ["outer", "inner"]
    assert "forward" not in vars(net)


def test_a_shared_built_is_closed_with_its_last_user(net):
    """A built under two units is closed when the second of them goes."""
    closed: list[int] = []
    built = Built(call=lambda x: x, weights=Weights.LIVE, close=lambda: closed.append(1))
    plain = [entry(unit_of(m, p), lambda x: x) for p, m in net.named_children()]
    made = install(
        [
            Entry(**{n: getattr(e, n) for n in ("unit", "key", "covers", "facts", "candidate")}, built=built)
            for e in plain
        ]
    )
    assert untune(net.first) == ("",)
    assert closed == []
    made.undo()
    assert closed == [1]


def test_a_close_that_raises_is_contained(net):
    """A close that raises becomes a warning; the model is back all the same."""
    made = tuned(net, close=lambda: 1 / 0)
    with pytest.warns(FallbackWarning, match="ZeroDivisionError"):
        made.undo()
    assert "forward" not in vars(net)


def test_somebody_elses_forward_is_left_alone(net):
    """A forward that the user set after tuning survives `off` and `undo`, which says so; the built is closed."""
    closed: list[int] = []
    made = tuned(net, close=lambda: closed.append(1))
    held = net.forward

    def mine(x):
        return held(x) * 2

    net.forward = mine
    made.off()
    assert net.forward is mine
    made.on()
    assert made.undo() == ("",)
    assert net.forward is mine
    assert closed == [1]
    want = Net.forward(net, X) * 2
    assert torch.equal(net(X), want)


def test_a_forward_held_from_before_is_the_original_after_undo(net):
    """Whoever kept `model.forward` calls the original after `undo`, without a word and without a count."""
    made = tuned(net)
    held, want = net.forward, Net.forward(net, X)
    made.undo()
    assert torch.equal(held(X), want)


def test_untune_finds_everything(net):
    """`untune` undoes every unit in the object, and tuning again works."""
    install([entry(unit_of(m, p), lambda x: x) for p, m in net.named_children()])
    assert untune([net]) == ("0.first", "0.second")
    assert not any("forward" in vars(m) for m in net.modules())
    tuned(net)
    assert untune(net) == ("",)


def test_units_must_lie_apart(net):
    """Units inside each other, or one module twice, are refused, and nothing is changed."""
    inner = entry(unit_of(net.first, "first"), lambda x: x)
    with pytest.raises(UsageError, match="lies inside"):
        install([entry(unit_of(net), lambda x: x), inner])
    with pytest.raises(UsageError, match="one module"):
        install([inner, entry(unit_of(net.first, "again"), lambda x: x)])
    assert not any("forward" in vars(m) for m in net.modules())


def test_nothing_is_left_behind():
    """A tuned model that is dropped is freed, tuned or untuned; cycles of tuning leave no tensor and no dispatcher."""
    for undone in (False, True):
        module = Net().eval()
        made = tuned(module, weights=Weights.VALUES)
        module(X)
        if undone:
            made.undo()
        gone = weakref.ref(module)
        del made, module
        gc.collect()
        assert gone() is None
    module = Net().eval()

    def cycle() -> int:
        made = tuned(module, weights=Weights.VALUES)
        module(X)
        made.undo()
        del made
        gc.collect()
        return sum(isinstance(each, (torch.Tensor, Dispatcher)) for each in gc.get_objects())

    first = cycle()
    assert [cycle() for _ in range(5)] == [first] * 5
