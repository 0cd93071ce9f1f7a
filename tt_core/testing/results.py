"""Results compared in tests: the judgement of the check itself, as an assertion."""

from __future__ import annotations

from typing import Any

from tt_core.check import whole
from tt_core.values import Tolerance


def assert_same_results(
    expected: Any, actual: Any, *, tolerance: Tolerance | None = None, noise: float | None = None
) -> None:
    """Fails unless two results of an object are the same, as far as rounding goes.

    Structure, container types, dtypes, shapes, devices, integers, constants, NaN and infinities must be equal; floating
    point numbers to a relative L2 distance of 1e-5 (float32), 2e-3 (float16), 1e-2 (bfloat16), 1e-12 (float64).

    Args:
        expected: what eager returned: any pytree, numpy arrays included; a list holds several results.
        actual: what is to be the same.
        tolerance: loosens or tightens the floating point limits.
        noise: relative L2 distance to float64 that eager itself shows, where that is known; ten times it is allowed.

    Raises:
        AssertionError: with the reason and the place of the first, or the worst, difference; also when the results hold
            nothing that can be compared.
    """
    verdict = whole([expected], [actual], Tolerance() if tolerance is None else tolerance, noise)
    if not verdict.ok:
        raise AssertionError(verdict.reason)
