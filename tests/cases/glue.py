"""Glue between the cases and tt_core: a quick backend, one case judged, and what its calls were answered by."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import attrs
import torch
from torch import nn

import tt_core as tt
from tt_core.testing.fake_clock import FakeClock
from tt_core.testing.fakes import Renamed
from tt_core.values import EAGER

FOLDER = Path(__file__).resolve().parent


def load(name: str) -> ModuleType:
    """A module of this folder under a name of its own, made anew; torch keeps its thread count."""
    threads = torch.get_num_threads()
    spec = importlib.util.spec_from_file_location(f"tt_cases_{name}", FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    torch.set_num_threads(threads)  # the harness sets it for its own figures
    return module


lib = load("public_cases")
harness = load("harness")
CASES = {case.name: case for case in lib.CASES}
UNSHARED = frozenset({
    "inputs_changed_in_place",
    "kv_cache_in_buffers",
    "batchnorm_left_in_train_mode",
    "returns_view_of_input",
})  # fmt: skip
"""Cases that several threads cannot run at once in eager either: each call changes what the next one sees."""


class Fast(Renamed):
    """Eager under another name, on a made-up clock: only the core is at work."""

    @tt.hookimpl
    def tt_timer(self):
        return FakeClock(0.01)


def quick(**fields: Any) -> tt.Settings:
    """Settings with `Fast` and short races."""
    return tt.Settings(plugins=(Fast(),), unit_race_s=0.01, pass_race_s=0.05, **fields)


FAST = tt.OneBackendStrategy("fast")


@attrs.define(kw_only=True)
class Judged:
    """What became of one case.

    Attributes:
        fails: the harness's words; empty: all right.
        result: what the tuning returned, None where it raised.
        stats: of every tuned unit, after the harness's own calls and before the case's check.
        calls: how often each unit of the object is called in one pass.
        eager: how often Python itself ran the original forward of a tuned unit, over the harness's own calls.
        compiled: graphs that Inductor compiled, or found in its cache, while tuning.
    """

    fails: list[str] = attrs.field(factory=list)
    result: Any = None
    stats: Mapping[str, Any] = attrs.field(factory=dict)
    calls: Mapping[str, int] = attrs.field(factory=dict)
    eager: int = 0
    compiled: int = 0

    @property
    def hits(self) -> int:
        """Calls that builts answered, all units together."""
        return sum(one.hits for one in self.stats.values())

    @property
    def falls(self) -> dict[str, int]:
        """Calls that fell, by kind, all units together."""
        return dict(sum((Counter(one.falls) for one in self.stats.values()), Counter()))

    @property
    def served(self) -> bool:
        """Whether something was installed and answered every call of every unit it was installed on."""
        return bool(self.stats) and all(one.hits == self.calls[path] for path, one in self.stats.items())

    @property
    def counted(self) -> bool:
        """Whether each call of each tuned unit is either a hit or a fall."""
        return all(one.hits + one.fell == self.calls[path] for path, one in self.stats.items())

    @property
    def unsaid(self) -> int:
        """Calls that a built passed on to the original forward as a whole without the core's knowledge.

        Where a compiler had to break a unit into parts, Python runs the code between them: those calls do not count.
        """
        broken = self.result is not None and any("graph break" in note for t in self.result.trials for note in t.notes)
        return 0 if broken and self.compiled else max(0, self.eager - sum(self.falls.values()))

    @property
    def why(self) -> str:
        """Why not, in a few words."""
        if self.result is None:
            return "tuning raised"
        trials = [trial.outcome.reason for trial in self.result.trials if trial.failed]
        eager = [choice.why for depth in self.result.depths for choice in depth.choices if choice.candidate == EAGER]
        found = [f"falls: {self.falls}"] if self.falls else []
        found += [f"{self.eager} of its calls ran the original forward"] if self.eager else []
        return "; ".join(dict.fromkeys([*found, *trials, *eager])) or self.result.headline


def judge(case: Any, tune: Callable[..., Any], *, run: Callable[..., Any] | None = None) -> Judged:
    """Puts one case through the harness.

    Args:
        case: one of `CASES`.
        tune: `tune(module, dataset)` returns the tuning's result; the object stays as it left it.
        run: in place of the harness's own `run(module, data)`.
    """
    judged = Judged(calls={seen.path: seen.calls for seen in tt.inspect(*case.make()).modules})
    mine = load("harness")
    run = run or mine.run
    held: list[nn.Module] = []
    earlier: dict[str, Mapping[str, int]] = {}

    def tuned(module: nn.Module, dataset: Any) -> nn.Module:
        before = _compiled()
        judged.result = tune(module, dataset)
        judged.compiled = _compiled() - before
        earlier.update({path: one.falls for path, one in tt.stats(module, hits=True).items()})
        held.append(module)
        return module

    def watched(module: nn.Module, data: Any) -> list[Any]:
        if module not in held:
            return run(module, data)
        with _eager_runs(module) as count:
            answers = run(module, data)
        judged.eager = count()
        judged.stats = {path: _since(one, earlier[path]) for path, one in tt.stats(module).items()}
        return answers

    mine.run = watched
    judged.fails = mine.evaluate(case, tuned, lib)
    return judged


def _since(now: Any, earlier: Mapping[str, int]) -> Any:
    """Counts without the falls that were there before the harness called; hits began at 0."""
    return attrs.evolve(now, falls=dict(Counter(now.falls) - Counter(earlier)))


def _compiled() -> int:
    """How many graphs Inductor compiled or found in its cache so far."""
    if "torch._dynamo" not in sys.modules:
        return 0
    from torch._dynamo.utils import counters

    return sum(counters["inductor"][f"fxgraph_cache_{how}"] for how in ("hit", "miss", "bypass"))


@contextlib.contextmanager
def _eager_runs(module: nn.Module) -> Iterator[Callable[[], int]]:
    """Counts how often this thread runs the Python code of a tuned unit's original forward, whoever calls it."""
    codes = {
        (id(one), one.forward.__wrapped__.__code__) for one in module.modules() if hasattr(one.forward, "__wrapped__")
    }
    known = {code for _, code in codes}
    count = 0

    def event(frame: FrameType, kind: str, _: Any) -> None:
        nonlocal count
        if kind == "call" and frame.f_code in known:
            count += (id(frame.f_locals.get("self")), frame.f_code) in codes

    before = sys.getprofile()
    sys.setprofile(event)
    try:
        yield lambda: count
    finally:
        sys.setprofile(before)


def in_turns(pool: ThreadPoolExecutor) -> Callable[..., Any]:
    """A `run(module, data)` whose calls are made by the threads of `pool` in turn, one after the other, in order."""

    def one(module: nn.Module, args: Any, kwargs: Any) -> Any:
        with torch.no_grad():
            return module(*args, **kwargs)

    def run(module: nn.Module, data: Any) -> list[Any]:
        return [pool.submit(one, module, args, kwargs).result() for args, kwargs in data]

    return run


def at_once(module: nn.Module, datasets: Sequence[Any], *, rounds: int) -> list[list[Any]]:
    """What one thread a dataset got, all started at once, each `rounds` times over its dataset; the answers of all rounds.

    Raises:
        Exception: the first that a thread met.
    """
    barrier = threading.Barrier(len(datasets))

    def work(data: Any) -> list[list[Any]]:
        barrier.wait()
        return [harness.run(module, data) for _ in range(rounds)]

    with ThreadPoolExecutor(len(datasets)) as pool:
        return [answers for answered in pool.map(work, datasets) for answers in answered]


def held(module: nn.Module) -> dict[str, dict[str, Any]]:
    """What every module holds: attribute -> identity, and the contents of its own dictionaries and lists by identity."""
    return {
        path: {key: (id(value), _inside(value)) for key, value in vars(one).items()}
        for path, one in module.named_modules(remove_duplicate=False)
    }


def _inside(value: Any) -> Any:
    if isinstance(value, dict):
        return [(key, id(one)) for key, one in value.items()]
    return [id(one) for one in value] if isinstance(value, list | tuple) else None
