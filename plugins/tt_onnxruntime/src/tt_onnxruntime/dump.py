"""Builts in files: ONNX models as plain as the exporter made them, one file of weights each, and sizes as ranges."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tt_core as tt
from tt_onnxruntime.build import State
from tt_onnxruntime.model import WEIGHTS, Weight
from tt_onnxruntime.session import Compiled

FORMAT = 1
MODEL = "model.onnx"

_GRID = 1 << 18
"""Combinations of sizes that are tried to see whether ranges say all that the programs assume."""


def dump(built: tt.Built, folder: Path) -> Mapping[str, Any]:
    """Writes each program of `built` as `0/model.onnx` with `0/weights.bin`, and so on.

    Returns:
        What `restore` needs beside the files, as JSON: no samples, no paths.

    Raises:
        BuildRefusedError: it was closed, its weights were changed since the build, or something cannot be said as data.
    """
    state: State | None = getattr(built.call, "tt_state", None)
    if state is None or not state.runner.programs:
        raise tt.BuildRefusedError("it was closed")
    programs = state.runner.programs
    if not all(weight.unchanged for program in programs for weight in program.model.weights.values()):
        raise tt.BuildRefusedError("its weights were changed since it was built", "tt.refresh builds it again")
    if not tt.flat.ranges_say(state.covers, [(program.fits, program.traces) for program in programs], _GRID):
        raise tt.BuildRefusedError("the sizes that its programs are right for cannot be said in ranges")
    dumped = {
        "format": FORMAT,
        "spinning": programs[0].settings.spinning,
        "sizes": [list(size) for size in state.sizes],
        "constants": [tt.flat.constant_form(value) for value in state.constants],
        "programs": [_entry(program) for program in programs],
    }
    for i, program in enumerate(programs):
        _write(program, folder / str(i))
    return dumped


def _entry(program: Compiled) -> dict[str, Any]:
    return {
        "inputs": list(program.inputs),
        "results": [[tt.flat.dtype_form(dtype), _rank(program, i)] for i, dtype in enumerate(program.dtypes)],
        "traces": [tt.flat.sizes_form(trace) for trace in program.traces],
        "indices": list(program.indices),
        "weights": [_place(name, weight) for name, weight in program.model.weights.items()],
    }


def _rank(program: Compiled, i: int) -> int:
    return len(program.session.outputs_meta[i].shape)


def _place(name: str, weight: Weight) -> list[Any]:
    return [name, weight.array.dtype.str, list(weight.array.shape), weight.source]


def _write(program: Compiled, folder: Path) -> None:
    folder.mkdir()
    (folder / MODEL).write_bytes(program.model.skeleton)
    with (folder / WEIGHTS).open("wb") as file:
        for weight in program.model.weights.values():
            file.write(weight.array.data)
