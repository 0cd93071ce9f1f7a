"""The state room: found, copied by value, put back as the very objects."""

from __future__ import annotations

import collections
import random
import threading
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

from tt_core.state import find, identical, kept, patched, rng_kept, seed, states, take


class Busy(nn.Module):
    """Changes everything that a forward can change."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 3)
        self.bn = nn.BatchNorm1d(3)
        self.register_buffer("steps", torch.zeros((), dtype=torch.long), persistent=False)
        self.cache = torch.zeros(4)
        self.calls, self.seen, self.table, self.kinds = 0, [], {"a": 1}, {"x"}
        self.queue = collections.deque([1], maxlen=3)
        self.array = np.zeros(2)
        self.lock, self.act = threading.Lock(), lambda t: t.sin()
        self.generator = torch.Generator().manual_seed(1)

    def forward(self, x):
        self.steps += 1
        self.cache[0] += 1
        self.calls += 1
        self.seen.append(x)
        self.table["b"] = 2
        self.kinds.add("y")
        self.queue.append(5)
        self.array[0] = 7
        self.fresh = x
        torch.rand(1, generator=self.generator)
        return self.act(self.bn(self.lin(x)))


def _vars(obj):
    return [(path, list(vars(m).items())) for path, m in [(f.path, f.module) for f in find(obj)]]


# --- find -----------------------------------------------------------------------------------------------------------


def test_find_names_children_like_named_modules():
    """A module's own tree has the names and the order of `named_modules`; a shared module's other paths are aliases."""
    block = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    model = nn.ModuleDict({"a": block, "b": nn.Sequential(block, nn.GELU())})
    found = find(model)
    assert [f.path for f in found] == [name for name, _ in model.named_modules()]
    assert {f.path: f.aliases for f in found}["a"] == ("b.0",)
    assert {f.path: f.aliases for f in found}["a.0"] == ("b.0.0",)


def test_find_looks_into_attributes_lists_tuples_and_dicts():
    """Modules of a pipeline are found wherever it keeps them; keys other than list indices are `[repr]`."""

    class Pipe:
        __slots__ = ("__dict__", "extra")

    pipe = Pipe()
    pipe.model, pipe.stages, pipe.by_name, pipe.extra = (
        nn.Linear(1, 1),
        [nn.ReLU(), (nn.GELU(),)],
        {"x": {3: nn.Tanh()}},
        nn.SiLU(),
    )
    assert [f.path for f in find(pipe)] == ["model", "extra", "stages.0", "stages.1.0", "by_name['x'][3]"]
    assert [f.path for f in find([nn.ReLU()])] == ["0"]
    assert find(object()) == ()


def test_find_sees_modules_hidden_from_torch_after_the_tree():
    """A list of modules in a plain attribute is found; a back reference gives an alias, never a first name."""
    model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
    model[0].friends = [model[1], nn.Tanh()]
    model[1].__dict__["root"] = (model,)
    assert [(f.path, f.aliases) for f in find(model)] == [
        ("", ("1.root.0",)),
        ("0", ()),
        ("1", ("0.friends.0",)),
        ("0.friends.1", ()),
    ]


def test_find_follows_cycles_once_and_bounds_names():
    """Cycles end; a chain of doubly shared modules does not cost exponential time."""
    chain = nn.Linear(1, 1)
    for _ in range(40):
        outer = nn.Module()
        outer.a, outer.b = chain, chain
        chain = outer
    holder = {"self": None, "m": chain}
    holder["self"] = holder
    found = find(holder)
    assert len(found) == 41
    assert max(len(f.aliases) for f in found) <= 15


# --- take, changed, restore -----------------------------------------------------------------------------------------


def test_everything_a_forward_changes_is_reported_and_put_back():
    """Buffers, tensors in attributes, scalars, containers, arrays, new attributes and generators are put back by value."""
    model = Busy().train()
    before, objects = _vars(model), {id(t) for t in model.state_dict(keep_vars=True).values()}
    values = {k: v.clone() for k, v in model.state_dict().items()}
    draws = model.generator.get_state()
    snapshot = take(model)
    assert snapshot.changed() == {}
    with torch.no_grad():
        model(torch.randn(4, 3))
    assert set(snapshot.changed()) == {
        "steps", "cache", "calls", "seen", "table", "kinds", "queue", "array", "fresh", "generator",
        "bn.running_mean", "bn.running_var", "bn.num_batches_tracked",
    }  # fmt: skip
    snapshot.restore()
    assert snapshot.changed() == {}
    after = _vars(model)
    for (path, was), (_, now) in zip(before, after, strict=True):
        changed = [k for (k, v), (j, w) in zip(was, now, strict=True) if k != j or v is not w]
        assert not changed, path
    assert {id(t) for t in model.state_dict(keep_vars=True).values()} == objects
    assert all(torch.equal(v, values[k]) for k, v in model.state_dict().items())
    assert (model.calls, model.seen, model.table, model.kinds, list(model.queue)) == (0, [], {"a": 1}, {"x"}, [1])
    assert model.array.tolist() == [0, 0]
    assert model.cache.tolist() == [0, 0, 0, 0]
    assert not hasattr(model, "fresh")
    assert torch.equal(model.generator.get_state(), draws)


def test_nothing_is_written_when_nothing_changed():
    """Versions and addresses stay when nothing changed, and come back when something did."""
    model = nn.BatchNorm1d(3).train()
    tensors = [*model.parameters(), *model.buffers()]
    was = [(t._version, t.data_ptr()) for t in tensors]
    with kept(model):
        pass
    assert [(t._version, t.data_ptr()) for t in tensors] == was
    with kept(model):
        model(torch.randn(4, 3))
        assert [(t._version, t.data_ptr()) for t in tensors] != was
    assert [(t._version, t.data_ptr()) for t in tensors] == was


def test_tensors_moved_by_a_backend_come_back_by_reference():
    """A swapped `.data`, a replaced parameter, another dtype: the very objects and storages are put back."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    first, second = model[0].weight, model[1].weight
    places = first.data_ptr(), second.data_ptr()
    with kept(model):
        first.data = torch.zeros(5, dtype=torch.float64)
        model[1].weight = nn.Parameter(torch.ones(2, 2))
        model.to(torch.bfloat16)
        model[0].bias.requires_grad_(False)
        model[0].bias.grad = torch.ones_like(model[0].bias)
        model[0]._parameters.pop("bias")
        del model[1]
    assert model[0].weight is first
    assert model[1].weight is second
    assert (first.data_ptr(), second.data_ptr()) == places
    assert list(model[0]._parameters) == ["weight", "bias"]
    assert model[0].bias.requires_grad
    assert model[0].bias.grad is None
    assert {p.dtype for p in model.parameters()} == {torch.float32}


def test_writes_unseen_by_version_counters_are_found():
    """Writes through `.data` and through NumPy are found by value."""
    model = nn.Linear(2, 2)
    snapshot = take(model)
    model.weight.data[0, 0] = 5
    model.bias.detach().numpy()[0] = 9
    assert set(snapshot.changed()) == {"weight", "bias"}
    snapshot.restore()
    assert snapshot.changed() == {}


def test_nan_equals_nan_and_an_equal_value_is_no_change():
    """NaN compares equal to NaN; a replaced tensor, list or number of equal value is no change, but the old object returns."""
    model = nn.Module()
    model.t, model.f, model.s, model.l = torch.tensor([float("nan"), 1.0]), float("nan"), (2, 3), [torch.ones(2)]
    old = (model.t, model.f, model.s, model.l)
    with kept(model) as snapshot:
        model.t, model.f, model.s, model.l = (
            torch.tensor([float("nan"), 1.0]),
            float("nan") * 1,
            tuple(range(2, 4)),
            [torch.ones(2)],
        )
        assert snapshot.changed() == {}
        model.l = [torch.zeros(2)]
        assert set(snapshot.changed()) == {"l"}
    assert all(now is was for now, was in zip((model.t, model.f, model.s, model.l), old, strict=True))


def test_a_container_that_grew_in_place_and_was_replaced_is_compared_with_what_it_held():
    """The comparison uses what the old list held when the snapshot was taken."""
    model = nn.Module()
    model.seen = [1]
    with kept(model) as snapshot:
        model.seen.append(2)
        model.seen = [1, 2]
        assert snapshot.changed() == {"seen": [1, 2]}
    assert model.seen == [1]


def test_identical_is_bitwise_but_for_nan():
    """Signs of zero, dtypes and shapes count; NaN payloads do not; sparse, complex, bool, half and empty work."""
    nan, other_nan = torch.tensor([0x7FC00000, 0x7FC00001], dtype=torch.int32).view(torch.float32).chunk(2)
    assert identical(nan, other_nan)
    assert not identical(torch.tensor([0.0]), torch.tensor([-0.0]))
    assert not identical(torch.ones(2), torch.ones(2, dtype=torch.float64))
    assert not identical(torch.ones(2, 1), torch.ones(2))
    for make in (
        lambda: torch.eye(3).to_sparse(),
        lambda: torch.tensor([1 + 2j, complex("nan")]),
        lambda: torch.tensor([1 + 2j]).conj(),
        lambda: torch.tensor([True, False]),
        lambda: torch.ones(3, dtype=torch.bfloat16)[1:],
        lambda: torch.ones(3, 5).T,
        lambda: torch.tensor(2.0),
        lambda: torch.empty(0, 3),
        lambda: torch.ones(2, device="meta"),
    ):
        assert identical(make(), make())
    assert not identical(torch.eye(3).to_sparse(), (2 * torch.eye(3)).to_sparse())
    assert not identical(torch.tensor([1 + 2j]), torch.tensor([1 + 3j]))


def test_inference_sparse_expanded_and_history_tensors_are_put_back():
    """Inference tensors, sparse and expanded ones, and non-leaf tensors with history in attributes are restored in place."""
    model = nn.Linear(2, 2)
    with torch.inference_mode():
        model.inf = torch.zeros(2)
    model.sparse, model.wide, model.folded = torch.eye(2).to_sparse(), torch.zeros(1).expand(3), model.weight * 2
    before, history = model.folded.detach().clone(), model.folded.grad_fn
    with kept(model) as snapshot:
        with torch.inference_mode():
            model.inf.add_(1)
        with torch.no_grad():
            model.sparse.mul_(2)
            model.wide[:1].add_(1)
            model.folded.detach().zero_()
        assert set(snapshot.changed()) == {"inf", "sparse", "wide", "folded"}
    assert model.inf.is_inference()
    assert model.inf.tolist() == [0, 0]
    assert model.sparse.to_dense().tolist() == [[1, 0], [0, 1]]
    assert model.wide.tolist() == [0, 0, 0]
    assert torch.equal(model.folded, before)
    assert model.folded.grad_fn is history


def test_objects_inside_are_state_too():
    """A cache object, a dataclass, a slotted object and a bound method's owner inside the module are put back."""

    @dataclass
    class Cache:
        keys: list
        n: int = 0

    class Slotted:
        __slots__ = ("late", "n")

    model, other = nn.Module(), Cache([], 3)
    model.cache, model.slotted, model.fn = Cache([torch.zeros(1)]), Slotted(), collections.Counter
    model.slotted.n, model.slotted.late, model.hook = 0, 1, other.__eq__
    with kept(model) as snapshot:
        model.cache.keys[0] += 1
        model.cache.keys.append(torch.ones(1))
        model.cache.n = 4
        model.slotted.n = 2
        assert set(snapshot.changed()) == {"cache.keys", "cache.keys.0", "cache.n", "slotted.n"}
    assert (len(model.cache.keys), model.cache.n, model.slotted.n, float(model.cache.keys[0])) == (1, 0, 0, 0.0)


def test_flags_hooks_and_order_come_back():
    """Training flags, hooks, and the order of attributes and of ordered dicts are as before, also after an error."""
    model = nn.Sequential(nn.Linear(1, 1), nn.Dropout()).eval()
    model.table = collections.OrderedDict(a=1, b=2)
    before = _vars(model)
    with pytest.raises(ZeroDivisionError), kept(model):  # noqa: PT012
        model.train()
        model[0].register_forward_hook(lambda *_: None)
        model.table.move_to_end("a")
        value = vars(model).pop("training")
        vars(model)["training"] = value
        raise ZeroDivisionError
    assert [(p, [k for k, _ in items]) for p, items in _vars(model)] == [(p, [k for k, _ in i]) for p, i in before]
    assert not any(m.training for m in model.modules())
    assert not model[0]._forward_hooks
    assert list(model.table) == ["a", "b"]


def test_the_instance_forward_is_left_to_install():
    """A dispatcher that is put on a module inside the block stays: state never touches `forward`."""
    model = nn.Linear(1, 1)
    with kept(model) as snapshot:
        vars(model)["forward"] = forward = lambda x: x
        assert snapshot.changed() == {}
    assert vars(model)["forward"] is forward


def test_random_generators_are_put_back():
    """CPU, Python and NumPy generators are as before; seeding the CPU does not queue a seed for other devices."""
    model, before = nn.Linear(1, 1), states()
    with kept(model):
        seed(3)
        torch.rand(1)
        random.random()
        np.random.rand()  # noqa: NPY002
    assert torch.equal(states()["cpu"], before["cpu"])
    assert random.getstate() == before["python"]
    with rng_kept():
        seed(4)
        first = (torch.rand(1), random.random(), np.random.rand())  # noqa: NPY002
        seed(4)
        assert (torch.rand(1), random.random(), np.random.rand()) == first  # noqa: NPY002
    assert torch.equal(states()["cpu"], before["cpu"])
    assert not torch.cuda.is_initialized()


def test_snapshots_share_copies_of_unchanged_tensors():
    """A snapshot taken `like` another one holds no second copy of what is equal."""
    model = nn.Linear(2, 2)
    outer = take(model)
    with torch.no_grad():
        model.bias.add_(1)
    inner = take(model, like=outer)
    copies = [{s.name: s.copy for s in x._tensors.values()} for x in (outer, inner)]
    assert copies[0]["weight"] is copies[1]["weight"]
    assert copies[0]["bias"] is not copies[1]["bias"]
    outer.restore()
    assert set(inner.changed()) == {"bias"}


def test_names_of_tensors_are_those_of_torch():
    """Tied weights have one name, the first of `named_parameters`."""
    model = nn.ModuleDict({"emb": nn.Embedding(3, 2), "head": nn.Linear(2, 3, bias=False)})
    model["head"].weight = model["emb"].weight
    assert list(take(model).tensors) == ["emb.weight"]


# --- patched --------------------------------------------------------------------------------------------------------


def test_patched_leaves_no_trace():
    """`vars` has the same keys, order and objects after an error; an instance `forward` comes back; signatures stay."""
    plain, own = nn.Linear(1, 1), nn.Linear(1, 1)
    own.forward = mine = lambda x: x + 1
    before = [list(vars(m).items()) for m in (plain, own)]
    calls = []

    def spy(forward):
        def run(*args, **kwargs):
            calls.append(forward)
            return forward(*args, **kwargs)

        return run

    with pytest.raises(ZeroDivisionError), patched([(plain, spy), (own, spy)]):  # noqa: PT012
        plain(torch.ones(1, 1)), own(torch.ones(1, 1))
        assert plain.forward.__name__ == "forward"
        raise ZeroDivisionError
    assert len(calls) == 2
    assert calls[1] is mine
    for was, module in zip(before, (plain, own), strict=True):
        assert [(k, id(v)) for k, v in was] == [(k, id(v)) for k, v in vars(module).items()]
