"""How far floating point results may be off: the constants of the check, one row a dtype."""

from __future__ import annotations

import torch

from tt_core.values import valued


@valued
class Limit:
    """What one dtype allows.

    Attributes:
        times: how many times eager's own relative L2 distance to the truth is allowed.
        floor: what is allowed beyond that, as a relative L2 distance.
        fixed: the relative L2 distance to eager that is allowed where there is no truth.
    """

    times: float
    floor: float
    fixed: float


_HALF = Limit(times=3, floor=5e-4, fixed=2e-3)
_SINGLE = Limit(times=5, floor=1e-6, fixed=1e-5)
_DOUBLE = Limit(times=5, floor=1e-13, fixed=1e-12)
_LIMITS = {
    torch.float16: _HALF,
    torch.bfloat16: Limit(times=3, floor=2e-3, fixed=1e-2),
    torch.float32: _SINGLE,
    torch.float64: _DOUBLE,
    torch.complex32: _HALF,
    torch.complex64: _SINGLE,
    torch.complex128: _DOUBLE,
}

FEW = 8
"""Fewer pooled numbers than this tell too little about eager's own error: the floor decides."""
FEW_FLOORS = 10
"""How many floors few numbers are allowed."""
ELEMENT_TIMES = 10
"""How many times eager's own worst element a single element may be off ..."""
ELEMENT_RMS = 0.05
"""... plus this share of the tensor's root mean square, so that one wrong element shows."""
LAST_BITS = 4
"""How many of its own last bits a single number may be off where there is no truth, beyond all other limits: beside the
tensor's rms the last bit of a large number in half precision is no small one."""
NOISE_TIMES = 10
"""How many times the units' own noise a whole object may be off: their errors add up."""
FLOAT_RELATIVE = 1e-5
FLOAT_ABSOLUTE = 1e-8
"""What Python floats may be off."""
SENTINEL = 1e4
"""From this size on a repeated extreme value is a mask (-1e4, -1e9, finfo.min), not a result that others are measured by."""


def limit_of(dtype: torch.dtype) -> Limit:
    """The row of a floating point or complex dtype; eight bit floats get theirs from their own resolution."""
    found = _LIMITS.get(dtype)
    if found is None:
        eps = torch.finfo(dtype).eps
        found = Limit(times=3, floor=eps, fixed=5 * eps)
    return found
