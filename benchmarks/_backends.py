"""What the benchmarks of single backends share: our built against a runtime used by hand, and all backends in one race."""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from _zoo import BACKEND_ZOO, Entry, made
from torch import nn

import tt_core as tt
from tt_core import samples
from tt_core.build import Chain, build
from tt_core.clock import UNIT, Rules, Runner, WallTimer, race
from tt_core.contain import Caught, attempt
from tt_core.plugins import Plugins
from tt_core.values import evolve, frozen

TOY = "toy, 2 layers"
QUICK = "encoder, 4 layers"
TABLE = ("inductor", "openvino", "onnxruntime")
CPU = torch.device("cpu")
By = Callable[[tt.Unit, tt.Calls], Callable[..., Any]]
Row = dict[str, Any]


def run(
    doc: str,
    ours: str,
    rivals: Mapping[str, By],
    goals: tuple[float, float],
    rest_s: float = 0.0,
) -> int:
    """Reads the command line, measures, prints, and says which goals were missed.

    Args:
        doc: of the script.
        ours: the backend.
        rivals: ways by hand, by name.
        goals: for the lower ends of time(rival) / time(ours): on models, and on a toy against the first rival.
        rest_s: after each block of a rival, seconds: for threads that spin on after a call, on a core that the next
            one needs.

    Returns:
        The exit status.
    """
    parser = argparse.ArgumentParser(description=doc.split("\n", maxsplit=1)[0])
    parser.add_argument("--quick", action="store_true", help="the toy and one small model")
    parser.add_argument("--model", default="", help="models whose name contains this")
    parser.add_argument("--table", action="store_true", help="race every backend of a CPU beside them")
    parser.add_argument("--json", type=Path, help="write the figures here")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    entries = [Entry(TOY, toy), *BACKEND_ZOO]
    wanted = [e for e in entries if given.model in e.name and (not given.quick or e.name in {TOY, QUICK})]
    able = TABLE if given.table else (ours,)
    rows, first = [], next(iter(rivals))
    for entry in wanted:
        of = {name: goals[1] if entry.name == TOY and name == first else goals[0] for name in rivals}
        duels = Duels(ours=ours, goals=of, rest_s=rest_s)
        rows.append(measure(entry, duels, able, rivals, small=given.quick) | {"goals": of})
        show(rows[-1], ours)
    if given.json:
        given.json.write_text(json.dumps({"torch": torch.__version__, "rows": rows}, indent=1), "utf-8")
    missed = [text for row in rows for text in _missed(row)]
    print(*(f"MISSED: {text}" for text in missed), sep="\n")
    return 1 if missed else 0


def toy(small: bool) -> tuple[nn.Module, list[torch.Tensor]]:
    """Two layers that compute next to nothing: what is left is what a call costs."""
    del small  # there is one size
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).eval(), [torch.randn(4, 8)]


def measure(entry: Entry, duels: Duels, able: Sequence[str], rivals: Mapping[str, By], *, small: bool) -> Row:
    """Builds one model every way, races all of them, then each of ours against each rival alone."""
    module, data = made(entry, small=small)
    unit = tt.Unit(path="", module=module, forward=module.forward)
    feed = samples.read(data, module)
    (calls,) = samples.record(module, feed, [unit], byte_cap=1 << 30)[""]
    failed: dict[str, str] = {}
    runners = [Runner(name="eager", call=module.forward)]
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        for name in able:
            _add_backend(name, unit, calls, Path(folder), runners, failed)
        for name, by in rivals.items():
            _add_rival(name, by, unit, calls, runners, failed, leave=duels.rest)
        inputs = [sample.call for sample in calls.samples]
        timed = race(WallTimer(), runners, lambda: inputs)
        against = {name: duels.race(name, runners, inputs) for name in rivals}
    good = {r.name: t for r, t in zip(runners, timed, strict=True) if isinstance(t, tt.Timing)}
    failed |= {r.name: t.reason for r, t in zip(runners, timed, strict=True) if isinstance(t, Caught)}
    return {
        "model": entry.name,
        "against": against,
        "of_eager": {n: [t.interval.low, t.interval.mid, t.interval.high] for n, t in good.items() if n != "eager"},
        "median_s": {name: timing.median for name, timing in good.items()},
        "build_s": {name: timing.build_s for name, timing in good.items() if timing.build_s},
        "noise": max(timing.noise for timing in good.values()) if good else None,
        "failed": failed,
    }


def _add_backend(
    name: str,
    unit: tt.Unit,
    calls: tt.Calls,
    folder: Path,
    runners: list[Runner],
    failed: dict[str, str],
) -> None:
    """Adds a backend's built to the race, or why there is none."""
    inside = folder / name
    inside.mkdir()
    plugins = Plugins.load()
    if name not in plugins.backends:
        failed[name] = "not installed"
        return
    limits = tt.Limits(seconds=600.0, folder=inside)
    chain = build(plugins, tt.Candidate.of(name), unit, calls, CPU, limits, WallTimer().now)
    if isinstance(chain, Chain):
        call, foreign = chain.built.call, plugins.backends[name].own_threads
        runners.append(Runner(name=name, call=call, foreign_threads=foreign, build_s=chain.seconds))
    else:
        failed[name] = chain.reason


def _add_rival(
    name: str,
    by: By,
    unit: tt.Unit,
    calls: tt.Calls,
    runners: list[Runner],
    failed: dict[str, str],
    *,
    leave: Callable[[], None],
) -> None:
    """Adds a way by hand to the race, called once, or why there is none."""
    first = calls.samples[0].call

    def ready() -> Callable[..., Any]:
        made = by(unit, calls)
        made(*first.args, **first.kwargs)
        return made

    hand = attempt(ready, where=name)
    if isinstance(hand, Caught):
        failed[name] = hand.reason
    else:
        runners.append(Runner(name=name, call=hand, leave=leave, foreign_threads=True))


LOOKS = (*UNIT.looks, 512, 768, 1024, 1536)
ASLEEP_S = 0.1
"""After so long the threads of ONNX Runtime used by hand are asleep: they were seen to spin on for up to 60 ms after a call."""


def over(timing: tt.Timing) -> list[float]:
    """Time of a race's baseline over the runner's: low, middle, high."""
    return [1 / getattr(timing.interval, end) for end in ("high", "mid", "low")]


def until(goal: float) -> Rules:
    """A race of two that goes on until the interval of time(rival) / time(ours) lies on one side of the goal, or 20 s of calls each.

    The goal takes the place of the tie tolerance: ours "wins" when it is surely above it, and leaves when it surely is not.
    One timed call is a block's least: where neighbours come and go, two calls say more the nearer they are.
    """
    return Rules(cap_s=20.0, patience=1.0, tie_tolerance=goal - 1, least_calls=1, looks=LOOKS)


@frozen
class Duels:
    """Races of two: in the race of all, whoever beats eager leaves.

    Attributes:
        ours: the name of what is raced against each rival.
        goals: per rival, of time(rival) / time(ours).
        rest_s: after each block of a rival, also in the race of all, and of ours in a race of two, seconds.
    """

    ours: str
    goals: Mapping[str, float]
    rest_s: float

    def race(self, rival: str, runners: Sequence[Runner], inputs: Sequence[tt.Call]) -> list[float] | None:
        """Time of the rival over ours."""
        known = {runner.name: runner for runner in runners}
        if rival not in known or self.ours not in known:
            return None
        ours = evolve(known[self.ours], leave=self.rest)  # both rest: memory is in no cache after one
        duel = [known[rival], ours]
        timed = race(WallTimer(), duel, lambda: inputs, until(self.goals[rival]))[1]
        return None if isinstance(timed, Caught) else over(timed)

    def rest(self) -> None:
        """Until the threads of a rival are asleep."""
        time.sleep(self.rest_s)


def show(row: Row, ours: str) -> None:
    """Prints the figures of one model."""
    print(f"\n{row['model']}: time as a share of eager's")
    for name, (low, mid, high) in row["of_eager"].items():
        against = row["against"].get(name)
        last = "" if against is None else f"   {against[1]:.2f} ({against[0]:.2f}-{against[2]:.2f}) of {ours}'s time"
        print(f"  {name:<26}{mid:.3f} ({low:.3f}-{high:.3f}){last}")
    for name, reason in row["failed"].items():
        print(f"  {name:<26}{reason[:120]}", flush=True)


def _missed(row: Row) -> list[str]:
    """Which goals a model missed; a rival that does not run is none, but the first one has to."""
    found = []
    for i, (name, goal) in enumerate(row["goals"].items()):
        against = row["against"][name]
        if against is None and (i == 0 or name not in row["failed"]):
            found.append(f"{row['model']}: not raced with {name}")
        elif against is not None and against[0] < goal:
            found.append(f"{row['model']}: {against[0]:.3f} of {name}, goal {goal:.2f}")
    return found


def moving(unit: tt.Unit, calls: tt.Calls) -> tuple[tt.Call, Any]:
    """The largest call, and the `dynamic_shapes` of `torch.export` for it: what moves in the samples is automatic."""
    call = max((sample.call for sample in calls.samples), key=_elements)
    axes = [
        {d: torch.export.Dim.AUTO for d, n in enumerate(leaf) if isinstance(n, tt.Axis)} for leaf in calls.shapes.leaves
    ]
    if call.kwargs:
        return call, dict(zip(tt.flatten_unit(unit, calls).inputs, axes, strict=True))
    return call, tuple(axes)


@contextlib.contextmanager
def baking(*, on: bool) -> Iterator[None]:
    """Freezing set while `torch.compile` compiles.

    As an option alone (torch 2.13) it reaches Inductor and not Dynamo, which then hands the weights in as inputs, and nothing
    is frozen. The option is needed too: models of one class share their programs wherever options do not tell them apart.
    """
    import torch._inductor.config

    with torch._inductor.config.patch(freezing=on):
        yield


def onnxruntime_by_hand(unit: tt.Unit, calls: tt.Calls) -> Callable[..., Any]:
    """A model exported and run the way that ONNX Runtime's documentation shows."""
    import onnxruntime as ort

    call, shapes = moving(unit, calls)
    program: Any = torch.onnx.export(
        unit.module, tuple(call.args), kwargs=call.kwargs, dynamic_shapes=shapes, dynamo=True, verbose=False
    )
    session = ort.InferenceSession(program.model_proto.SerializeToString(), providers=["CPUExecutionProvider"])
    ports = [port.name for port in session.get_inputs()]

    def call_session(*args: torch.Tensor, **kwargs: torch.Tensor) -> list[torch.Tensor]:
        given = (
            {name: kwargs[name].numpy() for name in ports}
            if kwargs
            else dict(zip(ports, (a.numpy() for a in args), strict=True))
        )
        return [torch.from_numpy(array) for array in session.run(None, given)]

    return call_session


def _elements(call: tt.Call) -> int:
    return sum(tensor.numel() for tensor in (*call.args, *call.kwargs.values()))
