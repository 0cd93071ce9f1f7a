"""Our OpenVINO built against `openvino` used by hand and against `torch.compile(backend="openvino")`, in one run a model.

By hand means the way that its documentation shows: `openvino.convert_model` of the exported program,
`openvino.compile_model`, the compiled model called with NumPy arrays. Axes that move in the samples are dynamic, and float32
is computed in float32, everywhere (as it comes OpenVINO takes bfloat16 where the processor has it, and so another result).
Everything runs whole models, without tt_core's dispatcher.

Goals, lower ends of 99 % intervals:

| what | goal |
|---|---|
| time(by hand) / time(ours), each model | at least 0.97 |
| time(torch.compile) / time(ours), each model where it runs | at least 0.97 |
| time(by hand) / time(ours), a toy of two layers: what a call costs | at least 1.67 (ours 0.6 of it) |

Beside it, without a goal, each backend's time as a share of eager's: with `--table` all of them.

    python benchmarks/openvino.py [--quick] [--model NAME] [--table] [--json PATH]

`--quick` takes the toy and one small model. Exits with 1 when a goal is missed.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).resolve().parent]
# this file bears the name of the package that it measures: its folder goes to the end, for `_backends`
sys.path.append(str(Path(__file__).resolve().parent))

from collections.abc import Callable  # noqa: E402
from typing import Any  # noqa: E402

import torch  # noqa: E402
from _backends import moving, run  # noqa: E402

import tt_core as tt  # noqa: E402

CONFIG = {"INFERENCE_PRECISION_HINT": "f32"}


def by_hand(unit: tt.Unit, calls: tt.Calls) -> Callable[..., Any]:
    """The model converted, compiled and called the way that OpenVINO's documentation shows."""
    import openvino as ov

    call, shapes = moving(unit, calls)
    exported = torch.export.export(
        unit.module, tuple(call.args), kwargs=dict(call.kwargs), dynamic_shapes=shapes, strict=False
    )
    compiled = ov.compile_model(ov.convert_model(exported), "CPU", CONFIG)

    def call_compiled(*args: torch.Tensor, **kwargs: torch.Tensor) -> list[torch.Tensor]:
        given = {name: value.numpy() for name, value in kwargs.items()} or [a.numpy() for a in args]
        results = compiled(given)
        return [torch.from_numpy(results[i]) for i in range(len(compiled.outputs))]

    return call_compiled


def by_torch_compile(unit: tt.Unit, calls: tt.Calls) -> Callable[..., Any]:
    """OpenVINO's own backend of `torch.compile`.

    Raises:
        RuntimeError: it compiled nothing: eager in disguise.
    """
    import openvino.torch  # noqa: F401  registers the backend
    from torch._dynamo.utils import counters

    made: Any = torch.compile(unit.module, backend="openvino", options={"device": "CPU", "config": CONFIG})
    counters.clear()
    made(*calls.samples[0].call.args, **calls.samples[0].call.kwargs)
    if not counters["stats"]["unique_graphs"]:
        raise RuntimeError("nothing was compiled: eager serves")
    return made


if __name__ == "__main__":
    rivals = {"by hand": by_hand, "torch.compile": by_torch_compile}
    sys.exit(run(__doc__ or "", "openvino", rivals, (0.97, 1 / 0.6)))
