"""What is said about a program, as JSON and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tt_core as tt
from tt_openvino.convert import Program
from tt_openvino.integers import Limit


def program_form(program: Program) -> dict[str, Any]:
    """A program as JSON values."""
    return {
        "inputs": list(program.inputs),
        "results": [[tt.flat.dtype_form(dtype), rank] for dtype, rank in program.results],
        "traces": [tt.flat.sizes_form(trace) for trace in program.traces],
        "limits": [[index, limit.low, limit.high] for index, limit in program.limits.items()],
        "precision": program.precision,
    }


def read_program(form: Mapping[str, Any]) -> Program:
    """The program of a form; what is malformed raises whatever it raises.

    Raises:
        KeyError, TypeError, ValueError, BuildRefusedError: it is no form of a program.
    """
    return Program(
        inputs=tuple(str(name) for name in form["inputs"]),
        results=tuple((tt.flat.read_dtype(name), int(rank)) for name, rank in form["results"]),
        traces=tuple(map(tt.flat.read_sizes, form["traces"])),
        limits={int(index): Limit(low=int(low), high=int(high)) for index, low, high in form["limits"]},
        precision=str(form["precision"]),
    )
