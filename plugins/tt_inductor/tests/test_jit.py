"""Mode "jit": right where eager is right, compiled in the build, never silently stale."""

from __future__ import annotations

import dataclasses
import gc
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import tt_inductor
from torch import nn

import tt_core as tt

pytestmark = pytest.mark.real
Make = Callable[..., tuple[tt.Unit, tt.Calls]]
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _no_grad() -> Iterator[None]:
    """The core builds and calls without gradients."""
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def _built(pair: tuple[tt.Unit, tt.Calls], **options: Any) -> tt.Built:
    unit, calls = pair
    options = {"mode": "jit", **options}
    return tt_inductor.tt_build(unit=unit, calls=calls, device=CPU, options=options, limits=tt.Limits(seconds=600))


def _close(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 8)
        self.scale = 2.0

    def forward(self, x: torch.Tensor, shift: torch.Tensor | None = None, *, double: bool = False) -> torch.Tensor:
        y = self.second(torch.relu(self.first(x))) * self.scale
        y = y if shift is None else y + shift
        return y * 2 if double else y


@pytest.mark.parametrize("freezing", [False, True])
def test_results_and_claims(make: Make, compiles: list[int], freezing: bool) -> None:
    """One compile, eager's result, and weights claimed as what they are: read from the module, or baked in."""
    model, x = Mlp().eval(), torch.randn(4, 8)
    built = _built(make(model, tt.Call(x)), freezing=freezing)
    result = built.call(x)
    _close(result, model(x))
    assert len(compiles) == 1
    assert built.weights is (tt.Weights.VALUES if freezing else tt.Weights.LIVE)
    assert not result.is_inference()
    assert built.notes == ()
    assert built.covers is not None
    assert built.covers.leaves == ((4, 8),)


def test_weights_are_read_when_called(make: Make, compiles: list[int]) -> None:
    """Changed in place, through `.data`, replaced, or with the module that holds them: seen, without a compile."""
    model, x = Mlp().eval(), torch.randn(4, 8)
    built = _built(make(model, tt.Call(x)))
    count = len(compiles)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.first.weight.mul_(0.5)
        _close(built.call(x), model(x))
        model.first.weight.data = torch.randn(16, 8)
        _close(built.call(x), model(x))
        model.first.weight = nn.Parameter(torch.randn(16, 8))
        _close(built.call(x), model(x))
        model.second = nn.Linear(16, 8)
        _close(built.call(x), model(x))
    assert len(compiles) == count


def test_changed_behaviour_is_seen_and_said(make: Make, compiles: list[int]) -> None:
    """A scalar attribute, a hook or an inner `forward` that changed since the build: the call is handed back."""
    model, x = Mlp().eval(), torch.randn(4, 8)
    built = _built(make(model, tt.Call(x)))
    count = len(compiles)
    model.scale = 3.0
    with pytest.raises(tt.DeclinedError, match=r"tt\.refresh"):
        built.call(x)
    model.scale = 2.0
    _close(built.call(x), model(x))
    hook = model.first.register_forward_hook(lambda _module, _args, output: output * 0)
    with pytest.raises(tt.DeclinedError):
        built.call(x)
    hook.remove()
    _close(built.call(x), model(x))
    model.first.forward = lambda x: torch.zeros(*x.shape[:-1], 16)  # type: ignore[method-assign]
    with pytest.raises(tt.DeclinedError):
        built.call(x)
    assert len(compiles) == count


def test_inference_tensors_outside_of_inference_mode_are_handed_back(make: Make) -> None:
    """There is no program for them: the core hears of it, and counts."""
    model = Mlp().eval()
    built = _built(make(model, tt.Call(torch.randn(4, 8))))
    with torch.inference_mode():
        x = torch.randn(4, 8)
    with pytest.raises(tt.DeclinedError):
        built.call(x)


def test_every_spelling_is_one_program(make: Make, compiles: list[int]) -> None:
    """Positional, keyword, reordered and defaulted spellings hit the same program."""
    model, x, shift = Mlp().eval(), torch.randn(4, 8), torch.randn(8)
    built = _built(make(model, tt.Call(x, shift=shift)))
    expected = model(x, shift)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _close(built.call(x, shift), expected)
        _close(built.call(shift=shift, x=x), expected)
        _close(built.call(x, shift, double=False), expected)
    assert len(compiles) == 1


def test_inference_mode_and_gradients_on(make: Make, compiles: list[int]) -> None:
    """Callers in inference mode, with tensors made in it or before it, or with gradients on: no compile, no warning."""
    model, x = Mlp().eval(), torch.randn(4, 8)
    built = _built(make(model, tt.Call(x)))
    count = len(compiles)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with torch.inference_mode():
            _close(built.call(x), model(x))
            made = x.clone()
            _close(built.call(made), model(made))
        with torch.enable_grad():
            assert not built.call(x).requires_grad
    assert len(compiles) == count


def test_autocast_is_part_of_the_build(make: Make, compiles: list[int]) -> None:
    """Built for calls under autocast and called so: no compile, eager's dtype; without it, the call is handed back."""
    model, x = Mlp().eval(), torch.randn(4, 8)
    with torch.autocast("cpu", torch.bfloat16):
        pair = make(model, tt.Call(x))
    built = _built(pair)
    count = len(compiles)
    with warnings.catch_warnings(), torch.autocast("cpu", torch.bfloat16):
        warnings.simplefilter("error")
        result = built.call(x)
        assert result.dtype == torch.bfloat16
        torch.testing.assert_close(result, model(x), rtol=2e-2, atol=2e-2)
    with pytest.raises(tt.DeclinedError):
        built.call(x)
    assert len(compiles) == count


class Block(nn.Module):
    """One encoder block without dropout; a mask that shares the sequence axis."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out, self.norm = nn.Linear(16, 48), nn.Linear(16, 16), nn.LayerNorm(16)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        b, s, _ = x.shape
        q, k, v = self.qkv(x).view(b, s, 3, 2, 8).permute(2, 0, 3, 1, 4).unbind(0)
        y = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None, :])
        return self.norm(x + self.out(y.transpose(1, 2).reshape(b, s, 16)))


def test_fourteen_lengths_are_one_program(make: Make, compiles: list[int]) -> None:
    """Recorded at two lengths, called at fourteen: compiled in the build only, right at each."""
    model = Block().eval()

    def call(s: int) -> tt.Call:
        return tt.Call(torch.randn(2, s, 16), mask=torch.ones(2, s, dtype=torch.bool))

    built = _built(make(model, call(3), call(29)))
    count = len(compiles)
    assert count <= 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for s in range(3, 31, 2):
            one = call(s)
            _close(built.call(*one.args, **one.kwargs), model(*one.args, **one.kwargs))
    assert len(compiles) == count
    assert built.covers is not None
    assert isinstance(built.covers.leaves[0][1], tt.Axis)
    assert built.covers.leaves[0][1] == built.covers.leaves[1][1]


def test_a_batch_of_one_is_covered(make: Make, compiles: list[int]) -> None:
    """PyTorch compiles size 1 apart: a range that begins there has both programs after the build."""
    model = Mlp().eval()
    built = _built(make(model, tt.Call(torch.randn(1, 8)), tt.Call(torch.randn(6, 8))))
    count = len(compiles)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for n in range(1, 7):
            x = torch.randn(n, 8)
            _close(built.call(x), model(x))
    assert len(compiles) == count


def test_nothing_compiled_is_a_failure(make: Make) -> None:
    """An LSTM is skipped by Dynamo without a word: not installed as "inductor"."""
    with pytest.raises(tt.BuildRefusedError, match="nothing was compiled"):
        _built(make(nn.LSTM(4, 4).eval(), tt.Call(torch.randn(3, 2, 4))))


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        return x.sin() * self.seen


def test_a_unit_that_always_compiles_anew_is_refused(make: Make) -> None:
    """A Python counter in the module changes the program with every call."""
    with pytest.raises(tt.BuildRefusedError, match="compile anew"):
        _built(make(Counter().eval(), tt.Call(torch.randn(3))))


class Broken(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.sin() + 1
        torch._dynamo.graph_break()
        return y.cos() * 2


class BrokenInside(nn.Module):
    """A break in an inner frame, and work after it in the outer one."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Broken()

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.inner(x) + y.tanh()


def test_graph_breaks_are_noted(make: Make, compiles: list[int]) -> None:
    """A unit of two graphs works, and says so; `fullgraph` refuses it."""
    x = torch.randn(5)
    built = _built(make(Broken(), tt.Call(x)))
    assert built.notes == ("graph break: 2 graphs; 4 of 4 operators in compiled programs, the others in Python",)
    count = len(compiles)
    _close(built.call(x), Broken()(x))
    for _ in range(2):
        with pytest.raises(tt.DeclinedError, match="no program"):
            built.call(torch.randn(7))
    _close(built.call(x), Broken()(x))
    assert len(compiles) == count
    with pytest.raises(tt.BuildRefusedError, match="Dynamo cannot trace"):
        _built(make(Broken(), tt.Call(x)), fullgraph=True)


def test_a_part_that_does_not_fit_goes_on_as_in_eager(make: Make, compiles: list[int]) -> None:
    """Once a program of the call ran it cannot be handed back: one warning, and eager's result."""
    x, y = torch.randn(5), torch.randn(5)
    built = _built(make(BrokenInside(), tt.Call(x, y)))
    count = len(compiles)
    wide = torch.randn(3, 5)
    with pytest.warns(tt.FallbackWarning, match="in part"):
        _close(built.call(x, wide), BrokenInside()(x, wide))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _close(built.call(x, wide), BrokenInside()(x, wide))
        _close(built.call(x, y), BrokenInside()(x, y))
    assert len(compiles) == count


def test_a_unit_that_writes_is_never_handed_back_halfway(make: Make) -> None:
    """What Python did before the first program would be done twice."""
    x = torch.randn(5)
    built = _built(make(Broken(), tt.Call(x), writes_state=("seen",)))
    wide = torch.randn(7)
    with pytest.warns(tt.FallbackWarning, match="in part"):
        _close(built.call(wide), Broken()(wide))


def test_too_many_kinds_of_calls_without_a_program(make: Make) -> None:
    """Tracing each new kind in service has an end: then every call is handed back."""
    x = torch.randn(5)
    built = _built(make(Broken(), tt.Call(x)))
    for n in range(6, 24):
        with pytest.raises(tt.DeclinedError):
            built.call(torch.randn(n))
    with pytest.raises(tt.DeclinedError, match="16 kinds of calls"):
        built.call(x)


class Locked(nn.Module):
    """Dynamo does not enter a frame that takes a lock, but those that are called inside."""

    def __init__(self, turns: int) -> None:
        super().__init__()
        self.linear, self.lock, self.turns = nn.Linear(4, 4), threading.Lock(), turns

    def _act(self, x: torch.Tensor) -> torch.Tensor:
        return x.sin()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with self.lock:
            x = torch.relu(self.linear(x))
            for _ in range(self.turns):
                x = self._act(x)
        return x


def test_python_in_disguise_is_refused(make: Make) -> None:
    """Where graph breaks leave most operators to Python there is nothing that may be called compiled."""
    x = torch.randn(2, 4)
    with pytest.raises(tt.BuildRefusedError, match="graph breaks leave only 2 of 4 operators in compiled programs"):
        _built(make(Locked(2), tt.Call(x)))
    model = Locked(3)
    built = _built(make(model, tt.Call(x)))
    assert built.notes == ("graph break: 1 graph; 3 of 5 operators in compiled programs, the others in Python",)
    _close(built.call(x), model(x))


class Loop(nn.Module):
    """One compiled frame that runs six times: each run counts."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Broken() for _ in range(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def test_programs_count_as_often_as_they_run(make: Make) -> None:
    """Layers that share a compiled frame are no reason to refuse."""
    x = torch.randn(5)
    built = _built(make(Loop(), tt.Call(x)))
    assert "24 of 24 operators" in built.notes[0]
    _close(built.call(x), Loop()(x))


class Branch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.small, self.big = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.small(x) if x.shape[0] <= 2 else self.big(x).relu()


def test_a_branch_on_a_size_is_compiled_both_ways(make: Make, compiles: list[int]) -> None:
    """The smaller calls take a branch of their own, at the sizes that were recorded; the larger one covers the rest."""
    model = Branch().eval()
    built = _built(make(model, *(tt.Call(torch.randn(n, 4)) for n in (1, 2, 3, 5))))
    count = len(compiles)
    for n in (1, 2, 3, 4, 5):
        x = torch.randn(n, 4)
        _close(built.call(x), model(x))
    assert len(compiles) == count


def test_a_size_that_the_largest_call_fixes_is_refused(make: Make) -> None:
    """Every other size would have no program."""

    class Fixed(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.sin() if x.shape[0] == 5 else x.cos()

    with pytest.raises(tt.BuildRefusedError, match="one of the recorded sizes only"):
        _built(make(Fixed(), tt.Call(torch.randn(3, 4)), tt.Call(torch.randn(5, 4))))


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
    built = _built(make(Rich(), tt.Call({"a": a, "b": b}, r, p=p, q=q), non_tensors=True, aliases=True))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = built.call({"a": a, "b": b}, r, q=q, p=p)
    assert type(result) is Output
    assert result.name == "rich"
    assert result.extra["same"] is a
    assert result.extra["view"].data_ptr() == result.hidden.data_ptr()
    _close(result.hidden, Rich()({"a": a, "b": b}, r, p=p, q=q).hidden)


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
    built = _built(make(ours, call, writes_state=("rows",), writes_inputs=True))
    assert torch.equal(call.args[0], before)
    assert torch.equal(ours.rows, theirs.rows)
    with torch.inference_mode(inference), torch.no_grad():
        for row in (2, 0, 2):
            x = torch.randn(3)
            y = x.clone()
            _close(built.call(x, torch.tensor([row])), theirs(y, torch.tensor([row])))
            assert torch.equal(x, y)
        assert torch.equal(ours.rows, theirs.rows)


class Noisy(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(x + torch.rand_like(x), 0.5, training=True)


def test_random_numbers_are_those_of_eager(make: Make) -> None:
    """The same seed gives the same numbers."""
    x = torch.randn(64)
    built = _built(make(Noisy(), tt.Call(x), random=True))
    torch.manual_seed(5)
    actual = built.call(x)
    torch.manual_seed(5)
    _close(actual, Noisy()(x))


def test_threads(make: Make) -> None:
    """Four threads at once get their own results."""
    model = Mlp().eval()
    built = _built(make(model, tt.Call(torch.randn(4, 8))))
    inputs = [torch.randn(4, 8) for _ in range(4)]
    expected = [model(x) for x in inputs]
    wrong: list[int] = []

    def work(index: int) -> None:
        with torch.no_grad():
            results = [built.call(inputs[index]) for _ in range(100)]
        wrong.extend(index for result in results if not torch.allclose(result, expected[index], atol=1e-5))

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_many_units_of_one_class(make: Make) -> None:
    """More units of a class than Dynamo's limit of 8: every one keeps its own program."""
    models = [Mlp().eval() for _ in range(10)]
    x = torch.randn(4, 8)
    builts = [_built(make(model, tt.Call(x))) for model in models]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for model, built in zip(models, builts, strict=True):
            _close(built.call(x), model(x))


def test_nothing_is_left_behind(make: Make, capfd: pytest.CaptureFixture[str]) -> None:
    """The module, Dynamo's and Inductor's configuration and other people's programs are as before; no output."""
    import torch._dynamo
    import torch._inductor.config

    theirs = torch.compile(lambda x: x.sin(), backend="eager")
    theirs(torch.randn(2))
    model, x = Mlp().eval(), torch.randn(4, 8)
    before = {name: dict(vars(module)) for name, module in model.named_modules()}
    configs = torch._dynamo.config.get_config_copy(), torch._inductor.config.get_config_copy()
    built = _built(make(model, tt.Call(x)))
    built.close()
    assert (torch._dynamo.config.get_config_copy(), torch._inductor.config.get_config_copy()) == configs
    after = {name: dict(vars(module)) for name, module in model.named_modules()}
    assert after == before
    assert theirs(torch.randn(2)).shape == (2,)
    assert capfd.readouterr() == ("", "")
    with pytest.raises(tt.TTError, match="closed"):
        built.call(x)
    gone = weakref.ref(model)
    del model, before, after
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"frezing": True}, "unknown option"), ({"freezing": 1}, "is not a bool"), ({"mode": "magic"}, "is unknown")],
)
def test_wrong_options_are_refused(make: Make, options: dict[str, Any], reason: str) -> None:
    """A misspelt option, one of another type, and an unknown mode each say what is known."""
    with pytest.raises(tt.BuildRefusedError, match=reason):
        _built(make(Mlp(), tt.Call(torch.randn(4, 8))), **options)
