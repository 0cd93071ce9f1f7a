"""Mode "jit": right where eager is right, compiled in the build, never silently stale."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import pytest
import torch
from jit_units import Make, Mlp, assert_near, build_jit
from torch import nn
from torch._dynamo.utils import counters

import tt_core as tt

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("no_grad", "mkl")]


@pytest.mark.parametrize("freezing", [False, True])
def test_results_and_claims(make: Make, compiles: list[int], freezing: bool) -> None:
    """One compile, eager's result, and weights claimed as what they are: read from the module, or baked in."""
    model, x = Mlp().eval(), torch.randn(4, 8)
    built = build_jit(make(model, tt.Call(x)), freezing=freezing)
    result = built.call(x)
    assert_near(result, model(x))
    assert len(compiles) == 1
    assert built.weights is (tt.Weights.VALUES if freezing else tt.Weights.LIVE)
    assert not result.is_inference()
    assert built.notes == ()
    assert built.covers is not None
    assert built.covers.leaves == ((4, 8),)


def test_weights_are_read_when_called(make: Make, compiles: list[int]) -> None:
    """Changed in place, through `.data`, replaced, or with the module that holds them: seen, without a compile."""
    model, x = Mlp().eval(), torch.randn(4, 8)
    built = build_jit(make(model, tt.Call(x)))
    count = len(compiles)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.first.weight.mul_(0.5)
        assert_near(built.call(x), model(x))
        model.first.weight.data = torch.randn(16, 8)
        assert_near(built.call(x), model(x))
        model.first.weight = nn.Parameter(torch.randn(16, 8))
        assert_near(built.call(x), model(x))
        model.second = nn.Linear(16, 8)
        assert_near(built.call(x), model(x))
    assert len(compiles) == count


def test_changed_behaviour_is_seen_and_said(make: Make, compiles: list[int]) -> None:
    """A scalar attribute, a hook or an inner `forward` that changed since the build: the call is handed back."""
    model, x = Mlp().eval(), torch.randn(4, 8)
    built = build_jit(make(model, tt.Call(x)))
    count = len(compiles)
    model.scale = 3.0
    with pytest.raises(tt.DeclinedError, match=r"tt\.refresh"):
        built.call(x)
    model.scale = 2.0
    assert_near(built.call(x), model(x))
    hook = model.first.register_forward_hook(lambda _module, _args, output: output * 0)
    with pytest.raises(tt.DeclinedError):
        built.call(x)
    hook.remove()
    assert_near(built.call(x), model(x))
    model.first.forward = lambda x: torch.zeros(*x.shape[:-1], 16)  # type: ignore[method-assign]
    with pytest.raises(tt.DeclinedError):
        built.call(x)
    assert len(compiles) == count


def test_inference_tensors_outside_of_inference_mode_are_handed_back(make: Make) -> None:
    """There is no program for them: the core hears of it, and counts."""
    model = Mlp().eval()
    built = build_jit(make(model, tt.Call(torch.randn(4, 8))))
    with torch.inference_mode():
        x = torch.randn(4, 8)
    with pytest.raises(tt.DeclinedError):
        built.call(x)


def test_every_spelling_is_one_program(make: Make, compiles: list[int]) -> None:
    """Positional, keyword, reordered and defaulted spellings hit the same program."""
    model, x, shift = Mlp().eval(), torch.randn(4, 8), torch.randn(8)
    built = build_jit(make(model, tt.Call(x, shift=shift)))
    expected = model(x, shift)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_near(built.call(x, shift), expected)
        assert_near(built.call(shift=shift, x=x), expected)
        assert_near(built.call(x, shift, double=False), expected)
    assert len(compiles) == 1


@pytest.mark.parametrize("freezing", [False, True])
def test_inference_mode_and_gradients_on(make: Make, compiles: list[int], freezing: bool) -> None:
    """Callers in inference mode, with tensors made in it or before it, or with gradients on: no compile, no warning."""
    model, x = Mlp().eval(), torch.randn(4, 8)
    before = counters["stats"]["unique_graphs"]
    built = build_jit(make(model, tt.Call(x)), freezing=freezing)
    count = len(compiles)
    assert counters["stats"]["unique_graphs"] - before == (1 if freezing else 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with torch.inference_mode():
            assert_near(built.call(x), model(x))
            made = x.clone()
            assert_near(built.call(made), model(made))
        with torch.enable_grad():
            assert not built.call(x).requires_grad
    assert len(compiles) == count


def test_autocast_is_part_of_the_build(make: Make, compiles: list[int]) -> None:
    """Built for calls under autocast and called so: no compile, eager's dtype; without it, the call is handed back."""
    model, x = Mlp().eval(), torch.randn(4, 8)
    with torch.autocast("cpu", torch.bfloat16):
        pair = make(model, tt.Call(x))
    built = build_jit(pair)
    count = len(compiles)
    with warnings.catch_warnings(), torch.autocast("cpu", torch.bfloat16):
        warnings.simplefilter("error")
        result = built.call(x)
        assert result.dtype == torch.bfloat16
        torch.testing.assert_close(result, model(x), rtol=2e-2, atol=2e-2)
    with pytest.raises(tt.DeclinedError):
        built.call(x)
    assert len(compiles) == count


@dataclasses.dataclass
class Output:
    hidden: torch.Tensor
    name: str
    extra: dict[str, torch.Tensor]


class Rich(nn.Module):
    def forward(self, batch: dict[str, torch.Tensor], /, *rest: torch.Tensor, **more: torch.Tensor) -> Output:
        hidden = batch["a"] - batch["b"] + sum(rest) + more["p"] * 2 - more["q"]
        return Output(hidden=hidden, name="rich", extra={"view": hidden[0], "same": batch["a"]})


def test_rich_arguments_and_results(make: Make) -> None:
    """Dicts, `*args`, `**kwargs` in another order; a dataclass with a string, a view and an input comes back."""
    a, b, r, p, q = torch.randn(5, 2, 3)
    built = build_jit(make(Rich(), tt.Call({"a": a, "b": b}, r, p=p, q=q), non_tensors=True, aliases=True))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = built.call({"a": a, "b": b}, r, q=q, p=p)
    assert type(result) is Output
    assert result.name == "rich"
    assert result.extra["same"] is a
    assert result.extra["view"].data_ptr() == result.hidden.data_ptr()
    assert_near(result.hidden, Rich()({"a": a, "b": b}, r, p=p, q=q).hidden)


class Cache(nn.Module):
    """Writes one row of a buffer and one of its inputs."""

    rows: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(4, 3), persistent=False)

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        self.rows.index_copy_(0, at, x[None])
        x.add_(1)
        return self.rows.sum(0)


@pytest.mark.parametrize("inference", [False, True])
def test_writes_to_state_and_inputs(make: Make, inference: bool) -> None:
    """A cache in a buffer and an input that is changed in place end as in eager, call after call."""
    ours, theirs = Cache(), Cache()
    call = tt.Call(torch.randn(3), torch.tensor([0]))
    before = call.args[0].clone()
    built = build_jit(make(ours, call, writes_state=("rows",), writes_inputs=True))
    assert torch.equal(call.args[0], before)
    assert torch.equal(ours.rows, theirs.rows)
    with torch.inference_mode(inference), torch.no_grad():
        for row in (2, 0, 2):
            x = torch.randn(3)
            y = x.clone()
            assert_near(built.call(x, torch.tensor([row])), theirs(y, torch.tensor([row])))
            assert torch.equal(x, y)
        assert torch.equal(ours.rows, theirs.rows)


class Noisy(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(x + torch.rand_like(x), 0.5, training=True)


def test_random_numbers_are_those_of_eager(make: Make) -> None:
    """The same seed gives the same numbers."""
    x = torch.randn(64)
    built = build_jit(make(Noisy(), tt.Call(x), random=True))
    torch.manual_seed(5)
    actual = built.call(x)
    torch.manual_seed(5)
    assert_near(actual, Noisy()(x))


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"frezing": True}, "unknown option"), ({"freezing": 1}, "is not a bool"), ({"mode": "magic"}, "is unknown")],
)
def test_wrong_options_are_refused(make: Make, options: dict[str, Any], reason: str) -> None:
    """A misspelt option, one of another type, and an unknown mode each say what is known."""
    with pytest.raises(tt.BuildRefusedError, match=reason):
        build_jit(make(Mlp(), tt.Call(torch.randn(4, 8))), **options)
