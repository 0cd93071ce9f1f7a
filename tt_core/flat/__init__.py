"""A unit as a function from tensors to tensors: the shared tool of every backend that exports programs.

Ahead-of-time compilers and other runtimes want a module whose inputs and outputs are a flat list of tensors. What is no
tensor in a call (None, a flag, a step number) belongs to the call key, and so is bound; so is what is no tensor in the result.

`flatten_unit` and `traces` make programs; `refuse_calls` and `refuse_graph` say what no program keeps; `quiet` keeps exporters
from printing; the rest is for writing programs down and finding them again.
"""

from __future__ import annotations

from tt_core.flat.code import code_print
from tt_core.flat.exported import Exported
from tt_core.flat.extremes import extremes
from tt_core.flat.forms import (
    constant_form,
    dtype_form,
    every_size,
    read_constant,
    read_dtype,
    read_sizes,
    sizes_form,
    spelled,
    synthetic,
)
from tt_core.flat.prints import Versions, named_tensors, program_print, version_of, weights_print
from tt_core.flat.quiet import quiet
from tt_core.flat.refuse import op_name, refuse_calls, refuse_graph, tensors_in
from tt_core.flat.stored import ranges_say, restoring
from tt_core.flat.traces import elements, hull, traces
from tt_core.flat.unit import Flat, FlatModule, flatten_unit

__all__ = [
    "Exported",
    "Flat",
    "FlatModule",
    "Versions",
    "code_print",
    "constant_form",
    "dtype_form",
    "elements",
    "every_size",
    "extremes",
    "flatten_unit",
    "hull",
    "named_tensors",
    "op_name",
    "program_print",
    "quiet",
    "ranges_say",
    "read_constant",
    "read_dtype",
    "read_sizes",
    "refuse_calls",
    "refuse_graph",
    "restoring",
    "sizes_form",
    "spelled",
    "synthetic",
    "tensors_in",
    "traces",
    "version_of",
    "weights_print",
]
