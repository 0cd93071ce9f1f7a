"""Our inductor built, called through its dispatcher as it is installed, against plain `torch.compile(model)`.

Plain means as it comes, and with freezing; ours is raced in both variants too, and in mode "aot" with `--aot`. Axes that move
in the samples are dynamic everywhere. What ours refuses stays eager, and is raced so. Goals, lower ends of 99 % intervals:

| what | goal |
|---|---|
| time(plain) / time(ours), each model | at least 0.97 |
| time(plain, freezing) / time(ours, freezing), each model | at least 0.97 |
| time(plain) / time(ours), a toy of two layers: what a call costs | at least 1 |
| seconds to restore / seconds to build, six layers of an encoder in mode "aot" (`--aot`) | at most 0.1 |
| seconds to build twelve layers / seconds to build one, mode "aot" (`--aot`) | at most 1.5 |

    python benchmarks/inductor.py [--quick] [--model NAME] [--aot] [--json PATH] [--device cuda]

`--quick` takes the toy and one small model. Exits with 1 when a goal is missed.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from _backends import QUICK, TOY, baking, over, toy, until
from _zoo import BACKEND_ZOO, Entry, made
from torch import nn

import tt_core as tt
from tt_core import samples
from tt_core.build import Chain, build
from tt_core.clock import Rules, Runner, WallTimer, race
from tt_core.contain import Caught, attempt
from tt_core.install import Entry as Installed
from tt_core.install import dispatcher
from tt_core.plugins import Plugins

sys.path.remove(str(Path(__file__).parent))  # or benchmarks/onnxruntime.py stands in the package's place
GOAL, TOY_GOAL, RESTORE_GOAL, TWINS_GOAL = 0.97, 1.0, 0.1, 1.5
LAYERS, SAVED = 12, 6
WAYS: dict[str, Mapping[str, Any]] = {"": {}, ", freezing": {"freezing": True}}
LIMITS_S = 600.0


def main() -> int:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--quick", action="store_true", help="the toy and one small model")
    parser.add_argument("--model", default="", help="models whose name contains this")
    parser.add_argument("--aot", action="store_true", help='mode "aot" too, its twins and its files')
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or xpu")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    device = torch.device(given.device)
    entries = [Entry(TOY, toy), *BACKEND_ZOO]
    wanted = [e for e in entries if given.model in e.name and (not given.quick or e.name in {TOY, QUICK})]
    rows = []
    for entry in wanted:
        rows.append(measure(entry, device, small=given.quick, aot=given.aot))
        show(rows[-1])
    layers = attempt(lambda: twins(device), where="twins") if given.aot else None
    if layers is not None:
        print(json.dumps({"failed": layers.reason} if isinstance(layers, Caught) else layers, indent=1))
    if given.json:
        found = {"torch": torch.__version__, "device": str(device), "rows": rows}
        found["twins"] = layers.reason if isinstance(layers, Caught) else layers
        given.json.write_text(json.dumps(found, indent=1), "utf-8")
    return 0 if reached(rows, layers) else 1


def moved(value: Any, device: torch.device) -> Any:
    """A sample on the device."""
    if isinstance(value, dict):
        return {name: moved(one, device) for name, one in value.items()}
    return value.to(device)


def recorded(module: nn.Module, data: list[Any]) -> tuple[tt.Unit, tt.Calls]:
    """The whole module as a unit, and its calls."""
    unit = tt.Unit(path="", module=module, forward=module.forward)
    (calls,) = samples.record(module, samples.read(data, module), [unit], byte_cap=1 << 30)[""]
    return unit, calls


def measure(entry: Entry, device: torch.device, *, small: bool, aot: bool) -> dict[str, Any]:
    """Builds one model every way, and races each of ours with its rival, and with eager."""
    torch.compiler.reset()  # or sizes of the model before move in this one too, in the rival's programs
    module, data = made(entry, small=small)
    module, data = module.to(device), [moved(one, device) for one in data]
    unit, calls = recorded(module, data)
    ways = dict(WAYS) | ({", aot": {"mode": "aot"}} if aot else {})
    failed: dict[str, str] = {}
    row: dict[str, Any] = {
        "model": entry.name,
        "against": {},
        "of_eager": {},
        "median_s": {},
        "build_s": {},
        "refused": {},
    }
    with torch.no_grad():
        for way, options in ways.items():
            ours = installed(unit, calls, device, options)
            plain = attempt(lambda o=options: by_hand(module, calls, o), where="torch.compile")
            if isinstance(ours, Caught):
                row["refused"][f"ours{way}"] = ours.reason
                ours = Runner(name=f"ours{way}", call=unit.forward)
            if isinstance(plain, Caught):
                failed[f"plain{way}"] = plain.reason
                continue
            row["build_s"][f"ours{way}"] = ours.build_s
            goal = TOY_GOAL if entry.name == TOY else GOAL
            duel(row, way, calls, [Runner(name=f"plain{way}", call=plain), ours], device, until(goal))
            duel(row, way, calls, [Runner(name="eager", call=unit.forward), ours], device, Rules())
    return row | {"failed": failed}


def duel(
    row: dict[str, Any], way: str, calls: tt.Calls, runners: list[Runner], device: torch.device, rules: Rules
) -> None:
    """A race of two; adds its figures to the row."""
    timed = race(WallTimer(device), runners, lambda: [one.call for one in calls.samples], rules, device=device)
    ours = timed[1]
    if isinstance(ours, Caught):
        row["against"][way] = None
        return
    if runners[0].name == "eager":
        row["of_eager"][way] = [ours.interval.low, ours.interval.mid, ours.interval.high]
    else:
        row["against"][way] = over(ours)
    for one, timing in zip(runners, timed, strict=True):
        if not isinstance(timing, Caught):
            row["median_s"][one.name] = timing.median


def installed(unit: tt.Unit, calls: tt.Calls, device: torch.device, options: Mapping[str, Any]) -> Runner | Caught:
    """Our built behind its dispatcher."""
    candidate = tt.Candidate.of("inductor", **options)
    limits = tt.Limits(seconds=LIMITS_S)
    chain = build(Plugins.load(), candidate, unit, calls, device, limits, WallTimer().now)
    if not isinstance(chain, Chain):
        return Caught(kind=chain.kind, reason=chain.reason)
    entry = Installed(
        unit=unit,
        key=calls.key,
        built=chain.built,
        covers=chain.built.covers,
        facts=calls.facts,
        candidate=candidate,
        calls=calls,
    )
    name = "ours" + "".join(f", {'aot' if value == 'aot' else key}" for key, value in options.items())
    return Runner(name=name, call=dispatcher(unit, [entry]), build_s=chain.seconds)


def by_hand(module: nn.Module, calls: tt.Calls, options: Mapping[str, Any]) -> Callable[..., Any]:
    """The model compiled as PyTorch's documentation shows, and warm."""
    freezing = bool(options.get("freezing"))
    compiled: Callable[..., Any] = torch.compile(
        copy.deepcopy(module),
        options={"freezing": True} if freezing else None,
        dynamic=True if calls.shapes.moving else None,
    )
    with baking(on=freezing):
        for _ in range(3):
            for one in calls.samples:
                compiled(*one.call.args, **one.call.kwargs)
    return compiled


def twins(device: torch.device) -> dict[str, Any]:
    """Seconds to build one layer, to bind twelve, and to restore six from files."""
    timer = WallTimer(device)
    layers = [nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True).eval().to(device) for _ in range(LAYERS)]
    x = torch.randn(1, 64, 256, device=device)
    units = [tt.Unit(path=f"layers.{i}", module=one, forward=one.forward) for i, one in enumerate(layers)]
    _, calls = recorded(layers[0], [x])
    plugins, limits = Plugins.load(), tt.Limits(seconds=LIMITS_S, saveable=True)
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        began = timer.now()
        first = sure(plugins.build("inductor", units[0], calls, device, {"mode": "aot"}, None, limits))
        one_s = timer.now() - began
        builts = [first, *(sure(plugins.rebind("inductor", first, unit, limits)) for unit in units[1:])]
        all_s = timer.now() - began
        dumped = []
        for index, built in enumerate(builts[:SAVED]):
            place = Path(folder) / str(index)
            place.mkdir()
            dumped.append((place, sure(plugins.dump("inductor", built, place))))
        began = timer.now()
        for unit, (place, told) in zip(units, dumped, strict=False):
            sure(plugins.restore("inductor", unit, calls.key, first.covers, told, place, device, None))
        restore_s = timer.now() - began
    return {
        "build_one_s": one_s,
        f"build_{LAYERS}_s": all_s,
        f"restore_{SAVED}_s": restore_s,
        "twins_ratio": all_s / one_s,
        "restore_ratio": restore_s / one_s,
    }


def sure(answer: Any) -> Any:
    """The answer of a plugin.

    Raises:
        RuntimeError: there is none.
    """
    if answer is None or isinstance(answer, Caught):
        raise RuntimeError(answer.detail if isinstance(answer, Caught) else "not rebound")
    return answer


def show(row: dict[str, Any]) -> None:
    """Prints the lines of one model."""
    for way, ratios in row["against"].items():
        name = f"{row['model']}{way}"
        text = "not raced" if ratios is None else f"{ratios[1]:.3f} ({ratios[0]:.3f}-{ratios[2]:.3f})"
        eager = row["of_eager"].get(way)
        share = "-" if eager is None else f"{eager[1]:.3f}"
        ms = {key: 1e3 * value for key, value in row["median_s"].items() if key in {f"plain{way}", f"ours{way}"}}
        times = ", ".join(f"{key} {value:.3f} ms" for key, value in ms.items())
        built = row["build_s"].get(f"ours{way}", 0.0)
        print(f"{name:<32}plain / ours {text:<24}of eager {share:<8}built in {built:.0f} s  {times}", flush=True)
    for name, reason in (row["refused"] | row["failed"]).items():
        print(f"  {row['model']}: {name}: {reason[:160]}")


def reached(rows: list[dict[str, Any]], layers: dict[str, Any] | Caught | None) -> bool:
    """Says which goals were missed."""
    missed = []
    for row in rows:
        goal = TOY_GOAL if row["model"] == TOY else GOAL
        for way, ratios in row["against"].items():
            if ratios is None:
                missed.append(f"{row['model']}{way}: not raced")
            elif ratios[0] < goal and way in WAYS:
                missed.append(f"{row['model']}{way}: {ratios[0]:.3f} of plain, goal {goal}")
        missed += [f"{row['model']}: {name}: {reason[:80]}" for name, reason in row["failed"].items()]
    if isinstance(layers, Caught):
        missed.append(f"twins: {layers.reason}")
    elif layers is not None:
        if layers["twins_ratio"] > TWINS_GOAL:
            missed.append(f"twins: {layers['twins_ratio']:.2f} times one layer, goal {TWINS_GOAL}")
        if layers["restore_ratio"] > RESTORE_GOAL:
            missed.append(f"restored in {layers['restore_ratio']:.2f} of the build, goal {RESTORE_GOAL}")
    for text in missed:
        print(f"MISSED: {text}")
    return not missed


if __name__ == "__main__":
    sys.exit(main())
