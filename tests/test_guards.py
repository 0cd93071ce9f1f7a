"""Guards: a compiled predicate that says yes to the calls a built was made for, and to no other."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections import OrderedDict, deque
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.modeling_outputs import BaseModelOutput

from tt_core import callkey, trees
from tt_core.guards import FIXES, UNREADABLE, Claim, Fall, Guard, Watch, compile_guard, compile_pick, versions
from tt_core.guards import weights as guards_weights
from tt_core.guards.around import disjoint, forks
from tt_core.values import Axis, Call, CallKey, Facts, Shapes, Unit, Weights, evolve


class Pair(NamedTuple):
    a: Any
    b: Any


@dataclasses.dataclass
class Batch:
    ids: Any
    mask: Any = None


class Free(nn.Module):
    def forward(self, x, value=None, *rest, flag=False, **more):
        return x


class Block(nn.Module):
    """A unit with one of everything that a guard watches."""

    bonus = 0.0

    def __init__(self):
        super().__init__()
        self.lin, self.drop, self.inner = nn.Linear(4, 4), nn.Dropout(0.5), nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.register_buffer("shift", torch.zeros(4))
        self.scale, self.name, self.act, self.table = 2, "block", torch.relu, torch.ones(4)

    def forward(self, x):
        return self.inner(self.drop(self.lin(x)))


def unit_of(module: nn.Module) -> Unit:
    return Unit(path="u", module=module, forward=module.forward)


def key_of(unit: Unit, call: Call) -> CallKey:
    key = callkey.key_of(unit.forward, call, training=unit.module.training)
    assert isinstance(key, CallKey), key
    return key


def guard(call: Call, module: nn.Module | None = None, weights: Weights = Weights.LIVE, **claim: Any) -> Guard:
    unit = unit_of(module or Free().eval())
    return compile_guard(unit, Claim(key=key_of(unit, call), weights=weights, **claim))


def says(found: Guard, *args: Any, **kwargs: Any) -> bool:
    """The guard's answer as the dispatcher takes it, twice: the second time a remembered verdict may answer."""
    answers = set()
    for _ in range(2):
        try:
            answers.add(bool(found.accepts(*args, **kwargs)))
        except UNREADABLE:
            answers.add(False)
    (answer,) = answers
    return answer


def falls(found: Guard, *args: Any, **kwargs: Any) -> Fall:
    """The kind of a fall, after the guard said no."""
    assert not says(found, *args, **kwargs)
    return found.explain(args, kwargs)[0].kind


X = torch.zeros(2, 4)


def test_every_spelling_is_bound_by_python():
    """Positional, keyword and defaulted spellings are all accepted; what does not fit the signature is not."""
    found = guard(Call(X, 1))
    assert says(found, X, 1)
    assert says(found, value=1, x=X)
    assert says(found, X, value=1, flag=False)
    assert not says(found, X)
    assert falls(found, y=1) is Fall.SIGNATURE
    assert falls(found, X, 1, 2) is Fall.STRUCTURE
    assert falls(found, X, 1, other=2) is Fall.STRUCTURE


def test_parameter_names_cannot_clash():
    """Parameters named like names of ours, and every kind of parameter, are compiled and bound."""

    class Odd(nn.Module):
        def forward(self, tt_seen, /, tt_learn=1, *, torch=2, **tt_module):
            return tt_seen

    found = guard(Call(X, torch=3, extra=4), Odd().eval())
    assert says(found, X, torch=3, extra=4)
    assert says(found, X, 1, torch=3, extra=4)
    assert not says(found, X, torch=3)


def test_the_source_can_be_read():
    """The text of a guard is kept on the function, with the call it is for."""
    found = guard(Call(X, 3), covers=Shapes(leaves=((Axis(lo=1, hi=9, symbol="s0"), 4),)))
    assert found.accepts.__source__ == found.source
    assert "# x: f32[1..9, 4], value: 3" in found.source


@pytest.mark.parametrize(
    "make",
    [
        lambda: None, lambda: 3, lambda: True, lambda: 2.5, lambda: 0.0, lambda: math.nan, lambda: -math.inf, lambda: 1j,
        lambda: "a'\n", lambda: b"b", lambda: torch.float16, lambda: torch.device("cpu"), lambda: torch.strided,
        lambda: torch.Size([1, 2]), lambda: slice(1, None), lambda: range(3), lambda: np.float32(2), lambda: [1, (2, X)],
        lambda: {"a": X, 1: {"b": []}}, lambda: OrderedDict(z=X, a=1), lambda: Pair(X, 2), lambda: Batch(X, (1,)),
        lambda: deque([X, 1]), lambda: BaseModelOutput(last_hidden_state=X), lambda: (), dict,
        lambda: torch.ones(3).max(0), lambda: (X, X.double(), X[0]),
    ],
)  # fmt: skip
def test_equal_calls_are_accepted(make):
    """A call made of equal constants and containers of the same kinds is accepted."""
    assert says(guard(Call(X, make())), X, make())


@pytest.mark.parametrize(
    ("tuned", "given_", "kind"),
    [
        (1, True, Fall.CONSTANT), (1, 1.0, Fall.CONSTANT), (0.0, -0.0, Fall.CONSTANT), (-0.0, 0.0, Fall.CONSTANT),
        (math.nan, 0.0, Fall.CONSTANT), (None, False, Fall.CONSTANT), (None, X, Fall.STRUCTURE), (X, None, Fall.STRUCTURE),
        ("a", "b", Fall.CONSTANT), (np.float32(1), 1.0, Fall.CONSTANT), ([1], (1,), Fall.STRUCTURE),
        ([1], [1, 2], Fall.STRUCTURE), ({"a": 1, "b": 2}, {"b": 2, "a": 1}, Fall.STRUCTURE),
        ({"a": 1}, {"a": 1, "b": 1}, Fall.STRUCTURE), ({"a": 1}, OrderedDict(a=1), Fall.STRUCTURE),
        (Pair(1, 2), (1, 2), Fall.STRUCTURE), (Batch(1), Pair(1, None), Fall.STRUCTURE),
        (BaseModelOutput(last_hidden_state=X), BaseModelOutput(hidden_states=X), Fall.STRUCTURE), (1, object(), Fall.OPAQUE),
        (X, X.double(), Fall.DTYPE), (X, X.to("meta"), Fall.DEVICE), (X, X.to_sparse(), Fall.LAYOUT),
        (X, nn.Parameter(X, requires_grad=False), Fall.TYPE), (X, X[0], Fall.SHAPE),
        (torch.zeros(2, dtype=torch.complex64), torch.zeros(2, dtype=torch.complex64).conj(), Fall.STRIDES),
    ],
)  # fmt: skip
def test_other_calls_fall_by_kind(tuned, given_, kind):
    """A call that differs in one thing is refused, and the reason is of that kind, with a fix."""
    found = guard(Call(X, tuned))
    assert says(found, X, tuned)
    assert falls(found, X, given_) is kind
    assert FIXES[kind] in str(found.explain((X, given_), {})[0])


@settings(deadline=None, max_examples=60)
@given(st.one_of(st.floats(), st.integers(), st.booleans(), st.text(max_size=5), st.none()), st.data())
def test_guard_agrees_with_the_key(value, data):
    """For any two constants the guard says yes exactly when the keys are equal."""
    other = data.draw(st.one_of(st.just(value), st.floats(), st.integers(), st.booleans(), st.text(max_size=5)))
    unit = unit_of(Free().eval())
    found = guard(Call(X, value))
    assert says(found, X, other) == (key_of(unit, Call(X, value)) == key_of(unit, Call(X, other)))


def test_equal_axes_must_be_equal():
    """Sizes in range are accepted, sizes out of range or unequal where they must be equal are not: no broadcast slips."""
    axis, free = Axis(lo=1, hi=8, symbol="s0"), Axis(lo=2, hi=4, symbol="s1")
    found = guard(Call(X, X), covers=Shapes(leaves=((axis, 4), (axis, free))))
    assert says(found, torch.zeros(8, 4), torch.zeros(8, 3))
    for one, other in [((9, 4), (9, 3)), ((8, 4), (1, 3)), ((8, 3), (8, 3)), ((8, 4), (8, 5)), ((0, 4), (0, 3))]:
        assert falls(found, torch.zeros(one), torch.zeros(other)) is Fall.SHAPE


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 5), min_size=4, max_size=4))
def test_guard_agrees_with_shapes(sizes):
    """For any sizes the guard says what `Shapes.admit` says."""
    axis, fixed = Axis(lo=1, hi=4, symbol="a"), 3
    shapes = Shapes(leaves=((axis, fixed), (Axis(lo=2, hi=4, symbol="b"), Axis(lo=2, hi=3, symbol="a"))))
    one, other = tuple(sizes[:2]), tuple(sizes[2:])
    assert says(guard(Call(X, X), covers=shapes), torch.zeros(one), torch.zeros(other)) == shapes.admit([one, other])


def test_strides_only_where_they_matter():
    """A transposed input is refused only where the built needs contiguous inputs."""
    square = torch.zeros(4, 4)
    assert says(guard(Call(square)), torch.rand(4, 2).t()[:4].contiguous().t().t())
    assert says(guard(Call(square)), torch.rand(4, 4).t())
    assert falls(guard(Call(square), needs_strides=True), torch.rand(4, 4).t()) is Fall.STRIDES


def test_inputs_that_share_memory():
    """Where inputs are written to, inputs that share memory are refused; otherwise they are fine."""
    both = torch.zeros(4, 4)
    writes = guard(Call(X, X), facts=Facts(writes_inputs=True))
    assert says(writes, torch.zeros(2, 4), torch.zeros(2, 4))
    assert says(writes, both[:2], both[2:])
    assert falls(writes, both[:2], both[1:3]) is Fall.OVERLAP
    assert falls(writes, torch.zeros(1, 4).expand(2, 4), torch.zeros(2, 4)) is Fall.OVERLAP
    assert says(guard(Call(X, X)), both[:2], both[:2])


def test_disjoint_is_careful():
    """Empty tensors share nothing; the same tensor twice does."""
    assert disjoint(torch.zeros(0), torch.zeros(0))
    assert not disjoint(X, X)


def test_gradients_wanted():
    """Grad mode alone is fine; with an input or a parameter that requires grad the call falls."""
    needs = X.clone().requires_grad_()
    plain, block = guard(Call(X)), Block().eval()
    assert says(plain, X)
    assert falls(plain, needs) is Fall.GRAD
    with torch.no_grad():
        assert says(plain, needs)
    for weights in Weights:
        found = guard(Call(X), block.requires_grad_(True), weights)
        assert falls(found, X) is Fall.GRAD
        with torch.inference_mode():
            assert says(found, X)
        block.requires_grad_(False)
        assert says(found, X)
        with torch.no_grad():
            assert says(found, X)


def test_inference_tensors_are_plain():
    """Inference tensors and normal ones are one call, in and out of inference mode."""
    found = guard(Call(X))
    with torch.inference_mode():
        inner = torch.zeros(2, 4)
        assert says(found, inner)
        assert says(found, X)
    assert says(found, inner)


def test_training_and_autocast():
    """Another training flag or autocast state falls; a key recorded so is served so."""
    module = Free().eval()
    found = guard(Call(X), module)
    with torch.autocast("cpu", torch.bfloat16):
        assert falls(found, X) is Fall.AUTOCAST
        inside = guard(Call(X), module)
        assert says(inside, X)
    assert falls(inside, X) is Fall.AUTOCAST
    with torch.autocast("cpu", torch.float16):
        assert falls(inside, X) is Fall.AUTOCAST
    module.train()
    assert falls(found, X) is Fall.TRAINING
    assert says(guard(Call(X), module), X)


class _Mode(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("call", [Call(X), Call(None)])
def test_tracing_is_refused(call):
    """Under jit.trace, vmap, a dispatch mode and forward AD the answer is no, also without tensors."""
    found, seen = guard(call), []

    def ask(*_):
        seen.append(falls(found, *call.args))
        return X + 1

    torch.jit.trace(ask, (X,), check_trace=False)
    torch.func.vmap(lambda x: ask() + x)(torch.zeros(3, 2, 4))
    torch.func.grad(lambda x: (ask() + x).sum())(X)
    with _Mode():
        ask()
    with forward_ad.dual_level():
        ask()
    assert seen == [Fall.TRACING] * 5
    assert says(found, *call.args)


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
    module.plan = {"layers": ["rows"]}
    found, before = guard(Call(X), module, Weights.VALUES), module.plan
    with torch.no_grad():
        torch.export.export(module, (X,))
        assert module.plan is not before
        assert says(found, X)


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


def test_a_fork_is_another_process():
    """A built that does not survive a fork is not called in the child."""
    safe, unsafe = guard(Call(X)), guard(Call(X), fork_safe=False)
    forks[0] += 1
    try:
        assert says(safe, X)
        assert falls(unsafe, X) is Fall.PROCESS
    finally:
        forks[0] -= 1


CALLS = [
    Call(X), Call(X, X), Call(X.double()), Call(X[0]), Call(X, 1), Call(X, True), Call(X, 2.5), Call(X, math.nan),
    Call(X, "a"), Call(X, [X]), Call(X, [X, X]), Call(X, {"a": X}), Call(X, {"b": X}), Call(X, slice(1)),
    Call(X, slice(2)), Call(X, None, 1), Call(X, flag=True), Call(X, other=1), Call(X, Pair(1, 2)), Call(X, Batch(1)),
]  # fmt: skip


@pytest.mark.parametrize("some", [CALLS, CALLS[:2], CALLS[4:8], CALLS[9:13]])
def test_one_look_up_finds_the_key(some):
    """Among many keys the look-up always offers the right one, and never more than a few."""
    unit = unit_of(Free().eval())
    keys = [key_of(unit, call) for call in some]
    pick = compile_pick(unit, keys)
    for index, call in enumerate(some):
        offered = pick.table[pick.of(*call.args, **call.kwargs)]
        assert index in offered
        assert len(offered) <= 2


def test_look_up_by_training_and_autocast():
    """Keys that differ in what surrounds them are told apart too."""
    unit = unit_of(Free().eval())
    keys = [key_of(unit, Call(X))]
    with torch.autocast("cpu", torch.bfloat16):
        keys.append(key_of(unit, Call(X)))
        pick = compile_pick(unit, [*keys, callkey.key_of(unit.forward, Call(X), training=True)])
        assert pick.table[pick.of(X)] == (1,)
    assert pick.table[pick.of(X)] == (0,)


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


@pytest.mark.parametrize("name", ["__import__('os').getcwd()", "x if x else y", "1", ""])
def test_an_arguments_name_is_never_code(name):
    """A key may come out of a file: what is no name does not get into a generated function."""
    unit = unit_of(Free())
    tree = trees.flatten({name: torch.ones(2)})[1]
    key = evolve(key_of(unit, Call(torch.ones(2))), tree=tree, leaves=key_of(unit, Call(torch.ones(2))).leaves[:1])
    with pytest.raises(ValueError, match="cannot be named"):
        compile_guard(unit, Claim(key=key, weights=Weights.LIVE, covers=None, facts=Facts()))
    with pytest.raises(ValueError, match="cannot be named"):
        compile_pick(unit, [key, key])
