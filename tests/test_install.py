"""The dispatcher in service: who answers a call, what is counted, what is said, and how everything goes back."""

from __future__ import annotations

import gc
import os
import threading
import warnings
import weakref
from typing import Any

import pytest
import torch
from torch import nn

from tt_core import callkey
from tt_core.errors import DeclinedError, FallbackWarning, UsageError
from tt_core.install import Dispatcher, Entry, dispatcher, install, stale, stats, untune
from tt_core.values import Axis, Built, Call, CallKey, Candidate, Facts, Shapes, Unit, Weights

X = torch.zeros(2, 4)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.second(self.first(x))


class Modes(nn.Module):
    def forward(self, x, mode="a", *, scale=1.0):
        return x


def unit_of(module: nn.Module, path: str = "") -> Unit:
    return Unit(path=path, module=module, forward=module.forward)


def entry(
    unit: Unit, built: Any, call: Call | None = None, facts: Facts | None = None, covers: Any = None, **claims: Any
):
    key = callkey.key_of(unit.forward, call or Call(X), training=unit.module.training)
    assert isinstance(key, CallKey)
    claims.setdefault("weights", Weights.LIVE)
    return Entry(
        unit=unit, key=key, built=Built(call=built, **claims), covers=covers, facts=facts or Facts(),
        candidate=Candidate.of("fake"),
    )  # fmt: skip


def plus(n: float):
    """A built that can be told from eager: it adds to the result of the unit's own forward."""
    return lambda unit: lambda *a, **k: unit.forward(*a, **k) + n


def tuned(module: nn.Module, built=None, **claims: Any):
    unit = unit_of(module)
    return install([entry(unit, (built or plus(1))(unit), **claims)])


@pytest.fixture(autouse=True)
def _no_grad():
    with torch.no_grad():
        yield


@pytest.fixture
def net() -> Net:
    return Net().eval()


def test_the_built_answers_what_it_covers(net):
    """A covered call is served by the built, every other by the original, and both are told apart in the stats."""
    want = net(X)
    axis = Axis(lo=1, hi=4, symbol="s0")
    tuned(net, covers=Shapes(leaves=((axis, 4),)))
    stats(net, hits=True)
    assert torch.equal(net(X), want + 1)
    assert torch.equal(net(x=X), want + 1)
    with pytest.warns(FallbackWarning, match=r"the tuned Net ran its original forward: x has sizes \[5, 4\].*sample"):
        assert net(torch.zeros(5, 4)).shape == (5, 4)
    found = stats(net)[""]
    assert (found.hits, dict(found.falls), found.candidates) == (2, {"shape": 1}, ("fake",))


def test_each_kind_warns_once_and_counts_always(net):
    """The first fall of a kind warns with the fix, later ones are only counted; nothing raises."""
    tuned(net)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(3):
            net(X.double().float()[:, None])
            with torch.enable_grad():
                net(X)
    assert len(seen) == 2
    assert "wrap the call in torch.inference_mode()" in str(seen[1].message)
    assert seen[0].filename == __file__
    assert dict(stats(net)[""].falls) == {"shape": 3, "grad": 3}


def test_reset_begins_anew(net):
    """What fell while tuning was measured is forgotten by `reset`: counts from 0, and each kind warns again."""
    made = tuned(net)
    for _ in range(2):
        with pytest.warns(FallbackWarning, match="axes"):
            net(X[0])
        made.reset()
        assert stats(net)[""].falls == {}


def test_wrong_calls_raise_what_the_original_raises(net):
    """A call that does not fit the signature raises the original's own TypeError."""
    tuned(net)
    with pytest.warns(FallbackWarning, match="signature"), pytest.raises(TypeError, match=r"Net\.forward\(\)"):
        net()
    with pytest.raises(TypeError, match=r"Net\.forward\(\) takes 2"):
        net(X, X)
    with pytest.raises(TypeError, match="unexpected keyword argument 'y'"):
        net(y=X)
    assert stats(net)[""].falls["signature"] == 3


def test_the_original_gets_the_callers_spelling():
    """A fall passes the arguments on as they were spelled: a decorated forward can tell."""

    class Spelled(nn.Module):
        def plain(self, x, mode="a"):
            return x

        def forward(self, *args, **kwargs):
            return len(args), sorted(kwargs)

        forward.__signature__ = __import__("inspect").signature(plain)

    module = Spelled().eval()
    tuned(module, lambda _: lambda *a, **k: "built")
    assert module(X) == module(x=X, mode="a") == "built"
    with pytest.warns(FallbackWarning):
        assert module(X, mode="b") == (1, ["mode"])
    assert module(mode="b", x=X) == (0, ["mode", "x"])


def test_many_keys_on_one_unit():
    """Each key has its own built; a call of no key falls."""
    module = Modes().eval()
    unit = unit_of(module)
    calls = [
        Call(X),
        Call(X, "b"),
        Call(X, 1),
        Call(X, 1.0),
        Call(X, scale=2.0),
        Call(X[0]),
        Call(X, X),
        Call(X.double()),
    ]
    install([entry(unit, lambda *_a, i=i, **_k: i, call) for i, call in enumerate(calls)])
    assert [module(*call.args, **call.kwargs) for call in calls] == list(range(8))
    assert module(scale=2.0, mode="a", x=X) == 4
    with pytest.warns(FallbackWarning, match="mode has a value that was not tuned"):
        assert module(X, "c") is X


def test_one_key_with_two_ranges():
    """Two entries of one key and other sizes are both found."""
    module = Modes().eval()
    unit = unit_of(module)
    sizes = [Shapes(leaves=((n, 4),)) for n in (2, 3)]
    install([entry(unit, lambda *_a, i=i, **_k: i, covers=each) for i, each in enumerate(sizes)])
    assert module(X) == 0
    assert module(torch.zeros(3, 4)) == 1


def test_a_built_may_call_the_original(net):
    """`unit.forward` inside a built is the original: no recursion into the dispatcher."""
    tuned(net)
    stats(net, hits=True)
    net(X)
    assert stats(net)[""].hits == 1


def test_counting_hits_is_switched(net):
    """Hits are counted only between `hits=True` and `hits=False`; falls always."""
    tuned(net)
    net(X)
    assert stats(net)[""].hits is None
    assert stats(net, hits=True)[""].hits == 0
    net(X)
    assert stats(net)[""].hits == 1
    assert stats(net, hits=False)[""].hits is None


def test_stats_have_the_paths_of_the_object(net):
    """Paths are those of the object that is asked about, also for a plain object that holds modules."""
    install([entry(unit_of(net.first, "first"), lambda x: x), entry(unit_of(net.second, "second"), lambda x: x)])
    assert set(stats(net)) == {"first", "second"}
    assert set(stats(net.first)) == {""}
    assert set(stats([{"a": net}])) == {"0['a'].first", "0['a'].second"}


class Raises:
    """A built that raises as often as it is told."""

    def __init__(self, times: int = 99) -> None:
        self.calls, self.times = 0, times

    def __call__(self, *_: Any, **__: Any) -> str:
        self.calls += 1
        if self.calls <= self.times:
            message = "no kernel\nand a long story"
            raise RuntimeError(message)
        return "built"


def test_a_raising_built_costs_only_itself(net):
    """A built that raises is answered for by the original, warned about once, and retired after three times."""
    built, want = Raises(), net(X)
    tuned(net, lambda _: built)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(5):
            assert torch.equal(net(X), want)
    assert built.calls == 3
    assert ["fake raised RuntimeError: no kernel" in str(each.message) for each in seen] == [True, False]
    assert "out of service" in str(seen[1].message)
    found = stats(net)[""]
    assert (dict(found.falls), found.retired) == ({"error": 3, "retired": 2}, 1)


def test_the_originals_exception_is_the_answer():
    """Where the original raises too, its exception arrives alone, and the built is not blamed."""

    class Picky(nn.Module):
        def forward(self, x):
            message = "only on Sundays"
            raise LookupError(message)

    module = Picky().eval()
    tuned(module, lambda _: Raises())
    with pytest.raises(LookupError, match="Sundays") as caught:
        module(X)
    assert caught.value.__context__ is None
    assert stats(module)[""].falls == {}


@pytest.mark.parametrize("facts", [Facts(writes_inputs=True), Facts(writes_state=("pos",))])
def test_a_unit_that_writes_is_not_run_twice(net, facts):
    """Where inputs or state may be half written already, the built's own error is raised, and counted."""
    tuned(net, lambda _: Raises(1), facts=facts)
    with pytest.warns(FallbackWarning), pytest.raises(RuntimeError, match="no kernel"):
        net(X)
    assert net(X) == "built"
    assert stats(net)[""].falls == {"error": 1}


@pytest.mark.parametrize("facts", [Facts(), Facts(writes_inputs=True)])
def test_a_call_that_is_handed_back_is_a_fall_of_its_own(net, facts):
    """The original answers, also where it writes; the built stays in service however often it declines."""
    want = net(X)

    def built(x):
        if x.shape == X.shape:
            message = "not these\nrows"
            raise DeclinedError(message)
        return "built"

    tuned(net, lambda _: built, facts=facts, covers=None)
    with pytest.warns(FallbackWarning, match="fake handed the call back: not these: tune again"):
        got = [net(X) for _ in range(5)]
    assert all(torch.equal(one, want) for one in got)
    found = stats(net)[""]
    assert (dict(found.falls), found.retired) == ({"declined": 5}, 0)


def test_ctrl_c_passes(net):
    """KeyboardInterrupt in a built is nobody's error."""

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    tuned(net, lambda _: interrupted)
    with pytest.raises(KeyboardInterrupt):
        net(X)
    assert stats(net)[""].falls == {}


def test_results_do_not_become_inference_tensors(net):
    """A built that runs in inference mode hands normal tensors to a caller that does not."""

    def built(x):
        with torch.inference_mode():
            return {"y": x + 1, "n": 3}

    tuned(net, lambda _: built)
    with torch.inference_mode():
        assert net(X)["y"].is_inference()
    for _ in range(3):
        result = net(X)
        assert not result["y"].is_inference()
        assert result["n"] == 3
    with torch.inference_mode():
        assert net(X)["y"].is_inference()


def test_a_built_for_one_thread_gets_one(net):
    """A built that is not concurrent is never entered twice at a time."""
    inside, most = [], []

    def built(x):
        inside.append(1)
        most.append(len(inside))
        threading.Event().wait(0.001)
        inside.pop()
        return x

    tuned(net, lambda _: built, concurrent=False)

    def work() -> None:
        with torch.no_grad():
            for _ in range(10):
                net(X)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(most) == 40
    assert set(most) == {1}


def test_four_threads_are_counted_right(net):
    """Hits and falls of four threads add up, and each kind warned once."""
    tuned(net)
    stats(net, hits=True)

    def work() -> None:
        with torch.no_grad():
            for i in range(400):
                net(X if i % 4 else X[0])

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = stats(net)[""]
    assert (found.hits, found.falls) == (1200, {"shape": 400})
    assert len(seen) == 1


def test_on_and_off_leave_the_very_dict(net):
    """`off` leaves the same keys in the same order and the very objects, with and without an instance forward before."""
    for before in (None, lambda x: x):
        if before is not None:
            net.forward = before
            net.late = 1
        items = list(vars(net).items())
        made = tuned(net)
        made.off()
        assert [(k, id(v)) for k, v in vars(net).items()] == [(k, id(v)) for k, v in items]
        made.on()
        assert isinstance(net.forward, Dispatcher)
        made.on()
        made.off()
        made.off()
        assert [(k, id(v)) for k, v in vars(net).items()] == [(k, id(v)) for k, v in items]
        made.undo()


def test_undo_closes_once_outer_first(net):
    """`undo` closes every built, outer before inner, and a second time does nothing."""
    closed: list[str] = []
    inner = Built(call=lambda x: x, weights=Weights.LIVE, close=lambda: closed.append("inner"))
    made = tuned(net, inner=inner, close=lambda: closed.append("outer"))
    assert made.undo() == ()
    assert made.undo() == ()
    assert untune(net) == ()
    assert closed == ["outer", "inner"]
    assert "forward" not in vars(net)


def test_a_shared_built_is_closed_with_its_last_user(net):
    """A built under two units is closed when the second of them goes."""
    closed: list[int] = []
    built = Built(call=lambda x: x, weights=Weights.LIVE, close=lambda: closed.append(1))
    plain = [entry(unit_of(m, p), lambda x: x) for p, m in net.named_children()]
    made = install(
        [
            Entry(**{n: getattr(e, n) for n in ("unit", "key", "covers", "facts", "candidate")}, built=built)
            for e in plain
        ]
    )
    assert untune(net.first) == ("",)
    assert closed == []
    made.undo()
    assert closed == [1]


def test_a_close_that_raises_is_contained(net):
    """A close that raises becomes a warning; the model is back all the same."""
    made = tuned(net, close=lambda: 1 / 0)
    with pytest.warns(FallbackWarning, match="ZeroDivisionError"):
        made.undo()
    assert "forward" not in vars(net)


def test_somebody_elses_forward_is_left_alone(net):
    """A forward that the user set after tuning survives `off` and `undo`, which says so; the built is closed."""
    closed: list[int] = []
    made = tuned(net, close=lambda: closed.append(1))
    held = net.forward

    def mine(x):
        return held(x) * 2

    net.forward = mine
    made.off()
    assert net.forward is mine
    made.on()
    assert made.undo() == ("",)
    assert net.forward is mine
    assert closed == [1]
    want = Net.forward(net, X) * 2
    assert torch.equal(net(X), want)


def test_a_forward_held_from_before_is_the_original_after_undo(net):
    """Whoever kept `model.forward` calls the original after `undo`, without a word and without a count."""
    made = tuned(net)
    held, want = net.forward, Net.forward(net, X)
    made.undo()
    assert torch.equal(held(X), want)


def test_untune_finds_everything(net):
    """`untune` undoes every unit in the object, and tuning again works."""
    install([entry(unit_of(m, p), lambda x: x) for p, m in net.named_children()])
    assert untune([net]) == ("0.first", "0.second")
    assert not any("forward" in vars(m) for m in net.modules())
    tuned(net)
    assert untune(net) == ("",)


def test_units_must_lie_apart(net):
    """Units inside each other, or one module twice, are refused, and nothing is changed."""
    inner = entry(unit_of(net.first, "first"), lambda x: x)
    with pytest.raises(UsageError, match="lies inside"):
        install([entry(unit_of(net), lambda x: x), inner])
    with pytest.raises(UsageError, match="one module"):
        install([inner, entry(unit_of(net.first, "again"), lambda x: x)])
    assert not any("forward" in vars(m) for m in net.modules())


def test_a_dispatcher_alone_installs_nothing(net):
    """`dispatcher` makes what a race times, and leaves the module as it is."""
    unit = unit_of(net)
    made = dispatcher(unit, [entry(unit, plus(1)(unit))])
    assert torch.equal(made(X), net(X) + 1)
    assert "forward" not in vars(net)


def test_stale_finds_what_no_guard_notices(net):
    """Writes through `.data` go unnoticed in service and are found by content; storage-bound builts cannot go stale so."""
    tuned(net, weights=Weights.VALUES)
    other = Net().eval()
    tuned(other, weights=Weights.STORAGE)
    assert stale(net) == stale(other) == ()
    for module in (net, other):
        module.first.weight.data.numpy()[0, 0] += 1
    stats(net, hits=True)
    net(X)
    assert stats(net)[""].hits == 1
    assert stale(net) == ("",)
    assert stale(other) == ()
    other.first.weight = nn.Parameter(torch.zeros(4, 4))
    assert stale(other) == ("",)


def test_stale_reads_every_dtype():
    """bfloat16, bool, empty, transposed and zero-dim tensors have contents too."""

    class Kinds(nn.Module):
        def __init__(self):
            super().__init__()
            for i, t in enumerate([X.bfloat16(), X > 0, X[:0], X.t(), torch.tensor(1.5), X.to_sparse()]):
                self.register_buffer(f"b{i}", t.clone())

        def forward(self, x):
            return x

    module = Kinds().eval()
    tuned(module, weights=Weights.VALUES)
    assert stale(module) == ()
    module.b0.data.view(torch.int16).numpy()[0, 0] = 7
    assert stale(module) == ("",)


def test_weights_that_changed_fall_and_say_refresh(net):
    """An in-place change under a built that holds values falls back, right, with the fix."""
    made = tuned(net, weights=Weights.VALUES)
    assert made.units[0].path == ""
    net.first.weight.mul_(2)
    want = Net.forward(net, X)
    with pytest.warns(FallbackWarning, match=r"first\.weight was changed in place: call tt\.refresh"):
        assert torch.equal(net(X), want)


def test_nothing_is_left_behind():
    """A tuned model that is dropped is freed, tuned or untuned; cycles of tuning leave no tensor and no dispatcher."""
    for undone in (False, True):
        module = Net().eval()
        made = tuned(module, weights=Weights.VALUES)
        module(X)
        if undone:
            made.undo()
        gone = weakref.ref(module)
        del made, module
        gc.collect()
        assert gone() is None
    module = Net().eval()

    def cycle() -> int:
        made = tuned(module, weights=Weights.VALUES)
        module(X)
        made.undo()
        del made
        gc.collect()
        return sum(isinstance(each, (torch.Tensor, Dispatcher)) for each in gc.get_objects())

    first = cycle()
    assert [cycle() for _ in range(5)] == [first] * 5


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
def test_a_forked_child(net):
    """In a forked child a fork-safe built serves on, also one whose lock was held; another falls to the original."""
    net.eval()
    install(
        [
            entry(unit_of(net.first, "first"), lambda x: x + 100, concurrent=False),
            entry(unit_of(net.second, "second"), lambda x: x + 100, fork_safe=False),
        ],
    )
    want = X + 100
    assert torch.equal(net.first(X), want)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pid = os.fork()
        if pid == 0:
            ok = torch.equal(net.first(X), want) and not torch.equal(net.second(X), want)
            ok = ok and stats(net)["second"].falls == {"process": 1}
            os._exit(0 if ok else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert torch.equal(net.second(X), want)


def test_on_a_device_weights_are_looked_at_after_the_launch(net, monkeypatch):
    """On a device a STORAGE built runs first and its weights are looked at while the device works: moved weights drop its result."""
    monkeypatch.setattr("tt_core.guards.compiler._may_wait", lambda _: True)  # the one place that asks for the device
    model, given, ran = net, X, []

    def built(unit):
        def call(*args):
            ran.append(len(ran))
            return unit.forward(*args).double()  # told from the original by its dtype

        return call

    unit = unit_of(model)
    tuned_ = install([entry(unit, built(unit), Call(given), weights=Weights.STORAGE)])
    assert model(given).dtype is torch.float64
    first = next(iter(model.parameters()))
    owner = next(m for m in model.modules() if any(p is first for p in m._parameters.values()))
    name = next(n for n, p in owner._parameters.items() if p is first)
    setattr(owner, name, torch.nn.Parameter(first.detach().clone()))
    with pytest.warns(FallbackWarning, match="tt.refresh"):
        assert model(given).dtype is torch.float32
    assert len(ran) == 2
    assert sum(stats(model)[""].falls.values()) == 1
    tuned_.undo()
