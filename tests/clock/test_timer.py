"""The wall clock, memory, and the lock."""

from __future__ import annotations

import contextlib
import threading
import time
from types import SimpleNamespace

import pluggy
import pytest
import torch

import tt_core.clock
from tt_core import hookspecs
from tt_core.clock import Rules, Runner, WallTimer, race, tuning
from tt_core.clock.memory import resident, watch
from tt_core.contain import Caught
from tt_core.errors import BusyError
from tt_core.testing.fake_clock import FakeClock
from tt_core.values import Call


def test_stamps_are_seconds_of_each_call():
    """A call that sleeps 5 ms is stamped with 5 ms or more, one stamp a call."""
    stamps = WallTimer().block(time.sleep, [Call(0.005), Call(0.0)])
    assert len(stamps) == 2
    assert stamps[0] >= 0.005 > stamps[1] > 0


def test_cpu_work_starts_no_device(monkeypatch):
    """On the CPU nothing is synchronised and no accelerator is asked for."""

    def refuse(*_):
        raise AssertionError("a device was touched")

    monkeypatch.setattr(torch.accelerator, "synchronize", refuse)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", refuse)
    timer = WallTimer("cpu")
    timer.block(lambda: None, [Call()])
    assert timer.now() > 0


def test_devices_are_synchronised_around_each_call(monkeypatch):
    """On an accelerator its queue is drained before and after each call."""
    events = []
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("xpu"))
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda device: events.append(str(device)))
    WallTimer("xpu:1").block(lambda: events.append("call"), [Call(), Call()])
    assert events == ["xpu:1", "call", "xpu:1"] * 2


class FakeEvent:
    """An event whose time is the number of calls before it, in ms."""

    calls = 0

    def __init__(self, *, enable_timing):
        assert enable_timing
        self.at = -1

    def record(self):
        self.at = FakeEvent.calls

    def elapsed_time(self, end):
        return float(end.at - self.at)


def test_device_time_is_of_queued_calls(monkeypatch):
    """Between two events and nothing else: the device is drained before and after, never between the calls."""
    events = []
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("xpu"))
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda device: events.append("drain"))
    module = SimpleNamespace(Event=FakeEvent, device=lambda _: contextlib.nullcontext())
    monkeypatch.setattr(torch, "get_device_module", lambda _: module)

    def call():
        FakeEvent.calls += 1
        events.append("call")

    assert WallTimer("xpu:1").queued(call, [Call()] * 4) == pytest.approx(0.001)
    assert events == ["drain", "call", "call", "call", "call", "drain"]
    del module.Event
    assert WallTimer("xpu:1").queued(call, [Call()]) is None
    assert WallTimer("cpu").queued(call, [Call()]) is None


def test_a_race_tells_device_time(monkeypatch):
    """After the rounds, of every runner that ended; a timer of somebody else's, and the CPU, tell nothing."""
    monkeypatch.setattr(WallTimer, "queued", lambda self, call, calls: [call(*c.args) for c in calls] and 0.25)

    def fails(*_):
        raise ValueError("no")

    def race_of(timer):
        runners = [Runner(name="a", call=abs), Runner(name="b", call=fails)]
        return race(timer, runners, lambda: [Call(-1)], Rules(looks=(8,), block_s=1e-4))

    first, second = race_of(WallTimer())
    assert first.device_s == 0.25
    assert isinstance(second, Caught)
    first, _ = race_of(FakeClock(0.01))
    assert first.device_s is None


def test_wall_timer_answers_last():
    """A plugin's timer is asked before the core's, whichever was registered last."""
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)

    class Own:
        @hookspecs.hookimpl
        def tt_timer(self):
            return FakeClock()

    manager.register(Own())
    manager.register(tt_core.clock)
    assert isinstance(manager.hook.tt_timer(device=torch.device("cpu")), FakeClock)
    manager.unregister(manager.get_plugins().difference({tt_core.clock}).pop())
    assert isinstance(manager.hook.tt_timer(device=torch.device("cpu")), WallTimer)


def test_growth_of_the_process_is_seen():
    """Memory that is touched while watched shows as growth, where the system tells at all."""
    if resident() is None:
        assert watch(torch.device("cpu"))() is None
        return
    grown = watch(torch.device("cpu"))
    held = torch.ones(64 << 20, dtype=torch.uint8)
    assert grown() >= 48 << 20
    assert held.numel() == 64 << 20


def test_unknown_memory_is_none(monkeypatch):
    """A device without memory counters gives None, not an error."""
    monkeypatch.setattr(torch, "get_device_module", lambda _: object())
    assert watch(torch.device("xpu"))() is None


def test_a_second_tuning_waits():
    """While one thread tunes, another that tunes something else waits for its end."""
    order, started = [], threading.Event()

    def second():
        started.set()
        with tuning(object()):
            order.append("second")

    thread = threading.Thread(target=second)
    with tuning(object()):
        thread.start()
        started.wait(5)
        thread.join(0.05)
        order.append("first")
    thread.join(5)
    assert order == ["first", "second"]


def test_the_same_object_is_refused_at_once():
    """Tuning what another thread tunes raises and does not wait; afterwards it may be tuned."""
    shared, raised = object(), []

    def second():
        try:
            with tuning(object(), shared):
                pass
        except BusyError as error:
            raised.append(str(error))

    with tuning(shared):
        thread = threading.Thread(target=second)
        thread.start()
        thread.join(5)
        assert not thread.is_alive()
    assert len(raised) == 1
    second()
    assert len(raised) == 1


def test_tuning_inside_a_tuning_and_after_an_error():
    """The thread that tunes may tune again inside; an error gives everything back."""
    thing = object()
    with pytest.raises(ValueError, match="inside"), tuning(thing), tuning(thing):
        raise ValueError("inside")
    done = []

    def other():
        with tuning(thing):
            done.append(1)

    thread = threading.Thread(target=other)
    thread.start()
    thread.join(5)
    assert done == [1]
