"""Capture and replay on fake devices: XPU's, CUDA's and the common interface of torch."""

from __future__ import annotations

import contextlib
import functools
import threading
import warnings
from typing import Any

import pytest
import torch
import tt_xpugraph
from torch import nn

import tt_core as tt
from tt_core.install import Entry, dispatcher

LIMITS = tt.Limits(seconds=60)


class Net(nn.Module):
    """Keyword arguments, a constant, an input returned as it is, two results that share memory, one returned twice."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.table = [torch.arange(4.0)]

    def forward(self, x: torch.Tensor, *, scale: float = 2.0) -> dict[str, Any]:
        y = torch.relu(self.linear(x)) * scale + self.table[0]
        return {"y": y, "half": y[:, :2], "again": y, "x": x, "scale": scale, "none": None}


def build(make: Any, fake: Any, module: nn.Module, *calls: tt.Call, inner: Any = None, **options: Any) -> tt.Built:
    facts = options.pop("facts", {})
    unit, recorded = make(module, *calls, **facts)
    with torch.no_grad():
        return tt_xpugraph.tt_build(
            unit=unit, calls=recorded, device=fake.at, options=options, inner=inner, limits=LIMITS
        )


def same(built: tt.Built, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    with torch.no_grad():
        want, got = module(*args, **kwargs), built.call(*args, **kwargs)
    torch.testing.assert_close(got, want, rtol=0, atol=0)
    return got


@pytest.fixture
def net() -> Net:
    return Net().eval()


def test_results_are_eagers_and_the_callers(make, fake, net):
    """Bit for bit, in every spelling, with the same containers; kept results survive a thousand replays."""
    x = torch.randn(3, 4)
    built = build(make, fake, net, tt.Call(x, scale=2.0))
    kept = [same(built, net, torch.randn(3, 4), scale=2.0) for _ in range(3)]
    copies = [one["y"].clone() for one in kept]
    for _ in range(1000):
        with torch.no_grad():
            built.call(x=x)
    for one, copy in zip(kept, copies, strict=True):
        assert torch.equal(one["y"], copy)
    assert kept[0]["again"] is kept[0]["y"]
    assert kept[0]["half"].untyped_storage().data_ptr() == kept[0]["y"].untyped_storage().data_ptr()
    assert fake.captures == 1


def test_an_input_is_returned_as_the_callers_own(make, fake, net):
    """Not the graph's copy of it."""
    x = torch.randn(3, 4)
    built = build(make, fake, net, tt.Call(torch.randn(3, 4), scale=2.0))
    assert built.call(x)["x"] is x


def test_streams_are_ordered_both_ways(make, fake, net):
    """The side stream waits for the caller before the warm-up, the caller for the side stream after the capture."""
    build(make, fake, net, tt.Call(torch.randn(3, 4)))
    order = [entry for entry in fake.log if entry[0] in {"wait", "begin", "end"}]
    assert order == [("wait", 1, 0), ("begin", 1), ("end", 1), ("wait", 0, 1)]


def test_there_is_time_between_the_launch_and_the_copies(make, fake, net):
    """What the caller does meanwhile comes after the replay, once; its error goes through, and the graph serves on."""
    x = torch.randn(3, 4)
    built = build(make, fake, net, tt.Call(x))
    fake.log.clear()
    with torch.no_grad():
        result = built.overlapped(lambda: fake.log.append(("meanwhile",)), (x,))
        with pytest.raises(ZeroDivisionError):
            built.overlapped(lambda: 1 / 0, (x,))
    assert [entry[0] for entry in fake.log] == ["replay", "meanwhile", "replay"]
    assert torch.equal(result["y"], net(x)["y"])
    same(built, net, x)


def test_there_is_time_without_a_graph_too(make, fake, net):
    """Where the limit of graphs is reached, and the work itself runs."""
    calls = [tt.Call(torch.randn(size, 4)) for size in (2, 9)]
    inner = tt.Built(call=functools.partial(net.forward))
    built, asked = build(make, fake, net, *calls, inner=inner, graphs=2), []
    x = torch.randn(5, 4)
    with torch.no_grad(), pytest.warns(tt.FallbackWarning, match="its 2 graphs are taken"):
        result = built.overlapped(lambda: asked.append(True), (x,))
    assert asked == [True]
    assert torch.equal(result["y"], net(x)["y"])


def test_another_stream_waits_for_the_one_before(make, fake, net):
    """A replay on another stream must not overtake the copies out of the one before; on one stream nobody waits."""
    x = torch.randn(3, 4)
    built = build(make, fake, net, tt.Call(x))
    fake.log.clear()
    built.call(x)
    built.call(x)
    other = fake.stream()
    with fake.on(other):
        built.call(x)
    built.call(x)
    assert fake.log == [
        ("replay", 0),
        ("replay", 0),
        ("wait", other.number, 0),
        ("replay", other.number),
        ("wait", 0, other.number),
        ("replay", 0),
    ]


def test_weights_are_read_at_their_addresses(make, fake, net):
    """A write to a weight shows in the next call, without a capture."""
    built = build(make, fake, net, tt.Call(torch.randn(3, 4)))
    assert built.weights is tt.Weights.STORAGE
    with torch.no_grad():
        net.linear.weight.mul_(3.0)
    same(built, net, torch.randn(3, 4))
    assert fake.captures == 1


def test_sizes_in_between_are_captured_once_up_to_the_limit(make, fake, net):
    """Recorded sizes at build, largest first; others when first called; beyond the limit the call is handed back."""
    built = build(make, fake, net, tt.Call(torch.randn(2, 4)), tt.Call(torch.randn(9, 4)), graphs=3)
    assert fake.captures == 2
    for _ in range(3):
        for size in (2, 9, 5):
            same(built, net, torch.randn(size, 4))
    assert fake.captures == 3
    for size in (6, 7):
        with pytest.raises(tt.DeclinedError, match=r"its 3 graphs are taken.* graphs= sets how many"):
            built.call(torch.randn(size, 4))
    same(built, net, torch.randn(5, 4))
    assert fake.captures == 3
    assert "2 of 2 recorded calls" in built.notes[0]
    assert "up to 3 graphs" in built.notes[1]


def test_strides_have_graphs_of_their_own(make, fake, net):
    """A transposed input is not what was recorded, and its result is eager's."""
    built = build(make, fake, net, tt.Call(torch.randn(4, 4)))
    same(built, net, torch.randn(4, 4).t())
    same(built, net, torch.randn(4, 4))
    assert fake.captures == 2


class Strides(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 2
        return (y.permute(1, 0, 2), (x + 1)[:, 1:], (x - 1)[:, :, :1].expand(2, 3, 5), x.new_zeros(0, 3) + 1)


def test_sizes_and_strides_of_results_are_eagers(make, fake):
    """Permuted, cut, expanded and empty results."""
    module, x = Strides().eval(), torch.randn(2, 3, 4)
    built = build(make, fake, module, tt.Call(x))
    got, want = same(built, module, torch.randn(2, 3, 4)), module(x)
    assert [(t.shape, t.stride()) for t in got] == [(t.shape, t.stride()) for t in want]


def test_threads_get_their_own_results(make, fake, net):
    """Four threads, each with its own stream and its own sizes."""
    sizes = (2, 3, 4, 5)
    built = build(make, fake, net, *(tt.Call(torch.randn(size, 4)) for size in sizes))
    failed: list[BaseException] = []

    def work(size: int) -> None:
        try:
            with fake.on(fake.stream()):
                for _ in range(50):
                    same(built, net, torch.randn(size, 4))
        except BaseException as error:  # noqa: BLE001  reported by the main thread
            failed.append(error)

    threads = [threading.Thread(target=work, args=(size,)) for size in sizes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


def test_two_units_in_a_row(make, fake):
    """One's result is the other's input; replays alternate."""
    first, second = nn.Linear(4, 6).eval(), nn.Linear(6, 4).eval()
    one = build(make, fake, first, tt.Call(torch.randn(2, 4)))
    two = build(make, fake, second, tt.Call(torch.randn(2, 6)))
    x = torch.randn(2, 4)
    for _ in range(20):
        with torch.no_grad():
            want, x = second(first(x)), two.call(one.call(x))
        assert torch.equal(x, want)


def test_random_numbers_are_drawn_anew(make, fake):
    """Each replay draws; a build leaves the generators as they were."""
    module = nn.Dropout(0.5).train()
    before = torch.random.get_rng_state()
    built = build(make, fake, module, tt.Call(torch.ones(64)), facts={"random": True})
    assert torch.equal(torch.random.get_rng_state(), before)
    assert not torch.equal(built.call(torch.ones(64)), built.call(torch.ones(64)))


def test_borrowed_results_are_the_graphs_memory(make, fake, net):
    """By name only: the next call overwrites them, and one thread at a time may call."""
    built = build(make, fake, net, tt.Call(torch.randn(3, 4)), outputs="borrowed")
    first = built.call(torch.randn(3, 4))["y"]
    assert built.call(torch.randn(3, 4))["y"] is first
    assert not built.concurrent
    assert "borrowed" in built.notes[-1]


def test_what_is_inside_is_captured(make, fake, net):
    """A layer over another built captures that one, and runs it where no graph may serve."""
    ran: list[int] = []

    def inner(x: torch.Tensor, *, scale: float = 2.0) -> Any:
        ran.append(len(x))
        return net(x, scale=scale)

    recorded = [tt.Call(torch.randn(size, 4)) for size in (3, 2)]
    built = build(make, fake, net, *recorded, inner=tt.Built(call=inner), graphs=1)
    captured = len(ran)
    assert captured == 4  # three times to warm up, once while capturing
    same(built, net, torch.randn(3, 4))
    assert len(ran) == captured
    with pytest.warns(tt.FallbackWarning, match="its 1 graphs are taken"):
        same(built, net, torch.randn(5, 4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same(built, net, torch.randn(6, 4))
    assert ran[captured:] == [5, 6]


def test_what_is_handed_back_is_counted(make, fake, net):
    """In service the original answers such a call; it is warned about once, and the built stays."""
    unit, calls = make(net, tt.Call(torch.randn(2, 4)), tt.Call(torch.randn(9, 4)))
    with torch.no_grad():
        built = tt_xpugraph.tt_build(
            unit=unit, calls=calls, device=fake.at, options={"graphs": 2}, inner=None, limits=LIMITS
        )
    candidate = tt.Candidate.of(f"{fake.at.type}_graph")
    entry = Entry(unit=unit, key=calls.key, built=built, covers=calls.shapes, facts=calls.facts, candidate=candidate)
    served = dispatcher(unit, [entry])
    with torch.no_grad():
        for size in (2, 9):
            served(torch.randn(size, 4))
        x = torch.randn(5, 4)
        with pytest.warns(tt.FallbackWarning, match="handed the call back: its 2 graphs are taken"):
            assert torch.equal(served(x)["y"], net(x)["y"])
        for _ in range(4):
            served(x)
    assert {str(kind): count.value for kind, count in served.falls.items() if count.value} == {"declined": 5}
    assert not served.routes[0].retired


def test_somebody_elses_capture_gets_the_work_itself(make, fake, net):
    """A graph cannot be replayed while the caller captures one of their own: what is inside runs, or the call goes back."""
    x = torch.randn(3, 4)
    calls = tt.Call(x), tt.Call(torch.randn(4, 4))
    built, chain = (build(make, fake, net, *calls, inner=inner) for inner in (None, tt.Built(call=net)))
    mine = fakes_graph(fake)
    with fake.on(fake.stream()):
        mine.capture_begin()
        with torch.no_grad():
            got = chain.call(x)["y"]
            for size in (3, 5):
                with pytest.raises(tt.DeclinedError, match="captures a graph of their own"):
                    built.call(torch.ones(size, 4))
        mine.capture_end()
    assert torch.equal(got, net(x)["y"])
    same(built, net, torch.randn(5, 4))


def fakes_graph(fake: Any) -> Any:
    kind = getattr(getattr(torch, fake.at.type), "XPUGraph" if fake.at.type == "xpu" else "CUDAGraph")
    return kind()


def test_memory_comes_back(make, fake, net):
    """After `close` every graph is reset, once the device has finished; a call then says so."""
    built = build(make, fake, net, tt.Call(torch.randn(3, 4)), tt.Call(torch.randn(5, 4)))
    assert built.bytes_held is not None
    assert built.bytes_held > 0
    fake.log.clear()
    built.close()
    assert fake.log == [("synchronize",), ("reset",), ("reset",)]
    assert set(fake.pools.values()) == {0}
    with pytest.raises(tt.TTError, match="closed"):
        built.call(torch.randn(3, 4))


def test_graphs_of_one_unit_share_a_pool(make, fake, net):
    """Units do not: one's memory goes back while the other lives."""
    build(make, fake, net, tt.Call(torch.randn(3, 4)), tt.Call(torch.randn(5, 4)))
    assert list(fake.pools.values()) == [2]
    build(make, fake, net, tt.Call(torch.randn(3, 4)))
    assert list(fake.pools.values()) == [2, 1]


class Changing(nn.Module):
    """Another structure for large inputs, which no recorded call shows."""

    def forward(self, x: torch.Tensor) -> Any:
        y = x + 1
        return {"y": y, "large": len(x) > 4}


def test_a_size_with_another_structure_has_no_graph(make, fake):
    """A constant that depends on sizes is seen when such a size is captured."""
    module = Changing().eval()
    built = build(make, fake, module, tt.Call(torch.randn(2)), tt.Call(torch.randn(3)))
    for _ in range(2):
        with pytest.raises(tt.DeclinedError, match="put together in another way"):
            built.call(torch.randn(6))
    assert built.call(torch.randn(3))["large"] is False


class Switching(nn.Module):
    """Needs the host for large inputs only."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * float(x.sum()) if len(x) > 4 else x + 1


@pytest.mark.parametrize(
    ("watched", "reason"), [(True, "reads a value on the host"), (False, "not permitted when stream is capturing")]
)
def test_a_capture_that_fails_in_service_costs_nothing(make, fake, watched, reason):
    """The call is answered or handed back, the pool still serves other sizes, and nobody tries again.

    The original forward is stopped before the device is asked; what another backend built is stopped by the device.
    """
    module = Switching().eval()
    inner = None if watched else tt.Built(call=module)
    built = build(make, fake, module, tt.Call(torch.randn(2)), tt.Call(torch.randn(3)), inner=inner)
    large = torch.randn(6)
    if watched:
        with pytest.raises(tt.DeclinedError, match=reason):
            built.call(large)
    else:
        with pytest.warns(tt.FallbackWarning, match=reason):
            same(built, module, large)
    captures = fake.captures
    with pytest.raises(tt.DeclinedError, match=reason) if watched else contextlib.nullcontext():
        same(built, module, large)
    assert fake.captures == captures
    same(built, module, torch.randn(4))
    assert fake.captures == captures + 1


class Casting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


def test_autocast_of_the_key_is_captured(make, xpu):
    """Weights are cast anew in every replay: a write to one shows."""
    module = Casting().eval()
    with torch.autocast("cpu", torch.bfloat16):
        unit, calls = make(module, tt.Call(torch.randn(2, 4)))
    built = tt_xpugraph.tt_build(unit=unit, calls=calls, device=xpu.at, options={}, inner=None, limits=LIMITS)
    x = torch.randn(2, 4)
    for _ in range(2):
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            got, want = built.call(x), module(x)
        assert got.dtype is torch.bfloat16
        assert torch.equal(got, want)
        with torch.no_grad():
            module.linear.weight.mul_(2.0)
