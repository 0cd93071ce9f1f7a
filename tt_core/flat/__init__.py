"""A unit as a function from tensors to tensors: the shared tool of every backend that exports programs.

Ahead-of-time compilers and other runtimes want a module whose inputs and outputs are a flat list of tensors. What is no
tensor in a call (None, a flag, a step number) belongs to the call key, and so is bound; so is what is no tensor in the result.
"""

from __future__ import annotations

from tt_core.flat.exported import Exported
from tt_core.flat.unit import Flat, FlatModule, flatten_unit

__all__ = ["Exported", "Flat", "FlatModule", "flatten_unit"]
