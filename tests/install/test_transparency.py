"""The model stays the user's: what PyTorch users do with a model works on a tuned one as before."""

from __future__ import annotations

import copy
import functools
import inspect
import io
import multiprocessing
import pickle
import warnings
from typing import Any

import pytest
import torch
from torch import nn

from tt_core import callkey
from tt_core.errors import FallbackWarning
from tt_core.install import Dispatcher, Entry, install, stats, untune
from tt_core.values import Built, Call, Candidate, Facts, Unit, Weights

X = torch.linspace(-1, 1, 8).reshape(2, 4)


class Net(nn.Module):
    """A parent with a tuned child and an untuned one."""

    def __init__(self):
        super().__init__()
        self.body, self.head = Body(), nn.Linear(4, 4)

    def forward(self, x):
        return self.head(self.body(x))


class Body(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.register_buffer("shift", torch.ones(4))

    def forward(self, x, *, scale: float = 1.0):
        """The body's own words."""
        return self.lin(x) * scale + self.shift


class Built10:
    """A fake built: eager's result plus 10, so that a hit can be told from a fall."""

    def __init__(self, forward):
        self.forward = forward

    def __call__(self, *args, **kwargs):
        return self.forward(*args, **kwargs) + 10


def tune(module: nn.Module, weights: Weights = Weights.LIVE, path: str = "body") -> None:
    unit = Unit(path=path, module=module, forward=module.forward)
    key = callkey.key_of(unit.forward, Call(X), training=module.training)
    assert isinstance(key, callkey.CallKey)
    built = Built(call=Built10(unit.forward), weights=weights)
    install([Entry(unit=unit, key=key, built=built, covers=None, facts=Facts(), candidate=Candidate.of("fake"))])
    stats(module, hits=True)


def tuned(weights: Weights = Weights.VALUES) -> tuple[Net, Net]:
    """A net with its body tuned, and an untuned twin."""
    torch.manual_seed(0)
    net = Net().eval()
    twin = copy.deepcopy(net)
    tune(net.body, weights)
    return net, twin


def served(net: nn.Module, twin: nn.Module, x: torch.Tensor = X) -> bool:
    """Whether the built answered; the answer must be right either way."""
    body, head = twin.body, twin.head
    got = net(x)
    if torch.allclose(got, head(body(x) + 10)):
        return True
    torch.testing.assert_close(got, twin(x))
    return False


def plain(model: nn.Module) -> bool:
    """Whether nothing of ours is left in a copy."""
    return not any(isinstance(vars(m).get("forward"), Dispatcher) for m in model.modules())


@pytest.fixture(autouse=True)
def _no_grad():
    with torch.no_grad():
        yield


def test_deepcopy():
    """A deep copy is a plain model on its own weights, the original stays tuned."""
    net, twin = tuned()
    made = copy.deepcopy(net)
    assert plain(made)
    assert made.body.forward.__self__ is made.body
    torch.testing.assert_close(made(X), twin(X))
    made.body.lin.weight.zero_()
    assert served(net, twin)


def test_deepcopy_of_the_unit_alone():
    """The same when the root itself is the unit."""
    body = Body().eval()
    want = body(X)
    tune(body, path="")
    made = copy.deepcopy(body)
    assert plain(made)
    torch.testing.assert_close(made(X), want)
    torch.testing.assert_close(body(X), want + 10)


def test_copy_copy_shares_the_dispatcher():
    """Documented: a shallow copy shares parameters and dispatcher; untuning the copy frees the copy alone."""
    net, twin = tuned()
    made = copy.copy(net.body)
    torch.testing.assert_close(made(X), twin.body(X) + 10)
    assert stats(made) == {}
    assert untune(made) == ("",)
    torch.testing.assert_close(made(X), twin.body(X))
    assert served(net, twin)


def test_pickle():
    """A pickle holds a plain model, and nothing of ours is needed to load it."""
    net, twin = tuned()
    blob = pickle.dumps(net)
    assert b"tt_core" not in blob
    made = pickle.loads(blob)
    assert plain(made)
    torch.testing.assert_close(made(X), twin(X))


def test_torch_save():
    """`torch.save` of the model gives a plain model."""
    net, twin = tuned()
    file = io.BytesIO()
    torch.save(net, file)
    file.seek(0)
    made = torch.load(file, weights_only=False)
    assert plain(made)
    torch.testing.assert_close(made(X), twin(X))


def _doubled(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return Body.forward(module, x) * 2


@pytest.mark.parametrize("bind", [lambda m: functools.partial(_doubled, m), _doubled.__get__])
def test_an_instance_forward_from_before(bind):
    """A forward that was set on the instance is the original, survives deepcopy and pickle, and comes back."""
    net = Net().eval()
    net.body.forward = before = bind(net.body)
    want = net(X)
    twin = copy.deepcopy(net)
    tune(net.body)
    assert served(net, twin)
    copies = [copy.deepcopy(net)]
    if isinstance(before, functools.partial):  # a bound function of another name does not unpickle, tuned or not
        copies.append(pickle.loads(pickle.dumps(net)))
    for made in copies:
        assert plain(made)
        torch.testing.assert_close(made(X), want)
        made.body.shift.add_(1)
        assert not torch.allclose(made(X), want)
    untune(net)
    assert vars(net.body)["forward"] is before


def test_state_dict():
    """Keys, order and the very tensors of the state are as before."""
    net, twin = tuned()
    assert list(net.state_dict()) == list(twin.state_dict())
    assert net.state_dict(keep_vars=True)["body.lin.weight"] is net.body.lin.weight


def test_load_state_dict():
    """New weights are never served stale: baked-in values fall back, live ones serve on."""
    for weights, serves in [(Weights.VALUES, False), (Weights.STORAGE, True), (Weights.LIVE, True)]:
        net, twin = tuned(weights)
        state = {k: v + 1 for k, v in twin.state_dict().items()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FallbackWarning)
            for model in (net, twin):
                model.load_state_dict(state)
            assert served(net, twin) is serves


def test_load_state_dict_assign():
    """`assign=True` replaces the parameters: only live builts serve on."""
    for weights, serves in [(Weights.VALUES, False), (Weights.STORAGE, False), (Weights.LIVE, True)]:
        net, twin = tuned(weights)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FallbackWarning)
            for model in (net, twin):
                model.load_state_dict({k: v + 1 for k, v in twin.state_dict().items()}, assign=True)
            assert served(net, twin) is serves


@pytest.mark.parametrize("convert", [lambda m: m.to(torch.float64), lambda m: m.half(), lambda m: m.bfloat16()])
def test_to_and_half(convert):
    """Converted models compute in their new type; the old builts are not asked."""
    net, twin = tuned()
    x = convert(nn.ParameterList([X]))[0].data
    with pytest.warns(FallbackWarning, match="dtype"):
        assert not served(convert(net), convert(twin), x)


def test_to_the_same_changes_nothing():
    """`.to()` that changes nothing, `.eval()` and `.requires_grad_()` keep the built in service."""
    net, twin = tuned()
    net.to("cpu").eval().requires_grad_(False).float()
    assert served(net, twin)


def test_named_modules():
    """Names, classes, `isinstance`, children and `repr` are as before."""
    net, twin = tuned()
    assert [(n, type(m)) for n, m in net.named_modules()] == [(n, type(m)) for n, m in twin.named_modules()]
    assert repr(net) == repr(twin)
    assert isinstance(net.body, Body)
    assert set(dir(net.body)) == set(dir(twin.body))


def test_parametrize():
    """A parametrization after tuning takes effect, and its removal too."""
    net, twin = tuned()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        for model in (net, twin):
            nn.utils.parametrize.register_parametrization(model.body.lin, "weight", nn.Softplus())
        assert not served(net, twin)
        for model in (net, twin):
            nn.utils.parametrize.remove_parametrizations(model.body.lin, "weight")
        assert not served(net, twin)


def test_functional_call():
    """`functional_call` with other weights gives their results; afterwards the built serves again."""
    net, twin = tuned()
    other = {k: v * 2 for k, v in twin.state_dict().items()}
    with pytest.warns(FallbackWarning, match="refresh"):
        got = torch.func.functional_call(net, other, (X,))
    torch.testing.assert_close(got, torch.func.functional_call(twin, other, (X,)))
    assert served(net, twin)


def test_swap_tensors():
    """`swap_tensors` works on tuned weights and is noticed."""
    net, twin = tuned()
    for model in (net, twin):
        torch.utils.swap_tensors(model.body.lin.weight, nn.Parameter(torch.eye(4)))
    with pytest.warns(FallbackWarning, match=r"lin\.weight"):
        assert not served(net, twin)


def test_lora_merge_and_unmerge():
    """An in-place merge is noticed, also through `.data =`; after unmerging the sums differ in the last bit: still eager."""
    for data in (False, True):
        net, twin = tuned()
        delta = torch.randn(4, 1) @ torch.randn(1, 4)
        for sign in (1, -1):
            for model in (net, twin):
                weight = model.body.lin.weight
                if data:
                    weight.data = weight.data + sign * delta
                else:
                    weight += sign * delta
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FallbackWarning)
                assert not served(net, twin)


@pytest.mark.parametrize("kwargs", [False, True])
def test_hooks_on_the_unit(kwargs):
    """Forward and pre-forward hooks on the tuned unit run around the built, with and without kwargs."""
    net, _ = tuned()
    seen: list[Any] = []
    net.body.register_forward_pre_hook(lambda *a: seen.append(len(a)), with_kwargs=kwargs)
    net.body.register_forward_hook(lambda *a: seen.append(len(a)) or a[-1] * 0, with_kwargs=kwargs)
    torch.testing.assert_close(net(X), net.head(torch.zeros(2, 4)))
    assert seen == ([3, 4] if kwargs else [2, 3])
    assert stats(net)["body"].hits == 1


def test_hooks_inside_the_unit():
    """A hook registered inside after tuning runs once a call, and none after its removal."""
    net, twin = tuned()
    calls: list[int] = []
    handle = net.body.lin.register_forward_hook(lambda *_: calls.append(1))
    with pytest.warns(FallbackWarning, match="hook"):
        assert not served(net, twin)
    handle.remove()
    assert served(net, twin)
    assert calls == [1]


def test_inspect_signature():
    """Signature, name, doc and annotations of `forward` are the original's."""
    net, twin = tuned()
    assert inspect.signature(net.body.forward) == inspect.signature(twin.body.forward)
    assert net.body.forward.__name__ == "forward"
    assert inspect.getdoc(net.body.forward) == "The body's own words."
    assert net.body.forward.__self__ is net.body
    assert net.body.forward.__func__ is Body.forward
    assert inspect.unwrap(net.body.forward).__func__ is Body.forward
    assert "fake" in repr(net.body.forward)


@pytest.mark.parametrize("strict", [True, False])
def test_torch_export_of_a_parent(strict):
    """Exporting a parent traces the original, and the program gives its results."""
    net, twin = tuned()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(net, (X,), strict=strict)
    torch.testing.assert_close(program.module()(X), twin(X))
    assert served(net, twin)


def test_torch_compile_of_a_parent():
    """Compiling a parent in one graph compiles the original."""
    net, twin = tuned()
    compiled = torch.compile(net, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(X), twin(X))
    assert served(net, twin)


def test_torch_fx_of_a_parent():
    """Symbolic tracing sees the original."""
    net, twin = tuned()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        traced = torch.fx.symbolic_trace(net)
    torch.testing.assert_close(traced(X), twin(X))
    assert served(net, twin)


def test_vmap_of_a_parent():
    """`vmap` over a parent runs the original, once warned; plain calls are served again."""
    net, twin = tuned()
    xs = torch.stack([X, X + 1, X + 2])
    with pytest.warns(FallbackWarning, match="vmap"):
        got = torch.func.vmap(net)(xs)
    torch.testing.assert_close(got, torch.stack([twin(x) for x in xs]))
    assert served(net, twin)


def test_jit_trace_of_a_parent():
    """`jit.trace` of a parent traces the original."""
    net, twin = tuned()
    with pytest.warns(FallbackWarning, match=r"jit\.trace"):
        traced = torch.jit.trace(net, (X,), check_trace=False)
    torch.testing.assert_close(traced(X), twin(X))


def test_inference_mode():
    """Under `inference_mode` the built serves, with normal and inference inputs."""
    net, twin = tuned()
    with torch.inference_mode():
        assert served(net, twin)
        assert served(net, twin, X.clone())


def test_autocast():
    """Under autocast the original runs, with autocast's results."""
    net, twin = tuned()
    with torch.autocast("cpu", torch.bfloat16), pytest.warns(FallbackWarning, match="autocast"):
        assert net(X).dtype == twin(X).dtype == torch.bfloat16
    assert served(net, twin)


def test_training_of_an_untuned_part():
    """With a frozen tuned body the head can be trained; gradients through a tuned part come from the original."""
    net, twin = tuned()
    net.body.requires_grad_(False)
    with torch.enable_grad():
        net(X).sum().backward()
        assert net.head.weight.grad is not None
        assert stats(net)["body"].hits == 1
        net.body.requires_grad_(True)
        with pytest.warns(FallbackWarning, match="gradients enabled"):
            net(X).sum().backward()
        twin(X).sum().backward()
    torch.testing.assert_close(net.body.lin.weight.grad, twin.body.lin.weight.grad)


def test_train_and_eval():
    """In training mode the original runs; back in evaluation mode the built does."""
    net, twin = tuned()
    net.train()
    with pytest.warns(FallbackWarning, match="training mode"):
        assert not served(net, twin)
    net.eval()
    assert served(net, twin)


def test_spawn():
    """A model sent to a spawned process is plain there."""
    model = nn.Sequential(nn.Linear(4, 4)).eval().requires_grad_(False)
    want = model(X)
    tune(model, path="")
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        torch.testing.assert_close(pool.apply(nn.Module.__call__, (model, X)), want)
        assert "tt_core" not in pool.apply(repr, (model,))
    torch.testing.assert_close(model(X), want + 10)
