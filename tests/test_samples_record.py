"""Recording calls of units, observing eager runs, and the facts that follow from values."""

from __future__ import annotations

import cProfile
import random
import sys

import numpy as np
import pytest
import torch
from torch import nn

from tt_core.errors import SampleError
from tt_core.samples import observe, read, record
from tt_core.samples.overlap import aliases
from tt_core.state import take
from tt_core.survey import inspect
from tt_core.values import Axis, Call, Unit

CAP = 1 << 30
X = torch.arange(6.0).reshape(2, 3)


class Of(nn.Module):
    """A module with a given forward."""

    def __init__(self, fn, **attributes):
        super().__init__()
        for name, value in attributes.items():
            if isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter):
                self.register_buffer(name, value)
            else:
                setattr(self, name, value)
        self.fn = fn

    def forward(self, x, *rest, **options):
        return self.fn(self, x, *rest, **options)


def _unit(module, path="", **fields):
    return Unit(path=path, module=module, forward=module.forward, **fields)


def _record(obj, dataset, *paths, **options):
    feed = read(dataset, obj)
    units = {unit.path: unit for unit in inspect(obj, feed, lambda: 0.0).units()}
    return record(obj, feed, [units[path] for path in paths], **{"byte_cap": CAP, **options})


def _facts(fn, dataset=(X,), **attributes):
    found = _record(Of(fn, **attributes), list(dataset), "")[""]
    assert not found[0].untunable, found[0].untunable
    return found[0].facts


# --- record ---------------------------------------------------------------------------------------------------------


def test_calls_are_grouped_by_key_with_all_sizes_and_a_few_samples():
    """Every spelling of a call shares a key; sizes of all calls count; the smallest, the largest and the first are kept."""
    model = nn.Sequential(nn.Linear(3, 3))
    sizes = [4, 2, 9, 5, 7, 5]
    found = _record(model, [torch.ones(n, 3) for n in sizes], "", "0", keep=3)
    for path in ("", "0"):
        (calls,) = found[path]
        assert calls.seen == 6
        assert calls.shapes.leaves == ((Axis(lo=2, hi=9, symbol="s0"), 3),)
        assert [sample.call.args[0].shape[0] for sample in calls.samples] == [4, 2, 9]
        assert [sample.index for sample in calls.samples] == [0, 1, 2]
        assert all(sample.truth is not None for sample in calls.samples)
    assert found["0"][0].samples[0].count == 1


def test_calls_of_self_forward_are_recorded_and_the_unit_is_as_before():
    """A direct `self.model.forward(...)` is seen; vars(), state and RNG are as before, also when a sample fails."""

    class Direct(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin, self.n = nn.Linear(3, 3), 0

        def forward(self, x):
            self.n += 1
            if x.shape[0] == 7:
                raise ZeroDivisionError
            return self.lin.forward(x) + torch.rand(())

    model = Direct()
    before, rng, state = [list(vars(m).items()) for m in model.modules()], torch.random.get_rng_state(), take(model)
    assert _record(model, [X], "lin")["lin"][0].seen == 1
    units = [_unit(model.lin, "lin")]
    with pytest.raises(SampleError, match="sample 1 of 2"):
        record(model, read([X, torch.ones(7, 3)], model), units, byte_cap=CAP)
    assert [[(k, id(v)) for k, v in vars(m).items()] for m in model.modules()] == [
        [(k, id(v)) for k, v in one] for one in before
    ]
    assert state.changed() == {}
    assert torch.equal(rng, torch.random.get_rng_state())


def test_recorded_calls_are_as_they_were_before_the_call():
    """A unit that writes its input is recorded with what it was given, and sees the same when observed."""
    (calls,) = _record(Of(lambda m, x: x.add_(1).sum()), [X.clone()], "")[""]
    assert torch.equal(calls.samples[0].call.args[0], X)
    assert float(calls.samples[0].expected.result) == float((X + 1).sum())


def test_one_unit_called_twice_in_a_pass_has_both_calls():
    """Calls of one unit from several places and under several keys are all there."""
    model = Of(lambda m, x: m.lin(x).sum() + m.lin(x[0]).sum(), lin=nn.Linear(3, 3))
    found = _record(model, [X, X * 2], "lin")["lin"]
    assert [(calls.seen, calls.key.tensors[0].rank) for calls in found] == [(2, 2), (2, 1)]
    assert [sample.count for sample in found[0].samples] == [2, 2]


def test_more_than_four_constant_values_run_eager():
    """The fifth value of a constant argument and those after it are untunable; another structure counts anew."""

    class Step(nn.Module):
        def forward(self, x, n=0, mask=None):
            return x + n

    found = _record(Step(), [*((X, n) for n in range(6)), (X, 0, X)], "")[""]
    assert [bool(calls.untunable) for calls in found] == [False] * 4 + [True] * 2 + [False]
    assert "more than 4 values" in found[4].untunable
    assert found[4].samples == ()


def test_opaque_arguments_recursion_and_inner_autocast_are_untunable_with_the_reason():
    """What cannot be compared, a module inside itself, and a unit under the model's own autocast stay eager."""

    class Odd:
        pass

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = Of(lambda m, x, odd: x), Of(lambda m, x, n=1: m(x, 0) if n else x)
            self.c = nn.Linear(3, 3)

        def forward(self, x):
            with torch.autocast("cpu", torch.bfloat16):
                self.c(x)
            return self.b(self.a(x, Odd()))

    model = Model()
    units = [_unit(module, name) for name, module in model.named_children()]
    found = record(model, read([X], model), units, byte_cap=CAP)
    reasons = {path: calls[0].untunable for path, calls in found.items()}
    assert "Odd" in reasons["a"]
    assert reasons["b"] == "the module calls itself"
    assert "autocast" in reasons["c"]
    assert all(not calls[0].samples for calls in found.values())


def test_autocast_around_everything_is_no_obstacle():
    """A user who tunes under autocast gets keys of that autocast state."""
    with torch.autocast("cpu", torch.bfloat16):
        (calls,) = _record(nn.Linear(3, 3), [X], "")[""]
    assert not calls.untunable
    assert calls.key.ambient.autocast == (("cpu", torch.bfloat16),)
    assert calls.samples[0].expected.result.dtype == torch.bfloat16


def test_the_byte_cap_holds_over_all_units():
    """No more bytes are recorded than allowed; a key without a sample says why."""
    model = nn.Sequential(nn.ReLU(), nn.Tanh())
    found = _record(model, [torch.ones(n, 3) for n in (1, 2, 3)], "0", "1", byte_cap=20)
    kept = [sum(s.call.args[0].nbytes for s in calls.samples) for (calls,) in found.values()]
    assert sum(kept) <= 20
    assert kept[0] > 0
    assert "byte cap" in found["1"][0].untunable


def test_a_unit_that_cannot_run_alone_is_untunable():
    """A unit that needs what its parent sets around it says so."""

    class Inner(nn.Module):
        def forward(self, x):
            return x + self.offset

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Inner()

        def forward(self, x):
            self.inner.offset = 1
            result = self.inner(x)
            del self.inner.offset
            return result

    (calls,) = _record(Outer(), [X], "inner")["inner"]
    assert calls.untunable.startswith("it cannot be run again on its own: AttributeError")


def test_a_unit_that_never_ran_has_no_calls():
    """No call, no key."""
    model = Of(lambda m, x: x, lin=nn.Linear(3, 3))
    assert record(model, read([X], model), [_unit(model.lin, "lin")], byte_cap=CAP) == {"lin": ()}


# --- observe --------------------------------------------------------------------------------------------------------


def test_each_call_starts_from_the_same_state_and_seed():
    """State is put back before each call; generators are seeded per call; everything is as before afterwards."""

    def step(m, x):
        m.n += 1
        m.log.append(1)
        return x + m.n + torch.rand(()), random.random(), float(np.random.rand())  # noqa: NPY002  the global generator is the point

    model = Of(step, n=torch.zeros(1), log=[])
    rng, python = torch.random.get_rng_state(), random.getstate()
    first, second = observe(model.forward, _unit(model), [Call(X), Call(X)], seed=5)
    again, _ = observe(model.forward, _unit(model), [Call(X), Call(X)], seed=5)
    assert torch.equal(first.result[0], again.result[0])
    assert first.result[1:] == again.result[1:]
    assert not torch.equal(first.result[0], second.result[0])
    assert {name: float(v) if name == "n" else v for name, v in second.state_after.items()} == {"n": 1.0, "log": [1]}
    assert (float(model.n), model.log) == (0.0, [])
    assert torch.equal(rng, torch.random.get_rng_state())
    assert random.getstate() == python


def test_a_result_that_a_later_call_overwrites_is_seen():
    """Results are copied after the last call: a candidate that reuses its output buffer is found out."""
    buffer = torch.zeros(2, 3)
    shared = buffer.copy_
    first, second = observe(shared, _unit(nn.ReLU()), [Call(X), Call(X * 2)], seed=0)
    assert torch.equal(first.result, X * 2)
    assert torch.equal(second.result, X * 2)
    assert first.result is not buffer


def test_a_result_that_is_state_is_seen_as_returned():
    """A result that shares memory with the state is copied before the state is put back."""

    def step(m, x):
        m.cache.add_(1)
        return m.cache[:1]

    model = Of(step, cache=torch.zeros(2))
    first, second = observe(model.forward, _unit(model), [Call(X), Call(X)], seed=0)
    assert (float(first.result), float(second.result)) == (1.0, 1.0)
    assert first.aliases == {(0, ("state", "cache"))}
    assert model.cache.tolist() == [0, 0]


def test_inputs_after_are_none_unless_a_value_or_a_container_changed():
    """A written tensor and a dict with a new key are changes; reading is none."""
    read_only, written, grown = (
        observe(fn, _unit(Of(None)), [Call(X, {"a": X})], seed=0)[0].inputs_after
        for fn in (lambda x, d: x + 1, lambda x, d: x.add_(1), lambda x, d: d.update(b=x))
    )
    assert read_only is None
    assert torch.equal(written["x"], X + 1)
    assert list(grown["rest"][0]) == ["a", "b"]


def test_an_error_leaves_the_state():
    """Whatever raises in the run passes; the state is put back."""

    def step(m, x):
        m.n += 1
        raise ZeroDivisionError

    model = Of(step, n=0)
    with pytest.raises(ZeroDivisionError):
        observe(model.forward, _unit(model), [Call(X)], seed=0)
    assert model.n == 0


def test_observations_own_their_tensors():
    """A result that is the input, or a parameter, is copied; inference tensors become normal ones."""
    model = Of(lambda m, x: (x, m.w), w=nn.Parameter(torch.ones(2)))
    with torch.inference_mode():
        call = Call(torch.ones(2))
        (one,) = observe(model.forward, _unit(model), [call], seed=0)
    assert one.result[0] is not call.args[0]
    assert one.result[1] is not model.w
    assert not one.result[0].is_inference()
    assert one.aliases == {(0, ("input", 0)), (1, ("state", "w"))}


def test_only_common_elements_are_shared_memory():
    """Chunks of one tensor share storage but no element; views and the same result twice do."""
    base = torch.zeros(4, 6)
    left, right = base.chunk(2, dim=1)
    assert aliases([left, right], [], {}) == frozenset()
    assert aliases([left, base[1]], [], {}) == {(1, ("result", 0))}
    assert aliases([base[:, 1], 3, None], [base[:, :2]], {"b": base[0]}) == {(0, ("input", 0)), (0, ("state", "b"))}
    assert aliases([base[::2], base[1::2]], [], {}) == frozenset()
    assert aliases([base.view(torch.int32)], [base], {}) == {(0, ("input", 0))}
    assert aliases([torch.zeros(0)], [torch.zeros(0)], {}) == frozenset()


# --- facts ----------------------------------------------------------------------------------------------------------


def test_a_pure_unit_has_no_facts():
    """A linear layer shows nothing special."""
    facts = _record(nn.Linear(3, 3), [X], "")[""][0].facts
    assert not facts.needs
    assert not facts.tensor_kinds
    assert (facts.hooks_inside, facts.tied, facts.custom_autograd) == (False, False, False)


def test_writes_are_found_by_value():
    """Inputs and state, also through `.data` and NumPy, which version counters do not see."""

    def numpy_write(m, x):
        m.b.detach().numpy()[0] = 9
        return x + 1

    assert _facts(lambda m, x: x.add_(1).sum()).writes_inputs
    assert _facts(lambda m, x: x.data.add_(1).sum()).writes_inputs
    assert _facts(numpy_write, b=torch.zeros(2)).writes_state == ("b",)
    facts = _facts(lambda m, x: m.log.append(1) or x + 1, log=[])
    assert (facts.writes_state, facts.writes_inputs) == (("log",), False)


def test_aliases_random_and_non_tensors():
    """Results that share memory, results of random numbers, and results that are not tensors."""
    assert _facts(lambda m, x: x[:, :2]).aliases
    assert not _facts(lambda m, x: x.chunk(3, -1)[0] + 1).aliases
    assert _facts(lambda m, x: x + torch.rand(())).random
    assert _facts(lambda m, x: x + random.random()).random
    assert not _facts(lambda m, x: x + 0 * torch.rand(())).random
    assert not _facts(lambda m, x: nn.functional.dropout(x, 0.5, training=False) + 1).random
    assert _facts(lambda m, x: (x + 1, x.shape[0])).non_tensors
    assert not _facts(lambda m, x: (x + 1, None)).non_tensors


def test_hooks_inside_and_tied_weights():
    """Hooks on inner modules count, hooks on the unit itself run outside; tied parameters and shared storage count."""
    inner, outer = nn.Sequential(nn.ReLU()), nn.Sequential(nn.ReLU())
    inner[0].register_forward_pre_hook(lambda *_: None)
    outer.register_forward_hook(lambda *_: None)
    assert _record(inner, [X], "")[""][0].facts.hooks_inside
    assert not _record(outer, [X], "")[""][0].facts.hooks_inside
    weight = nn.Parameter(torch.ones(3, 3))
    assert _facts(lambda m, x: x @ m.a, a=weight, b=weight).tied
    assert _facts(lambda m, x: x @ m.a, a=weight, b=nn.Parameter(weight.data)).tied
    assert not _facts(lambda m, x: x @ m.a, a=weight, b=nn.Parameter(torch.ones(3))).tied


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


def test_a_callers_profiler_stays_in_place():
    """The hook of a profiler that is written in C cannot be put back once it is taken out: it is left alone."""
    profiler = cProfile.Profile()
    with profiler:
        facts = _facts(lambda m, x: torch.sigmoid(x))
        if sys.version_info < (3, 12):  # later it watches in another way, and takes no hook
            assert sys.getprofile() is not None
    assert not facts.custom_autograd
    assert any(entry.code == "<built-in method torch.sigmoid>" for entry in profiler.getstats())


def test_custom_autograd_functions_are_seen_without_gradients():
    """A Function runs under no_grad and is seen; a profiler that was there is there again."""
    profile = sys.getprofile()
    assert _facts(lambda m, x: Double.apply(x)).custom_autograd
    assert not _facts(lambda m, x: torch.sigmoid(x)).custom_autograd
    assert sys.getprofile() is profile


def test_kinds_of_tensors():
    """Sparse and complex tensors and subclasses among inputs, results and state are named."""

    class Mine(torch.Tensor):
        pass

    assert _facts(lambda m, x: torch.view_as_complex(x[..., None].expand(2, 3, 2).contiguous())).tensor_kinds == {
        "complex"
    }
    assert _facts(lambda m, x: x + 1, b=torch.eye(2).to_sparse()).tensor_kinds == {"sparse"}
    assert "subclass" in _facts(lambda m, x: x + 1, [X.as_subclass(Mine)]).tensor_kinds
