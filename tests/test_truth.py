"""The float64 run: what it gives, what it leaves alone, and when there is none."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional
from transformers import LlamaConfig, LlamaModel, T5Config, T5EncoderModel

from tt_core.samples import observe
from tt_core.truth import truth_of
from tt_core.values import Call, Observation, Unit


def run(module, *args, **kwargs):
    """Eager's observation and the truth of one call."""
    unit = Unit(path="unit", module=module, forward=module.forward)
    call = Call(*args, **kwargs)
    expected = observe(module.forward, unit, [call], seed=0)[0]
    return expected, truth_of(unit, call, expected)


def distance(expected, truth):
    return float((expected.result.double() - truth.result).norm() / truth.result.norm())


def contents(module):
    tensors = [*module.parameters(), *module.buffers()]
    return [(t, t.detach().clone(), t._version) for t in tensors], dict(vars(module))


def unchanged(module, before):
    now, attributes = contents(module)
    same = all(a[0] is b[0] and torch.equal(a[1], b[1]) and a[2] == b[2] for a, b in zip(before[0], now, strict=True))
    return same and attributes == before[1]


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


MODULES = {
    "mlp": (lambda: nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)), (5, 8)),
    "conv": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()), (2, 3, 8, 8)),
    "encoder": (lambda: nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), (2, 5, 16)),
    "gru": (lambda: First(nn.GRU(8, 6, batch_first=True)), (2, 5, 8)),
    "lstm": (lambda: First(nn.LSTM(8, 6, 2, batch_first=True)), (2, 5, 8)),
    "weight norm": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(8, 4)), (5, 8)),
}


class First(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", MODULES)
def test_truth_is_near_and_in_float64(name, dtype):
    """Eager is within its precision's rounding of a float64 result, and nothing of the module or RNG is changed."""
    make, size = MODULES[name]
    module = make().eval().to(dtype)
    x = torch.randn(size).to(dtype)
    before, drawn = contents(module), torch.random.get_rng_state()

    expected, truth = run(module, x)

    assert truth is not None
    assert truth.result.dtype == torch.float64
    assert truth.inputs_after is None
    assert 0 < distance(expected, truth) < 4 * torch.finfo(dtype).eps
    assert unchanged(module, before)
    assert torch.equal(drawn, torch.random.get_rng_state())
    assert torch.get_default_dtype() == torch.float32


def test_truth_of_transformers_models():
    """Models that compute in float32 inside, with masks and integer inputs, have a truth."""
    small = {"vocab_size": 50, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2}
    llama = LlamaModel(LlamaConfig(hidden_size=16, intermediate_size=32, **small)).eval()
    t5 = T5EncoderModel(T5Config(vocab_size=50, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2)).eval()
    ids = torch.randint(0, 50, (2, 7))
    for model, extra in ((llama, {"use_cache": False}), (t5, {})):
        for dtype, limit in ((torch.float32, 1e-6), (torch.bfloat16, 3e-2)):
            expected, truth = run(model.to(dtype), ids, attention_mask=torch.ones_like(ids), **extra)
            assert truth is not None
            want, true = expected.result.last_hidden_state, truth.result.last_hidden_state
            assert true.dtype == torch.float64
            assert float((want.double() - true).norm() / true.norm()) < limit


def test_float64_units_have_a_truth():
    """A float64 unit is its own truth."""
    expected, truth = run(nn.Linear(8, 4).double(), torch.randn(3, 8).double())

    assert torch.equal(expected.result, truth.result)


def test_complex_results():
    """complex64 becomes complex128."""

    class Spectrum(nn.Module):
        def __init__(self):
            super().__init__()
            self.filter = nn.Parameter(torch.randn(9, dtype=torch.complex64))

        def forward(self, x):
            return torch.fft.rfft(x) * self.filter

    _, truth = run(Spectrum(), torch.randn(3, 16))

    assert truth.result.dtype == torch.complex128


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(10, 6), nn.Linear(6, 10, bias=False)
        self.head.weight = self.embed.weight
        self.same = None

    def forward(self, ids):
        assert self.head.weight is self.embed.weight
        return self.head(self.embed(ids))


def test_tied_weights_stay_tied():
    """Tied parameters are one tensor in the float64 run, too."""
    expected, truth = run(Tied(), torch.arange(10))

    assert distance(expected, truth) < 1e-6


class Stateful(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("cache", torch.zeros(4, 3))
        self.register_buffer("position", torch.zeros((), dtype=torch.long))
        self.lin = nn.Linear(3, 3)
        self.calls, self.last = 0, None

    def forward(self, x):
        self.cache[self.position] = self.lin(x)
        self.position += 1
        self.calls += 1
        self.last = self.cache * 2
        x.mul_(2)
        return self.cache.sum(0)


def test_writes_are_part_of_the_truth():
    """Inputs and state after the call are in the truth, in float64; the module and the recorded input are as before."""
    module, x = Stateful(), torch.randn(3)
    given, before = x.clone(), contents(module)

    expected, truth = run(module, x)

    assert set(truth.state_after) == set(expected.state_after) == {"cache", "position", "calls", "last"}
    assert truth.state_after["cache"].dtype == torch.float64
    assert torch.allclose(truth.state_after["cache"].float(), expected.state_after["cache"])
    assert truth.state_after["calls"] == 1
    assert torch.equal(truth.inputs_after["x"], given.double() * 2)
    assert torch.equal(x, given)
    assert module.calls == 0
    assert module.last is None
    assert unchanged(module, before)


def test_views_of_one_input_stay_views():
    """Two inputs that share memory share it in the float64 run."""

    class Overlap(nn.Module):
        def forward(self, x, y):
            x.add_(1)
            return y * 2

    base = torch.zeros(6)
    expected, truth = run(Overlap(), base[:4], base[2:])

    assert torch.equal(expected.result, torch.tensor([2.0, 2.0, 0.0, 0.0]))
    assert torch.equal(truth.result, expected.result.double())


class Mixed(nn.Module):
    """Converts to float32 by itself, in every spelling, and keeps a tensor that is not registered."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)
        self.table = torch.randn(6, 6)

    def forward(self, x):
        y = self.a(x.float()).to(torch.float32).type(torch.float32)
        y = y @ self.table + torch.zeros(6, dtype=torch.float32)
        total = torch.zeros(6)
        total += self.b(y).sum(0)
        return total + torch.ones(6)


def test_float32_inside_is_widened():
    """Where forward insists on float32, the float64 run goes on in float64, without touching the module."""
    module = Mixed()
    table = module.table
    expected, truth = run(module, torch.randn(20, 6))

    assert truth.result.dtype == torch.float64
    assert 0 < distance(expected, truth) < 1e-6
    assert module.table is table
    assert table.dtype == torch.float32


def test_hooks_around_the_unit_do_not_run():
    """The unit's own forward runs, as a built's would: hooks are outside it."""
    module = nn.Linear(4, 4)
    module.register_forward_hook(lambda *_: pytest.fail("a hook ran"))
    module.register_forward_pre_hook(lambda *_: pytest.fail("a hook ran"))

    assert run(module, torch.randn(8, 4))[1] is not None


class Fails(nn.Module):
    """Everything that has no truth, by name."""

    def __init__(self, kind):
        super().__init__()
        self.kind, self.lin = kind, nn.Linear(8, 8)

    def forward(self, x):
        y = self.lin(x)
        wide = x.dtype == torch.float64
        if self.kind == "raises" and wide:
            raise RuntimeError("only float32 here")
        if self.kind == "random":
            return functional.dropout(y, 0.5, training=True)
        if self.kind == "numpy" and wide:
            raise TypeError
        if self.kind == "overflow":
            return y / (1e-30 if wide else 1.0) * (1e300 if wide else 1.0)
        if self.kind == "structure" and wide:
            return (y,)
        if self.kind == "shape" and wide:
            return y[:1]
        if self.kind == "branch" and wide:
            return y.flip(0)
        return y


@pytest.mark.parametrize("kind", ["raises", "random", "numpy", "overflow", "structure", "shape", "branch"])
def test_no_truth(kind):
    """None, and no exception, where float64 cannot run or did something else than eager."""
    module = Fails(kind)
    before = contents(module)

    assert run(module, torch.randn(8, 8))[1] is None
    assert unchanged(module, before)


def test_interrupt_passes():
    """Ctrl-C during the float64 run is the user's; the module is as before."""

    class Slow(nn.Linear):
        def forward(self, x):
            if x.dtype == torch.float64:
                raise KeyboardInterrupt
            return super().forward(x)

    module = Slow(4, 4)
    before = contents(module)
    with pytest.raises(KeyboardInterrupt):
        run(module, torch.randn(8, 4))
    assert unchanged(module, before)


def test_scripted_modules():
    """A TorchScript module has a truth too, and keeps its float32 weights."""
    with pytest.warns(DeprecationWarning, match="script"):
        module = torch.jit.script(nn.Linear(4, 4))
    weight, x = module.weight.detach().clone(), torch.randn(8, 4)
    expected = Observation(result=module(x).detach())

    truth = truth_of(Unit(path="", module=module, forward=module.forward), Call(x), expected)

    assert distance(expected, truth) < 1e-6
    assert torch.equal(module.weight, weight)


def test_other_home(monkeypatch):
    """Where the device has no float64, the run is on CPU copies, integer inputs and all."""
    monkeypatch.setattr("tt_core.truth._homes", lambda *_: [torch.device("cpu")])

    expected, truth = run(Tied(), torch.arange(10))

    assert truth.result.device.type == "cpu"
    assert distance(expected, truth) < 1e-6


def test_mask_values_are_not_differences():
    """finfo.min of float64 and of float32 are the same mask."""

    class Masked(nn.Module):
        def forward(self, x):
            return x.masked_fill(x > 0, torch.finfo(x.dtype).min)

    expected, truth = run(Masked(), torch.randn(5, 8))

    assert truth is not None
    assert (expected.result == torch.finfo(torch.float32).min).any()
