"""Many threads on one tuned model, and tuning again and again: nothing is mixed up, nothing is left behind."""

from __future__ import annotations

import gc
import importlib.util
import linecache
import os
import sys
import threading
import weakref
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

import tt_core as tt
from tt_core.testing.fake_clock import FakeClock

THREADS, CALLS, CYCLES = 4, 2000, 100


def _glue() -> ModuleType:
    """`tests/cases/glue.py`, loaded once for all tests."""
    if "tt_cases_glue" not in sys.modules:
        path = Path(__file__).resolve().parents[1] / "cases" / "glue.py"
        spec = importlib.util.spec_from_file_location("tt_cases_glue", path)
        sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules["tt_cases_glue"]


glue = _glue()


class Block(nn.Module):
    """Two keys, sizes that move, a structured result."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer, self.norm = nn.Linear(8, 16), nn.Linear(16, 8), nn.LayerNorm(8)

    def forward(self, x, scale=None):
        y = self.norm(x + self.outer(torch.relu(self.inner(x))))
        return {"y": y if scale is None else y * scale, "mean": y.mean(0)}


def calls_of(seed: int) -> list[tt.Call]:
    """Calls of both keys and of several sizes, each with numbers of its own."""
    made = torch.Generator().manual_seed(seed)
    plain = [tt.Call(torch.randn(n, 8, generator=made)) for n in (2, 3, 5, 8)]
    return [*plain, *(tt.Call(torch.randn(n, 8, generator=made), scale=torch.rand(8, generator=made)) for n in (2, 8))]


@pytest.fixture(autouse=True)
def one_thread():
    """Torch computes on one thread, so that four callers are four threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize(
    "backend", ["fast", *(pytest.param(name, marks=pytest.mark.real) for name in ("inductor", "openvino"))]
)
def test_four_threads_call_one_tuned_model(backend):
    """4 threads of 2,000 calls: every result is the caller's own and right, every call a hit, none falls."""
    refused = {refusal.name: refusal.reason for refusal in tt.backends("cpu").refused}
    if backend in refused:
        pytest.skip(f"no {backend}: {refused[backend]}")
    torch.manual_seed(0)
    obj = Block().eval()
    settings = glue.quick() if backend == "fast" else tt.Settings(unit_race_s=0.05, pass_race_s=0.1)
    calls = [calls_of(seed) for seed in range(THREADS)]
    with torch.no_grad():
        want = [[obj(*call.args, **call.kwargs) for call in mine] for mine in calls]
    options = {"mode": "jit"} if backend == "inductor" else {}  # or a race would decide, after a long build
    strategy = tt.OneBackendStrategy(tt.Candidate.of(backend, **options))
    tt.tune(obj, calls_of(9), strategy=strategy, settings=settings)
    tt.stats(obj, hits=True)
    errors: list[Exception] = []
    barrier = threading.Barrier(THREADS)

    def work(mine, expected):
        try:
            barrier.wait()
            with torch.no_grad():
                held = []
                for index in range(CALLS):
                    call = mine[index % len(mine)]
                    held.append(obj(*call.args, **call.kwargs))
                    if len(held) == len(mine):  # looked at after later calls ran
                        glue.lib.close(expected, held)
                        held = []
        except Exception as error:  # noqa: BLE001  a thread's own error is the test's
            errors.append(error)

    threads = [threading.Thread(target=work, args=pair) for pair in zip(calls, want, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    stats = tt.stats(obj)[""]
    assert (stats.hits, stats.falls) == (THREADS * CALLS, {})


class Holding:
    """A plugin whose builts hold tensors, an open file and a thread until they are closed."""

    def __init__(self):
        self.opened = self.closed = 0

    @tt.hookimpl
    def tt_backends(self):
        return tt.Backend(name="holding", devices={"*"}, fidelity=tt.Fidelity.EXACT, keeps=frozenset(tt.Keeps))

    @tt.hookimpl
    def tt_timer(self):
        return FakeClock(0.01)

    @tt.hookimpl
    def tt_build(self, unit):
        self.opened += 1
        weights = [parameter.detach().clone() for parameter in unit.module.parameters()]
        handle = os.open(os.devnull, os.O_RDONLY)
        stop = threading.Event()
        thread = threading.Thread(target=stop.wait, daemon=True)
        thread.start()

        def close():
            self.closed += 1
            stop.set()
            thread.join()
            os.close(handle)
            weights.clear()

        def call(*args, **kwargs):
            assert weights
            return unit.forward(*args, **kwargs)

        return tt.Built(call=call, weights=tt.Weights.VALUES, close=close)


def census() -> dict[str, int]:
    """What is alive in the process: tensors, modules of ours, dispatchers, threads, open files."""
    gc.collect()
    kinds = [type(one) for one in gc.get_objects()]
    files = Path("/proc/self/fd")
    return {
        "tensors": sum(issubclass(kind, torch.Tensor) for kind in kinds),
        "of tt_core": sum(str(kind.__module__).startswith("tt_core") for kind in kinds),
        "functions": sum(kind is type(census) for kind in kinds),
        "threads": len(threading.enumerate()),
        "files": len(list(files.iterdir())) if files.exists() else 0,
    }


@pytest.mark.parametrize(("units", "cycles"), [(0, CYCLES), (1, CYCLES // 4)])
def test_tuning_and_untuning_leaves_nothing_behind(units, cycles):
    """100 cycles of tune → untune: no tensor, dispatcher, function, file or thread more than after the first ones."""
    plugin = Holding()
    obj, data = Block().eval(), calls_of(0)

    def cycle():
        result = tt.tune(
            obj,
            data,
            units=units,
            strategy=tt.OneBackendStrategy("holding"),
            settings=tt.Settings(plugins=(plugin,), unit_race_s=0.01, pass_race_s=0.05),
        )
        assert result.changed
        with torch.no_grad():
            obj(*data[0].args)
        assert tt.untune(obj)

    for _ in range(3):
        cycle()
    before, sources = census(), len(linecache.cache)
    for _ in range(cycles):
        cycle()
    after = census()
    assert {what: (before[what], now) for what, now in after.items() if now > before[what]} == {}
    assert len(linecache.cache) < sources + cycles // 2  # the sources of generated functions go with them
    assert plugin.opened == plugin.closed > cycles


def test_a_tuned_object_that_is_dropped_goes_away():
    """Nothing global holds a tuned object: without `untune` it is freed with its tensors once the caller lets go."""
    obj = Block().eval()
    tt.tune(obj, calls_of(0), strategy=glue.FAST, settings=glue.quick())
    gone = weakref.ref(obj), weakref.ref(obj.inner.weight)
    del obj
    gc.collect()
    assert [one() for one in gone] == [None, None]
