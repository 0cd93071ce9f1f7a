"""Claims about weights and sizes are tested by themselves: results of recorded calls do not show them."""

from __future__ import annotations

import copy
import inspect

import pytest
import torch
from torch import nn

from tt_core.callkey import evidence, key_of, tensors_of
from tt_core.check import covers_probe, stale_after_write
from tt_core.values import Axis, Built, Call, Calls, Facts, Shapes, Unit, Weights


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin, self.norm = nn.Linear(6, 6), nn.BatchNorm1d(6)
        self.eval()

    def forward(self, x):
        return self.norm(self.lin(x))


def unit_of(module):
    return Unit(path="unit", module=module, forward=module.forward)


def bits(module):
    return [(p.detach().clone(), p._version, p.data_ptr()) for p in (*module.parameters(), *module.buffers())]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_live_weights_pass(dtype):
    """A built that reads the module, in another order of operations, is not stale; the module is as it was."""
    torch.manual_seed(0)
    module = Block().to(dtype)
    before = bits(module)
    call = Call(torch.randn(5, 6).to(dtype))

    def other(x):
        y = nn.functional.linear(x.flip(-1), module.lin.weight.flip(-1)) + module.lin.bias
        return module.norm(y)

    for run in (module.forward, other):
        assert stale_after_write(unit_of(module), Built(call=run, weights=Weights.STORAGE), call).ok
    for (old, version, address), (new, version_now, address_now) in zip(before, bits(module), strict=True):
        assert torch.equal(old, new)
        assert version == version_now
        assert address == address_now


@pytest.mark.parametrize("baked", ["all", "lin.bias", "norm.running_var"])
def test_baked_weights_are_stale(baked):
    """One baked tensor among live ones is enough, buffers count too, and the place is named."""
    torch.manual_seed(0)
    module = Block()
    frozen = copy.deepcopy(module)
    if baked != "all":
        for name, value in (*module.named_parameters(), *module.named_buffers()):
            if name != baked:
                owner = frozen.get_submodule(name.rpartition(".")[0])
                (owner._parameters if name in dict(module.named_parameters()) else owner._buffers)[
                    name.rpartition(".")[2]
                ] = value
    built = Built(call=frozen.forward, weights=Weights.LIVE)

    verdict = stale_after_write(unit_of(module), built, Call(torch.randn(5, 6)))

    assert not verdict.ok
    assert verdict.reason.startswith("stale after the weights were written in place")
    assert verdict.where.startswith("output[")


def test_baked_values_are_claimed():
    """A built that says its values are baked in is a guard's business; so is a unit without weights."""
    module, call = Block(), Call(torch.randn(5, 6))
    frozen = copy.deepcopy(module)

    assert stale_after_write(unit_of(module), Built(call=frozen.forward, weights=Weights.VALUES), call).ok
    assert stale_after_write(unit_of(nn.ReLU()), Built(call=torch.relu, weights=Weights.LIVE), call).compared == 0


def test_weights_come_back_when_a_built_raises():
    """A built that raises during the probe leaves the module as it was."""
    module = Block()
    before = [p.detach().clone() for p in module.parameters()]
    calls = []

    def raises_later(x):
        calls.append(x)
        if len(calls) > 1:
            raise RuntimeError("later")
        return module.forward(x)

    with pytest.raises(RuntimeError, match="later"):
        stale_after_write(unit_of(module), Built(call=raises_later, weights=Weights.LIVE), Call(torch.randn(5, 6)))
    assert all(torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True))


def add(x, y, scale=2.0):
    return x + y * scale


def calls_of(*pairs):
    calls = [Call(torch.randn(*a), y=torch.randn(*b)) for a, b in pairs]
    sizes = [tuple(tuple(t.shape) for t in tensors_of(add, call)) for call in calls]
    key = key_of(add, calls[0], training=False)
    return Calls(key=key, shapes=evidence(sizes), samples=(), seen=len(calls), facts=Facts())


CALLS = (((2, 4), (2, 4)), ((5, 4), (5, 4)))


def covered(*leaves):
    return Built(call=add, covers=Shapes(leaves=leaves))


def moving(symbol, lo=2, hi=5):
    return Axis(lo=lo, hi=hi, symbol=symbol)


def test_covers_within_the_evidence():
    """What was recorded, or less of it, may be covered; so may everything, by a built that says so."""
    calls = calls_of(*CALLS)

    assert covers_probe(calls, Built(call=add, covers=calls.shapes)).ok
    assert covers_probe(calls, Built(call=add, covers=None)).ok
    assert covers_probe(calls, covered((moving("n", 3, 4), 4), (moving("n", 3, 4), 4))).ok
    assert covers_probe(calls, covered((5, 4), (5, 4))).ok


@pytest.mark.parametrize(
    ("leaves", "where"),
    [
        (((moving("a"), 4), (moving("b"), 4)), "input['y'], axis 0"),
        (((moving("a"), 4), (3, 4)), "input['y'], axis 0"),
        (((5, 4), (2, 4)), "input['y'], axis 0"),
        (((moving("a", 1, 5), 4), (moving("a", 1, 5), 4)), "input['x'], axis 0"),
        (((moving("a", 2, 64), 4), (moving("a", 2, 64), 4)), "input['x'], axis 0"),
        (((moving("a"), moving("c", 4, 8)), (moving("a"), 4)), "input['x'], axis 1"),
        (((moving("a"), 4), (moving("a"), 5)), "input['y'], axis 1"),
        (((moving("a"), 4),), "covers"),
        (((moving("a"), 4), (moving("a"), 4, 1)), "covers"),
    ],
)
def test_covers_beyond_the_evidence(leaves, where):
    """Free axes that were always equal, sizes outside the recorded range and other ranks are refused by name."""
    verdict = covers_probe(calls_of(*CALLS), covered(*leaves))

    assert not verdict.ok
    assert verdict.where == where


def test_signature_of_the_fixture():
    """The names in `where` are the parameters' own."""
    assert list(inspect.signature(add).parameters) == ["x", "y", "scale"]
