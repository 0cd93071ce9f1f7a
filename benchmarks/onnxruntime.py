"""Our ONNX Runtime built against `onnxruntime` used by hand, and the backends of a CPU side by side, in one run a model.

By hand means the way that its documentation shows: `torch.onnx.export(dynamo=True)`, an `InferenceSession` as it comes,
`session.run` with NumPy arrays. Axes that move in the samples are dynamic in both. Everything runs whole models, without
tt_core's dispatcher.

Goals, lower ends of 99 % intervals:

| what | goal |
|---|---|
| time(by hand) / time(ours), each model | at least 0.97 |
| time(by hand) / time(ours), a toy of two layers: what a call costs | at least 1 |

Beside it, without a goal, each backend's time as a share of eager's.

    python benchmarks/onnxruntime.py [--quick] [--json PATH] [--only NAME]

`--quick` takes the toy and one small model, without Inductor. Exits with 1 when a goal is missed.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).resolve().parent]
# this file bears the name of the package that it measures: its folder goes to the end, for `_zoo`
sys.path.append(str(Path(__file__).resolve().parent))

import argparse  # noqa: E402
import json  # noqa: E402
import tempfile  # noqa: E402
import time  # noqa: E402
import warnings  # noqa: E402
from collections.abc import Callable, Sequence  # noqa: E402
from typing import Any  # noqa: E402

import torch  # noqa: E402
from _zoo import ZOO, Entry, made  # noqa: E402
from torch import nn  # noqa: E402

import tt_core as tt  # noqa: E402
from tt_core import samples  # noqa: E402
from tt_core.build import Chain, build  # noqa: E402
from tt_core.clock import Rules, Runner, WallTimer, race  # noqa: E402
from tt_core.contain import Caught, attempt  # noqa: E402
from tt_core.plugins import Plugins  # noqa: E402

MODELS_GOAL, TOY_GOAL = 0.97, 1.0
TOY = "toy, 2 layers"
QUICK = "encoder, 4 layers"
BACKENDS = ("onnxruntime", "openvino", "inductor")
CPU = torch.device("cpu")


def main() -> int:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--quick", action="store_true", help="the toy and one small model, without Inductor")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--only", default="", help="models whose name contains this")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    entries = [Entry(TOY, toy), *(entry for entry in ZOO if entry.run is None)]
    wanted = [e for e in entries if given.only in e.name and (not given.quick or e.name in {TOY, QUICK})]
    names = BACKENDS[:2] if given.quick else BACKENDS
    rows = [measure(entry, names, small=given.quick) for entry in wanted]
    show(rows, names)
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1), "utf-8")
    return 0 if reached(rows) else 1


def toy(small: bool) -> tuple[nn.Module, list[torch.Tensor]]:
    """Two layers that compute next to nothing."""
    del small  # there is one size
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).eval(), [torch.randn(4, 8)]


def measure(entry: Entry, names: Sequence[str], *, small: bool) -> dict[str, Any]:
    """Builds one model every way, and races them."""
    module, data = made(entry, small=small)
    unit = tt.Unit(path="", module=module, forward=module.forward)
    feed = samples.read(data, module)
    (calls,) = samples.record(module, feed, [unit], byte_cap=1 << 30)[""]
    failed: dict[str, str] = {}
    runners = [Runner(name="eager", call=module.forward)]
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        for name in names:
            backend(name, unit, calls, Path(folder), runners, failed)
        hand = attempt(lambda: by_hand(unit, calls), where="by hand")
        if isinstance(hand, Caught):
            failed["by hand"] = hand.reason
        else:
            runners.append(Runner(name="by hand", call=hand, foreign_threads=True))
        timed = race(WallTimer(), runners, lambda: [sample.call for sample in calls.samples])
        duel = [
            Runner(name=name, call=runner.call, leave=rest, foreign_threads=True)
            for name in ("by hand", "onnxruntime")
            for runner in runners
            if runner.name == name
        ]
        against = fought(duel, calls) if len(duel) == 2 else None
    good = {r.name: t for r, t in zip(runners, timed, strict=True) if isinstance(t, tt.Timing)}
    failed |= {r.name: t.reason for r, t in zip(runners, timed, strict=True) if isinstance(t, Caught)}
    return row(entry, good, failed, against)


def rest() -> None:
    """Lets the threads of a pool fall asleep: a session as it comes spins on for 20 ms, on a core that its rival needs."""
    time.sleep(0.03)


def fought(duel: Sequence[Runner], calls: tt.Calls) -> list[float] | None:
    """Time by hand over ours, in a race of the two that goes on until a difference of 2 % is decided, or 4 s of calls each.

    In the race of all, both leave as soon as they beat eager.
    """
    timed = race(WallTimer(), duel, lambda: [sample.call for sample in calls.samples], Rules(cap_s=4.0))
    ours = timed[1]
    return None if isinstance(ours, Caught) else [1 / getattr(ours.interval, end) for end in ("high", "mid", "low")]


def backend(
    name: str, unit: tt.Unit, calls: tt.Calls, folder: Path, runners: list[Runner], failed: dict[str, str]
) -> None:
    """Adds a backend's built to the race, or why there is none."""
    inside = folder / name
    inside.mkdir()
    limits = tt.Limits(seconds=600.0, folder=inside)
    plugins = Plugins.load()
    if name not in plugins.backends:
        failed[name] = "not installed"
        return
    chain = build(plugins, tt.Candidate.of(name), unit, calls, CPU, limits, WallTimer().now)
    if isinstance(chain, Chain):
        runners.append(
            Runner(
                name=name,
                call=chain.built.call,
                foreign_threads=plugins.backends[name].own_threads,
                build_s=chain.seconds,
            )
        )
    else:
        failed[name] = chain.reason


def by_hand(unit: tt.Unit, calls: tt.Calls) -> Callable[..., Any]:
    """The model exported and run the way that ONNX Runtime's documentation shows."""
    import onnxruntime as ort

    call = max((sample.call for sample in calls.samples), key=size)
    moving = [
        {d: torch.export.Dim.AUTO for d, n in enumerate(leaf) if isinstance(n, tt.Axis)} for leaf in calls.shapes.leaves
    ]
    names = tt.flatten_unit(unit, calls).inputs
    shapes: Any = dict(zip(names, moving, strict=True)) if call.kwargs else tuple(moving)
    if isinstance(unit.module, nn.Sequential):  # its forward has one argument, whatever it is called
        shapes = (moving[0],)
    program: Any = torch.onnx.export(
        unit.module, tuple(call.args), kwargs=call.kwargs, dynamic_shapes=shapes, dynamo=True, verbose=False
    )
    session = ort.InferenceSession(program.model_proto.SerializeToString(), providers=["CPUExecutionProvider"])
    ports = [port.name for port in session.get_inputs()]

    def run(*args: torch.Tensor, **kwargs: torch.Tensor) -> list[torch.Tensor]:
        given = (
            {name: kwargs[name].numpy() for name in ports}
            if kwargs
            else dict(zip(ports, (a.numpy() for a in args), strict=True))
        )
        return [torch.from_numpy(array) for array in session.run(None, given)]

    return run


def size(call: tt.Call) -> int:
    """Elements of a call's tensors."""
    return sum(tensor.numel() for tensor in (*call.args, *call.kwargs.values()))


def row(
    entry: Entry, good: dict[str, tt.Timing], failed: dict[str, str], against: list[float] | None
) -> dict[str, Any]:
    """The figures of one model."""
    return {
        "model": entry.name,
        "against_hand": against,
        "of_eager": {n: [t.interval.low, t.interval.mid, t.interval.high] for n, t in good.items() if n != "eager"},
        "median_s": {name: timing.median for name, timing in good.items()},
        "build_s": {name: timing.build_s for name, timing in good.items() if timing.build_s},
        "noise": max(timing.noise for timing in good.values()) if good else None,
        "failed": failed,
    }


def show(rows: list[dict[str, Any]], names: Sequence[str]) -> None:
    """Prints the table."""
    columns = (*names, "by hand")
    print(f"\n{'time as a share of eager':<26}" + "".join(f"{name:<13}" for name in columns) + "by hand / ours")
    for one in rows:
        shares = [one["of_eager"].get(name) for name in columns]
        cells = "".join(f"{'-' if share is None else format(share[1], '.3f'):<13}" for share in shares)
        against = one["against_hand"]
        last = "-" if against is None else f"{against[1]:.2f} ({against[0]:.2f}-{against[2]:.2f})"
        print(f"{one['model']:<26}{cells}{last}")
    for one in rows:
        for name, reason in one["failed"].items():
            print(f"  {one['model']}: {name}: {reason[:120]}")


def reached(rows: list[dict[str, Any]]) -> bool:
    """Says which goals were missed."""
    missed = []
    for one in rows:
        goal = TOY_GOAL if one["model"] == TOY else MODELS_GOAL
        if one["against_hand"] is None:
            missed.append(f"{one['model']}: not raced")
        elif one["against_hand"][0] < goal:
            missed.append(f"{one['model']}: {one['against_hand'][0]:.3f} of by hand, goal {goal}")
    for text in missed:
        print(f"MISSED: {text}")
    return not missed


if __name__ == "__main__":
    sys.exit(main())
