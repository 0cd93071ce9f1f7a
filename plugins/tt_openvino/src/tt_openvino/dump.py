"""Builts in files: OpenVINO's own description of each model in full precision, its weights beside it, and sizes as ranges."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tt_core as tt
from tt_openvino.build import State
from tt_openvino.files import write
from tt_openvino.forms import program_form
from tt_openvino.weights import sources

FORMAT = 1

_GRID = 1 << 18
"""Combinations of sizes that are tried to see whether ranges say all that the programs assume."""


def dump(built: tt.Built, folder: Path) -> Mapping[str, Any]:
    """Writes each program of `built` as `0/model.xml` with `0/model.bin`, and so on.

    Returns:
        What `restore` needs beside the files, as JSON: no samples, no paths.

    Raises:
        BuildRefusedError: it was closed, its weights were changed since the build, or something cannot be said as data.
    """
    state: State | None = getattr(built.call, "tt_state", None)
    if state is None or not state.runner.programs:
        raise tt.BuildRefusedError("it was closed")
    programs = state.runner.programs
    if not state.weights.unchanged:
        raise tt.BuildRefusedError("its weights were changed since it was built", "tt.refresh builds it again")
    if not tt.flat.ranges_say(state.covers, [(program.fits, program.program.traces) for program in programs], _GRID):
        raise tt.BuildRefusedError("the sizes that its programs are right for cannot be said in ranges")
    tensors = state.weights.tensors
    dumped = {
        "format": FORMAT,
        "options": state.settings.options,
        "sizes": [list(size) for size in state.sizes],
        "constants": [tt.flat.constant_form(value) for value in state.constants],
        "weights": tt.flat.weights_print(tensors.items()),
        "programs": [
            {**program_form(program.program), "sources": sources(program.model, tensors)} for program in programs
        ],
    }
    for i, program in enumerate(programs):
        (folder / str(i)).mkdir()
        write(program.model, folder / str(i))
    return dumped
