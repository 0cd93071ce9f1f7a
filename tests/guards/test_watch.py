"""Guards: what a unit is made of, and every change of it that a built must not serve after."""

from __future__ import annotations

import copy
from collections import OrderedDict
from typing import Any

import pytest
import torch
from guard_units import Block, X, falls, guard, says
from torch import nn

from tt_core.guards import Fall, Guard, Watch, native, quick, versions
from tt_core.guards import weights as guards_weights
from tt_core.values import Call, Facts, Weights

CHANGES = {
    "parameter replaced": (lambda m: setattr(m.lin, "weight", nn.Parameter(m.lin.weight.clone())), Fall.WEIGHTS),
    "parameter set to None": (lambda m: setattr(m.lin, "bias", None), Fall.WEIGHTS),
    "data replaced": (lambda m: setattr(m.lin.weight, "data", m.lin.weight.data.clone()), Fall.WEIGHTS),
    "data transposed": (lambda m: setattr(m.lin.weight, "data", m.lin.weight.data.t()), Fall.WEIGHTS),
    "bf16 and back": (lambda m: m.to(torch.bfloat16).to(torch.float32), Fall.WEIGHTS),
    "buffer replaced": (lambda m: setattr(m, "shift", torch.ones(4)), Fall.WEIGHTS),
    "tensor attribute replaced": (lambda m: setattr(m, "table", torch.ones(4)), Fall.MODULE),
    "child replaced": (lambda m: setattr(m, "lin", nn.Linear(4, 4)), Fall.MODULE),
    "child added": (lambda m: m.inner[0].add_module("late", nn.ReLU()) or m.inner.append(nn.ReLU()), Fall.MODULE),
    "scalar": (lambda m: setattr(m, "scale", 2.0), Fall.MODULE),
    "scalar inside": (lambda m: setattr(m.drop, "p", 0.25), Fall.MODULE),
    "function": (lambda m: setattr(m, "act", torch.tanh), Fall.MODULE),
    "inner forward": (lambda m: setattr(m.lin, "forward", torch.relu), Fall.MODULE),
    "setting of the class hidden": (lambda m: setattr(m, "bonus", 1.0), Fall.MODULE),
    "method of a child hidden": (lambda m: setattr(m.lin, "extra_repr", str), Fall.MODULE),
    "training inside": (lambda m: m.drop.train(), Fall.TRAINING),
    "hook": (lambda m: m.lin.register_forward_hook(lambda *_: None), Fall.HOOKS),
    "pre-hook with kwargs": (lambda m: m.lin.register_forward_pre_hook(lambda *_: None, with_kwargs=True), Fall.HOOKS),
    "parametrization": (lambda m: nn.utils.parametrizations.weight_norm(m.lin), Fall.WEIGHTS),
    "attribute removed": (lambda m: delattr(m, "name"), Fall.MODULE),
}  # fmt: skip


def _large() -> nn.Module:
    """A unit beyond what is spelled out."""
    module = Block()
    module.more = nn.ModuleList(Block() for _ in range(6))
    return module.eval()


@pytest.fixture(autouse=True, params=["compiled", "in Python"])
def _way(request, monkeypatch):
    """Both ways to ask see the same."""
    if request.param == "in Python":
        monkeypatch.setattr(quick, "snapshot", None)
    elif native.snapshot is None:
        pytest.skip(native.why)


@pytest.fixture(params=["small", "large", "large, no versions"])
def make(request, monkeypatch):
    """A small unit, a large one, and a large one where torch cannot tell the version of a dict."""
    if request.param == "large, no versions":
        monkeypatch.setattr(versions, "dict_version", None)
    return (lambda: Block().eval()) if request.param == "small" else _large


@pytest.mark.parametrize("weights", [Weights.STORAGE, Weights.VALUES])
@pytest.mark.parametrize("name", CHANGES)
def test_what_changed_is_noticed(make, weights, name):
    """Each change of a module after the build is refused, with the kind of change, and accepted again by LIVE builts."""
    module = make()
    found, live = guard(Call(X), module, weights), guard(Call(X), module)
    change, kind = CHANGES[name]
    with torch.no_grad():
        assert says(found, X)
        change(module)
        assert falls(found, X) is kind
        assert says(live, X)


def test_in_place_changes_are_a_matter_of_values(make):
    """Writes in place, `load_state_dict` and LoRA-like merges are noticed by VALUES and fine for STORAGE."""
    module = make()
    values, storage = guard(Call(X), module, Weights.VALUES), guard(Call(X), module, Weights.STORAGE)
    with torch.no_grad():
        module.lin.weight.add_(torch.ones(4, 1) @ torch.ones(1, 4))
        assert falls(values, X) is Fall.WEIGHTS
        assert says(storage, X)
        module.load_state_dict(copy.deepcopy(module.state_dict()))
        assert says(storage, X)


def test_own_hooks_and_flags_run_outside():
    """Hooks on the unit itself run around the dispatcher: they are no change."""
    module = Block().eval()
    found = guard(Call(X), module, Weights.VALUES)
    module.register_forward_hook(lambda *_: None)
    with torch.no_grad():
        assert says(found, X)


def test_equal_constants_are_no_change(make):
    """An attribute set to an equal value, or a new attribute, is no change, and stays cheap to accept."""
    module = make()
    found = guard(Call(X), module, Weights.VALUES)
    module.name, module.drop.p, module.inner[0].late = str(b"block", "ascii"), float("0.5"), 1
    with torch.no_grad():
        assert says(found, X)
        assert found.watch.difference() is None
    assert not _rechecks(found, lambda: None)


@pytest.mark.parametrize(
    ("then", "now", "same"),
    [
        ({}, {}, True),
        ({"a": [1, (2.0, None)]}, {"a": [1, (2.0, None)]}, True),
        ({"a": 1}, {"a": 1.0}, False),
        ({1: "a"}, {True: "a"}, False),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, False),
        ([1, 2], [1], False),
        ([1], (1,), False),
        ([torch.ones(1)], [torch.ones(1)], False),
        ({"a": print}, {"a": repr}, False),
    ],
    ids=str,
)
def test_equal_containers_of_constants_are_no_change(make, then, now, same):
    """What `torch.export` leaves behind; what a container holds besides constants may not be another object."""
    module = make()
    module.plan = then
    found = guard(Call(X), module, Weights.VALUES)
    module.plan = now
    with torch.no_grad():
        assert says(found, X) if same else falls(found, X) is Fall.MODULE


def test_an_exported_module_serves_on():
    """`torch.export` puts copies in the place of a module's containers, which change nothing."""
    module = Block().eval()
    module.plan, module.weights = {"layers": ["rows"]}, [module.lin.weight]
    found, before = guard(Call(X), module, Weights.VALUES), (module.plan, module.weights)
    with torch.no_grad():
        torch.export.export(module, (X,))
        assert module.plan is not before[0]
        assert module.weights is not before[1]
        assert says(found, X)


@pytest.mark.filterwarnings("ignore:The tensor attribute")
def test_an_exported_lstm_serves_on():
    """It holds weak references to its weights in a list of its own, which `torch.export` replaces too."""
    module = nn.LSTM(4, 4).eval()
    found, before = guard(Call(X), module, Weights.VALUES), module._flat_weight_refs
    with torch.no_grad():
        torch.export.export(module, (X,))
        assert module._flat_weight_refs is not before
        assert says(found, X)
        module.weight_ih_l0 = nn.Parameter(module.weight_ih_l0.clone())
        assert falls(found, X) is Fall.WEIGHTS


@pytest.mark.parametrize("layers", [1, 30])
def test_an_equal_container_of_parameters_is_another(layers):
    """Also where it holds nothing but None: a weight that is set later is set in the new one."""
    module = nn.Sequential(*[nn.LayerNorm(4, elementwise_affine=False) for _ in range(layers)]).eval()
    found = guard(Call(X), module, Weights.VALUES)
    module[0]._parameters = dict(module[0]._parameters)
    module[0].weight = nn.Parameter(torch.full((4,), 3.0))
    with torch.no_grad():
        assert falls(found, X) is Fall.WEIGHTS


def test_a_hook_in_a_replaced_container_is_seen():
    """In a large module too, where only what changed since the last call is compared."""
    module = nn.Sequential(*[nn.Linear(4, 4) for _ in range(30)]).eval()
    found = guard(Call(X), module, Weights.VALUES)
    module[3]._forward_hooks = OrderedDict()
    with torch.no_grad():
        assert says(found, X)
        module[3].register_forward_hook(lambda *_: None)
        assert falls(found, X) is Fall.HOOKS


def _rechecks(found: Guard, change: Any, calls: int = 1) -> int:
    """How often the exact comparison was asked in some calls, each after a change."""
    seen, exact = [], Watch._differences
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(Watch, "_differences", lambda watch: seen.append(watch) or exact(watch))
        for _ in range(calls):
            change()
            assert found.accepts(X)
    return len(seen)


def test_a_model_that_counts_its_calls_stays_cheap(make):
    """A dict that moves at every call for nothing is compared item by item from then on, and still watched."""
    module = make()
    found = guard(Call(X), module, Weights.VALUES)

    def count() -> None:
        module.calls = getattr(module, "calls", 0) + 1

    assert _rechecks(found, count, calls=8) <= 5
    assert not _rechecks(found, count, calls=8)
    module.lin.weight = nn.Parameter(torch.ones(4, 4))
    with torch.no_grad():
        assert falls(found, X) is Fall.WEIGHTS


def test_a_change_while_it_is_taken_down_is_noticed(monkeypatch):
    """Versions are read first: what moves between them and the items shows at the next call."""
    module = _large()
    taken = guards_weights.items_of

    def late(*args):
        yield from taken(*args)
        if args[0] == "more.5":
            vars(module.more[0].lin)["in_features"] = 5

    monkeypatch.setattr(guards_weights, "items_of", late)
    with torch.no_grad():
        assert falls(guard(Call(X), module, Weights.VALUES), X) is Fall.MODULE


@pytest.mark.parametrize("overlooked", ["x", "y"])
def test_versions_are_tried_before_they_are_trusted(overlooked):
    """A version that overlooks a write, or that is a constant, is not used."""
    assert versions.dict_version is not None  # it is there in every torch that we run on
    assert versions._tried(lambda _: 1) is None
    assert versions._tried(lambda held: hash(str({k: v for k, v in held.items() if k != overlooked}))) is None
    assert versions._tried(None) is None


def test_hooks_at_build_are_the_normal_state():
    """Hooks that were there when the built was made are expected; losing one is a change."""
    module = Block().eval()
    handle = module.lin.register_forward_hook(lambda *_: None)
    found = guard(Call(X), module, Weights.VALUES)
    with torch.no_grad():
        assert says(found, X)
        handle.remove()
        assert falls(found, X) is Fall.HOOKS


def test_a_global_hook_is_a_change():
    """A hook for all modules runs inside the unit too."""
    found = guard(Call(X), Block().eval(), Weights.VALUES)
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        with torch.no_grad():
            assert falls(found, X) is Fall.HOOKS
    finally:
        handle.remove()


def test_a_forward_patched_on_a_class_is_a_change():
    """Replacing the forward of a class inside the unit is noticed."""

    class Leaf(nn.Module):
        def forward(self, x):
            return x

    module = nn.Sequential(Leaf()).eval()
    found = guard(Call(X), module, Weights.VALUES)
    assert says(found, X)
    Leaf.forward = lambda self, x: x + 1
    assert falls(found, X) is Fall.MODULE


def test_state_that_the_unit_writes_may_move():
    """State that the unit writes itself is not held against it; other state is."""
    module = Block().eval()
    found = guard(Call(X), module, Weights.VALUES, facts=Facts(writes_state=("shift", "scale")))
    with torch.no_grad():
        module.shift.add_(1)
        module.scale = 7
        assert says(found, X)
        module.lin.bias.add_(1)
        assert falls(found, X) is Fall.WEIGHTS


def test_swapped_tensors_are_noticed():
    """`swap_tensors` keeps the object and exchanges what it holds: noticed, and not hindered."""
    module = Block().eval().requires_grad_(False)
    found = guard(Call(X), module, Weights.STORAGE)
    other = nn.Parameter(torch.zeros(4, 4), requires_grad=False)
    torch.utils.swap_tensors(module.lin.weight, other)
    assert falls(found, X) is Fall.WEIGHTS


def test_sparse_weights_are_watched_by_identity():
    """A weight without an address does not stop the guard."""

    class Sparse(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("table", torch.eye(4).to_sparse())

        def forward(self, x):
            return x

    module = Sparse().eval()
    found = guard(Call(X), module, Weights.VALUES)
    assert says(found, X)
    module.table = torch.eye(4).to_sparse()
    assert falls(found, X) is Fall.WEIGHTS


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scripted_parts_are_watched():
    """A scripted module inside a unit is no obstacle, and writes to its weights are noticed."""
    module = nn.Sequential(torch.jit.script(nn.Linear(4, 4)), nn.ReLU()).eval().requires_grad_(False)
    found = guard(Call(X), module, Weights.VALUES)
    assert says(found, X)
    module[0].weight.add_(1)
    assert falls(found, X) is Fall.WEIGHTS


def test_a_tied_weight_is_read_once():
    """A parameter under two names is watched once: torch's own guard would hold for nothing, and each call would be slow."""
    module = Block().eval()
    module.tied = nn.Linear(4, 4)
    module.again = nn.Linear(4, 4)
    module.again.weight = module.tied.weight
    found = guard(Call(X), module, Weights.STORAGE)
    prints = [each for each in found.watch.prints if each.tensor is module.tied.weight]
    assert len(prints) == 1
    with torch.no_grad():
        assert says(found, X)
        module.again.weight = nn.Parameter(module.tied.weight.detach().clone())
        assert falls(found, X) is Fall.WEIGHTS
