"""Small units, right candidates that compute in another order, and one observed run of both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import pytest
import torch
from torch import nn
from torch.nn import functional

from tt_core import trees
from tt_core.check import compare
from tt_core.state import kept, seed
from tt_core.truth import truth_of
from tt_core.values import Call, Facts, Observation, Tolerance, Unit, Verdict


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(24, 48), nn.Linear(48, 16)

    def forward(self, x):
        return self.b(functional.gelu(self.a(x)))

    def other(self, x):
        """The same sums in another order: the inner axis reversed, and cut in two."""
        order = torch.arange(47, -1, -1)
        h = functional.gelu(functional.linear(x.flip(-1), self.a.weight.flip(-1), self.a.bias))[..., order]
        w = self.b.weight[:, order]
        return functional.linear(h[..., :20], w[:, :20]) + functional.linear(h[..., 20:], w[:, 20:]) + self.b.bias


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.lin = nn.LayerNorm(24), nn.Linear(24, 16)

    def forward(self, x):
        return {"y": self.lin(self.norm(x)), "n": x.shape[0]}

    def other(self, x):
        """LayerNorm written out, in the precision of a fused kernel (float32 inside half)."""
        wide = x.float() if x.dtype in {torch.float16, torch.bfloat16} else x
        centred = wide - wide.mean(-1, keepdim=True)
        normed = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + self.norm.eps)
        return {"y": self.lin((normed * self.norm.weight + self.norm.bias).to(x.dtype)), "n": x.shape[0]}


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(24, 72), nn.Linear(24, 24)

    def _heads(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 4, 6)).permute(2, 0, 3, 1, 4)
        return q, k, v

    def forward(self, x):
        q, k, v = self._heads(x)
        mixed = torch.softmax(q @ k.mT * 6**-0.5, -1) @ v
        return self.out(mixed.transpose(1, 2).flatten(2)), k

    def other(self, x):
        q, k, v = self._heads(x)
        mixed = functional.scaled_dot_product_attention(q, k, v)
        return self.out(mixed.transpose(1, 2).flatten(2)), k.contiguous()


class Conv(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        with torch.no_grad():
            self.norm.running_mean.uniform_(-1, 1)
            self.norm.running_var.uniform_(0.5, 2)
        self.eval()

    def forward(self, x):
        return functional.relu(self.norm(self.conv(x)))

    def other(self, x):
        """The norm folded into the convolution, the convolution as a matrix product."""
        scale = self.norm.weight * torch.rsqrt(self.norm.running_var + self.norm.eps)
        weight = (self.conv.weight * scale[:, None, None, None]).flatten(1)
        bias = (self.conv.bias - self.norm.running_mean) * scale + self.norm.bias
        columns = functional.unfold(x, 3, padding=1)
        return functional.relu(weight @ columns + bias[:, None]).unflatten(-1, x.shape[-2:])


SIZES = {Mlp: (24,), Normed: (5, 24), Attention: (7, 24), Conv: (3, 6, 6)}


@attrs.frozen
class Trial:
    """A unit with its calls, eager's observations and their truth."""

    unit: Unit
    calls: tuple[Call, ...]
    expected: tuple[Observation, ...]
    truth: tuple[Observation | None, ...]

    def verdict(self, candidate: Callable[..., Any], tolerance: Tolerance | None = None, **facts: Any) -> Verdict:
        actual = observed(candidate, self.unit.module, self.calls)
        return compare(Facts(**facts), self.expected, actual, self.truth, tolerance or Tolerance())


def observed(run: Callable[..., Any], module: nn.Module, calls: Sequence[Call]) -> tuple[Observation, ...]:
    """What each call does, each from the state before; results are read after the last call ran."""
    held = []
    for call in calls:
        args, kwargs = trees.replica((call.args, call.kwargs))
        with torch.no_grad(), kept(module) as before:
            seed(0)
            result = run(*args, **kwargs)
            state = trees.replica(dict(before.changed()))
        given, after = trees.tensors((call.args, call.kwargs)), trees.tensors((args, kwargs))
        written = not all(torch.equal(a, b) for a, b in zip(given, after, strict=True))
        held.append((result, {"x": args[0]} if written else None, state))
    return tuple(
        Observation(result=trees.replica(result), inputs_after=inputs, state_after=state)
        for result, inputs, state in held
    )


def trial_of(module: nn.Module, *calls: Call) -> Trial:
    unit = Unit(path="unit", module=module, forward=module.forward)
    expected = observed(module.forward, module, calls)
    truth = tuple(truth_of(unit, call, want) for call, want in zip(calls, expected, strict=True))
    return Trial(unit, calls, expected, truth)


@pytest.fixture(name="trial_of", scope="session")
def _trial_of():
    return trial_of


@pytest.fixture(name="unit_trial", scope="session")
def _unit_trial():
    """Makes the trial of one of the small units, at batches 2, 3 and 5."""
    made: dict[Any, Trial] = {}

    def make(kind: type[nn.Module], dtype: torch.dtype = torch.float32) -> Trial:
        if (kind, dtype) not in made:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(7)
                module = kind().to(dtype)
                calls = [Call(torch.randn(batch, *SIZES[kind]).to(dtype)) for batch in (2, 3, 5)]
            made[kind, dtype] = trial_of(module, *calls)
        return made[kind, dtype]

    return make


@pytest.fixture(name="unit_kinds", scope="session")
def _unit_kinds():
    return {kind.__name__.lower(): kind for kind in SIZES}
