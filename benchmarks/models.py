"""The tuned object against the best that the same backends give by hand, on eight models.

A race of all that is made by hand finds the best; the tuned object then races it, and the untuned object, alone: where several thread pools
meet in one race, each finds the others' threads on its cores.

By hand means what an engineer writes without tt_core: `torch.compile(model)` as it comes, with freezing, OpenVINO's
`convert_model` and `compile_model` on the whole model, the precision fixed as ours is, and `torch.onnx.export` with an
`InferenceSession` of ONNX Runtime. What cannot be built by hand is left out, with its reason in the table.

Goals, end to end, lower ends of 99 % intervals:

| what | goal |
|---|---|
| time(best by hand) / time(tuned), each model | at least 0.97 |
| time(untuned) / time(tuned), each model | not below 1 beyond the tie tolerance of 2 % |
| models with time(untuned) / time(tuned) above 1.05 | at least 5 of 8 |

    python benchmarks/models.py [--quick] [--json PATH] [--only NAME]

`--quick` takes the two smallest models in small sizes (under a minute on an idle machine) and keeps only the first two
goals. Exits with 1 when a goal is missed.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from _backends import ASLEEP_S, baking, onnxruntime_by_hand, over, until
from _zoo import ZOO, Entry, made

import tt_core as tt
from tt_core.clock import PASSES, PassTiming, Rules, Runner, WallTimer, passes
from tt_core.clock.runner import nothing
from tt_core.contain import Caught, attempt
from tt_core.samples import Feed, read, record
from tt_core.values import evolve

sys.path.remove(str(Path(__file__).parent))  # or benchmarks/onnxruntime.py stands in the package's place
BY_HAND_GOAL, FASTER_GOAL, FASTER_COUNT, TOLERANCE = 0.97, 1.05, 5, 0.02
QUICK = {"encoder, 4 layers", "pipeline of two"}
DUEL = until(BY_HAND_GOAL)


def main() -> int:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--quick", action="store_true", help="two small models")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--only", default="", help="models whose name contains this")
    given = parser.parse_args()
    entries = [e for e in ZOO if given.only in e.name and (not given.quick or e.name in QUICK)]
    rows: list[dict[str, Any]] = []
    print(f"{'model':<22}{'depth':>6}  {'against untuned':<22}{'against the best by hand':<26}best by hand", flush=True)
    for entry in entries:  # one at a time: what was measured stays when the rest is broken off
        rows.append(measure(entry, small=given.quick))
        show(rows[-1])
        if given.json:
            given.json.write_text(json.dumps(rows, indent=1), "utf-8")
    whole = not given.quick and not given.only
    return 0 if reached(rows, whole=whole) else 1


def measure(entry: Entry, *, small: bool) -> dict[str, Any]:
    """Tunes one model and races it against what is made by hand of copies of it."""
    torch.compiler.reset()  # or sizes that moved in the model before move in this one's rivals too
    obj, samples = made(entry, small=small)
    feed = read(samples, obj, inference_function=entry.run)
    settings = tt.Settings(cache="off")
    result = tt.auto_tune(obj, samples, inference_function=entry.run, max_depth=2, progress=True, settings=settings)
    hands, failed = by_hand(entry, small=small)
    tuned = Runner(name="tuned", call=runner(feed, obj), foreign_threads=True)
    runners = [
        Runner(name="untuned", call=runner(feed, made(entry, small=small)[0])),
        *(
            Runner(
                name=name,
                call=runner(feed, hand),
                leave=rest if name == "onnxruntime" else nothing,
                foreign_threads=not name.startswith("torch.compile"),
            )
            for name, hand in hands
        ),
    ]
    good = raced(feed, runners, PASSES, failed)
    best = min(good.keys() - {"untuned"}, key=lambda name: good[name].interval.mid, default=None)
    known = {one.name: one for one in runners}
    plain = raced(feed, [known["untuned"], tuned], PASSES, failed)["tuned"]
    duel = None
    if best is not None:  # both rest or none: who comes after a rest finds its memory in no cache
        duel = raced(feed, [known[best], evolve(tuned, leave=known[best].leave)], DUEL, failed)["tuned"]
    return row(entry, result, good, best, plain, duel, failed)


def raced(feed: Feed, runners: list[Runner], rules: Rules, failed: dict[str, str]) -> dict[str, tt.Timing]:
    """The timings of one race, by name; why there is none goes to `failed`."""
    with torch.no_grad():
        timed = passes(WallTimer(), runners, lambda: [tt.Call(one) for one in feed.fresh()], rules)
    failed |= {r.name: t.reason for r, t in zip(runners, timed, strict=True) if isinstance(t, Caught)}
    return {r.name: t.timing for r, t in zip(runners, timed, strict=True) if isinstance(t, PassTiming)}


def rest() -> None:
    """Until ONNX Runtime's threads are asleep, and the next one has the core that they spin on."""
    time.sleep(ASLEEP_S)


def runner(feed: Feed, obj: Any) -> Callable[[Any], Any]:
    """Runs one sample on `obj`."""
    return lambda sample: feed.run(obj, sample)


def row(
    entry: Entry,
    result: tt.AutoTuneResult,
    good: dict[str, tt.Timing],
    best: str | None,
    plain: tt.Timing,
    duel: tt.Timing | None,
    failed: dict[str, str],
) -> dict[str, Any]:
    """The figures of one model."""
    hands = {name: timing for name, timing in good.items() if name != "untuned"}
    return {
        "model": entry.name,
        "selected": None if result.selected is None else result.selected.cut.depths[0],
        "backends": sorted({c.candidate.name for c in result.plan.choices}) if result.plan else [],
        "against_untuned": over(plain),
        "best_by_hand": best,
        "against_best": None if duel is None else over(duel),
        "by_hand": {name: 1 / timing.interval.mid for name, timing in hands.items()},
        "failed_by_hand": failed,
        "noise": plain.noise,
    }


def by_hand(entry: Entry, *, small: bool) -> tuple[list[tuple[str, Any]], dict[str, str]]:
    """What an engineer would make of the model without tt_core, and why some of it does not work."""
    built: list[tuple[str, Any]] = []
    failed: dict[str, str] = {}
    for name, make in HANDS.items():
        obj, samples = made(entry, small=small)
        feed = read(samples, obj, inference_function=entry.run)

        def warm(obj: Any = obj, make: Any = make, feed: Feed = feed, freezes: bool = make is baked) -> Any:
            hand = make(obj, feed)
            with torch.no_grad(), baking(on=freezes):
                for _ in range(2):
                    for sample in feed.fresh():
                        feed.run(hand, sample)
            return hand

        answer = attempt(warm, where=name)
        if isinstance(answer, Caught):
            failed[name] = answer.reason
        else:
            built.append((name, answer))
    return built, failed


def compiled(obj: Any, feed: Feed) -> Any:
    """`torch.compile` on every top module, as it comes."""
    del feed
    for module in tops(obj):
        module.compile()
    return obj


def baked(obj: Any, feed: Feed) -> Any:
    """`torch.compile` with weights baked in."""
    del feed
    for module in tops(obj):
        module.compile(options={"freezing": True})
    return obj


def tops(obj: Any) -> list[torch.nn.Module]:
    """The modules that an engineer would compile: the object, or the models that a pipeline holds."""
    if isinstance(obj, torch.nn.Module):
        return [obj]
    return [obj.features, *obj.heads]


class OnOpenVINO:
    """A whole model compiled by OpenVINO, called with the model's keywords."""

    def __init__(self, model: torch.nn.Module, call: tt.Call) -> None:
        import openvino as ov

        example = dict(call.kwargs) or tuple(call.args)
        converted = ov.convert_model(model, example_input=example)
        config = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": "f32",
            "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        }
        self.compiled = ov.compile_model(converted, "CPU", config)

    def __call__(self, *args: torch.Tensor, **kwargs: torch.Tensor) -> list[torch.Tensor]:  # noqa: D102
        given = {name: tensor.numpy() for name, tensor in kwargs.items()} or [tensor.numpy() for tensor in args]
        return [torch.from_numpy(array) for array in self.compiled(given).values()]


def openvino(obj: Any, feed: Feed) -> Any:
    """OpenVINO on the whole model, the way its documentation shows."""
    if not isinstance(obj, torch.nn.Module) or feed.inference_function is not None:
        raise tt.UsageError("not one module that is called with tensors")
    return OnOpenVINO(copy.deepcopy(obj), feed.samples[-1])


def onnxruntime(obj: Any, feed: Feed) -> Any:
    """ONNX Runtime on the whole model, the way its documentation shows."""
    if not isinstance(obj, torch.nn.Module) or feed.inference_function is not None:
        raise tt.UsageError("not one module that is called with tensors")
    unit = tt.Unit(path="", module=obj, forward=obj.forward)
    (calls,) = record(obj, feed, [unit], byte_cap=1 << 30)[""]
    return onnxruntime_by_hand(unit, calls)


HANDS: dict[str, Callable[[Any, Feed], Any]] = {
    "torch.compile": compiled,
    "torch.compile, freezing": baked,
    "openvino": openvino,
    "onnxruntime": onnxruntime,
}


def show(one: dict[str, Any]) -> None:
    """Prints the line of one model, and what could not be made by hand."""
    depth = "-" if one["selected"] is None else one["selected"]
    best = "-" if one["against_best"] is None else text(one["against_best"])
    print(
        f"{one['model']:<22}{depth:>6}  {text(one['against_untuned']):<22}{best:<26}{one['best_by_hand']}", flush=True
    )
    for name, reason in one["failed_by_hand"].items():
        print(f"  {name} by hand: {reason[:100]}", flush=True)


def text(interval: list[float]) -> str:
    """An interval for people."""
    return f"{interval[1]:.2f}x ({interval[0]:.2f}-{interval[2]:.2f})"


def reached(rows: list[dict[str, Any]], *, whole: bool) -> bool:
    """Says which goals were missed."""
    missed = [
        f"{one['model']}: {one['against_best'][0]:.2f} of the best by hand, goal {BY_HAND_GOAL}"
        for one in rows
        if one["against_best"] is not None and one["against_best"][0] < BY_HAND_GOAL
    ]
    missed += [f"{one['model']}: slower than untuned" for one in rows if one["against_untuned"][2] < 1 - TOLERANCE]
    faster = sum(one["against_untuned"][0] > FASTER_GOAL for one in rows)
    if whole and faster < FASTER_COUNT:
        missed.append(f"{faster} models faster with the lower end above {FASTER_GOAL}, goal {FASTER_COUNT}")
    for one in missed:
        print(f"MISSED: {one}")
    return not missed


if __name__ == "__main__":
    sys.exit(main())
