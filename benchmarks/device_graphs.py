"""Device graphs: what `auto_tune` installs on a GPU, raced against the variants that one would make by hand.

For each model and dtype the tuned model is the baseline of one race with eager, `torch.compile`, a graph captured by hand over
eager, and one captured by hand over the compiled model: weights and inputs are the same, results are owned by the caller in
each of them. "unguarded" is what `auto_tune` installed without the guard around it: a breakdown, no choice. Goal: `auto_tune` at
least 0.97x of the best.

    python benchmarks/device_graphs.py --out build/device_graphs

A first pass compiles all models at once, in processes of their own, into the compiler's cache on disk; nothing is timed in it.
"""

from __future__ import annotations

import argparse
import copy
import functools
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

import tt_core as tt
from tt_core.clock import Rules, Runner, WallTimer, race
from tt_core.contain import Caught, attempt
from tt_core.install import Dispatcher

GOAL = 0.97
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
CHAIN = tt.Candidate.of("inductor").over("cuda_graph")
CANDIDATES = (tt.Candidate.of("inductor"), tt.Candidate.of("cuda_graph"), CHAIN)
"""Inductor with live weights only: freezing doubles the builds, and made no difference in earlier races."""


def vit() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """ViT-B/16, one image of 224 x 224."""
    from transformers import ViTConfig, ViTModel

    return ViTModel(ViTConfig()), {"pixel_values": torch.randn(1, 3, 224, 224)}


def distilbert() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """DistilBERT, 128 tokens."""
    from transformers import DistilBertConfig, DistilBertModel

    return DistilBertModel(DistilBertConfig()), {"input_ids": torch.randint(0, 30000, (1, 128))}


def t5() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """The encoder of T5-small, 64 tokens."""
    from transformers import T5Config, T5EncoderModel

    return T5EncoderModel(T5Config()), {"input_ids": torch.randint(0, 30000, (1, 64))}


def resnet() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """ResNet-50, one image of 224 x 224."""
    from transformers import ResNetConfig, ResNetForImageClassification

    return ResNetForImageClassification(ResNetConfig()), {"pixel_values": torch.randn(1, 3, 224, 224)}


def encoder() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """Four encoder layers, d 256, 64 tokens."""
    layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True)
    return nn.TransformerEncoder(layer, 4, enable_nested_tensor=False), {"src": torch.randn(1, 64, 256)}


def minilm() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """A BERT of MiniLM-L6's size, 32 tokens; random weights."""
    from transformers import BertConfig, BertModel

    config = BertConfig(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536)
    return BertModel(config), {"input_ids": torch.randint(0, 30000, (1, 32))}


MODELS = {"encoder": encoder, "minilm": minilm, "t5": t5, "distilbert": distilbert, "vit": vit, "resnet": resnet}


def made(model: str, dtype: str, device: torch.device) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """A model with its sample, both on the device; the same weights each time."""
    torch.manual_seed(0)
    module, sample = MODELS[model]()
    wanted = DTYPES[dtype]
    moved = {name: x.to(device, wanted) if x.is_floating_point() else x.to(device) for name, x in sample.items()}
    return module.eval().to(device, wanted), moved


def graphed(run: Callable[..., Any], sample: dict[str, torch.Tensor]) -> Callable[..., Any]:
    """A graph made by hand over `run`, as PyTorch's documentation shows, with results that the caller owns."""
    static = {name: x.clone() for name, x in sample.items()}
    runtime: Any = torch.cuda
    side = runtime.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run(**static)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = run(**static)

    def call(**given: torch.Tensor) -> Any:
        for name, x in given.items():
            static[name].copy_(x)
        graph.replay()
        return torch.utils._pytree.tree_map(lambda x: x.clone() if isinstance(x, torch.Tensor) else x, result)

    return call


def variants(module: nn.Module, sample: dict[str, torch.Tensor]) -> dict[str, Callable[..., Any] | Caught]:
    """What one would write by hand, each warm; one that fails says why."""
    compiled = torch.compile(copy.deepcopy(module), dynamic=False)
    found: dict[str, Any] = {"eager": module}
    found["inductor"] = attempt(lambda: (compiled(**sample), compiled)[1], where="torch.compile")
    found["graph"] = attempt(lambda: graphed(module, sample), where="graph")
    found["inductor+graph"] = attempt(lambda: graphed(compiled, sample), where="graph over torch.compile")
    return found


def line(model: str, dtype: str, device: torch.device, *, race_s: float) -> dict[str, Any]:
    """Tunes one model and races it: times in ms, the deciding ratio, what was installed."""
    module, sample = made(model, dtype, device)
    settings = tt.Settings(unit_race_s=race_s, pass_race_s=race_s, build_timeout=120.0)
    strategy = tt.HighestThroughputStrategy(CANDIDATES)
    tuned = copy.deepcopy(module)
    result = tt.auto_tune(tuned, [sample], max_depth=0, strategy=strategy, settings=settings, progress=False)
    chosen = [str(choice.candidate) for choice in result.plan.choices] if result.plan else ["eager"]
    by_hand = variants(module, sample)
    able = {name: call for name, call in by_hand.items() if not isinstance(call, Caught)}
    held = vars(tuned).get("forward")
    if isinstance(held, Dispatcher):
        able["unguarded"] = held.routes[0].entry.built.call
    runners = [Runner(name="auto_tune", call=tuned), *(Runner(name=name, call=call) for name, call in able.items())]
    rules = Rules(cap_s=race_s, looks=(16, 24, 32))
    timings = race(WallTimer(device), runners, lambda: [tt.Call(**sample)], rules, device=device)
    ms = {r.name: None if isinstance(t, Caught) else 1e3 * t.median for r, t in zip(runners, timings, strict=True)}
    ratios = {r.name: t.interval for r, t in zip(runners[1:], timings[1:], strict=True) if not isinstance(t, Caught)}
    unguarded = ratios.pop("unguarded", None)
    best = min(ratios, key=lambda name: ratios[name].mid)
    return {
        "model": model,
        "dtype": dtype,
        "ms": ms,
        "best_by_hand": best,
        "auto_tune_over_best": ratios[best].mid,
        "interval": [ratios[best].low, ratios[best].high],
        "unguarded_over_auto_tune": unguarded.mid if unguarded else None,
        "headline": result.headline,
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


def deeper(device: torch.device, dtype: str, *, race_s: float) -> dict[str, Any]:
    """How the encoder's cuts compare end to end, with graphs over eager only."""
    module, sample = made("encoder", dtype, device)
    settings = tt.Settings(unit_race_s=race_s, pass_race_s=2 * race_s)
    strategy = tt.HighestThroughputStrategy(["cuda_graph"])
    result = tt.auto_tune(module, [sample], max_depth=2, strategy=strategy, settings=settings, progress=False)
    return {
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


def warm(names: Sequence[tuple[str, str]], limit_s: float) -> None:
    """Compiles everything at once into the cache on disk."""
    environment = os.environ | {"TORCHINDUCTOR_COMPILE_THREADS": "1", "OMP_NUM_THREADS": "2"}
    running = [
        subprocess.Popen(  # noqa: S603  this very file
            [sys.executable, __file__, "--warm", model, dtype],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for model, dtype in names
    ]
    timer = WallTimer()
    end = timer.now() + limit_s
    for each in running:
        try:
            each.wait(max(end - timer.now(), 0.1))
        except subprocess.TimeoutExpired:
            each.kill()


def warm_one(model: str, dtype: str, device: torch.device) -> None:
    """What `line` compiles, both ways."""
    module, sample = made(model, dtype, device)
    settings = tt.Settings(unit_race_s=0.01)
    tt.tune(copy.deepcopy(module), [sample], strategy=tt.OneBackendStrategy(CANDIDATES[0]), settings=settings)
    with torch.no_grad():
        torch.compile(module, dynamic=False)(**sample)


def table(lines: Sequence[dict[str, Any]]) -> str:
    """The figures as Markdown, ms a call."""
    names = ("auto_tune", "unguarded", "eager", "inductor", "graph", "inductor+graph")
    rows = [
        f"| model | {' | '.join(names)} | installed | auto_tune / best by hand |",
        f"|---|{'---|' * len(names)}---|---|",
    ]
    for each in lines:
        if "error" in each:
            rows.append(f"| {each['model']} {each['dtype']} | {each['error']} |")
            continue
        cells = [f"{each['ms'][n]:.3f}" if each["ms"].get(n) else "-" for n in names]
        low, high = each["interval"]
        rows.append(
            f"| {each['model']} {each['dtype']} | {' | '.join(cells)} | {', '.join(each['installed'])} "
            f"| {each['auto_tune_over_best']:.3f}x ({low:.3f}-{high:.3f}) |"
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
    parser.add_argument("--no-deeper", action="store_true", help="only the whole models")
    parser.add_argument("--warm", nargs=2, metavar=("MODEL", "DTYPE"))
    options = parser.parse_args()
    if options.quick:
        options.models, options.dtypes, options.warm_s, options.no_deeper = "encoder", "fp32", 0.0, True
    if not torch.cuda.is_available():
        print("no CUDA device here: there is nothing to measure", file=sys.stderr)
        return 1
    device = torch.device("cuda", 0)
    warnings.simplefilter("ignore")
    if options.warm:
        warm_one(options.warm[0], options.warm[1], device)
        return 0
    return _run(options, device)


def _run(options: argparse.Namespace, device: torch.device) -> int:
    timer = WallTimer()
    began = timer.now()
    names = [(m, d) for m in options.models.split(",") for d in options.dtypes.split(",")]
    if options.warm_s:
        warm(names, options.warm_s)
    print(f"compiled in {timer.now() - began:.0f} s", flush=True)
    found: dict[str, Any] = {
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(device),
        "lines": [],
        "deeper": [],
    }
    with torch.no_grad():
        for dtype in () if options.no_deeper else options.dtypes.split(","):
            one = attempt(functools.partial(deeper, device, dtype, race_s=options.race_s), where="deeper")
            found["deeper"].append({"error": one.detail} if isinstance(one, Caught) else one)
        for model, dtype in names:
            if timer.now() - began > options.budget_s:
                found["lines"].append({"model": model, "dtype": dtype, "error": "no time left"})
                continue
            one = attempt(functools.partial(line, model, dtype, device, race_s=options.race_s), where=model)
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
