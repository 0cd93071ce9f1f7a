"""Tensors compared in one C call: an exact verdict, once given, is remembered by torch's own tensor guard.

`TensorGuards` (private, what `torch.compile` guards with) looks at the class, dtype, device, rank, sizes, strides,
`requires_grad` and the dispatch keys of each tensor as the calling thread sees them, so that autocast, tracing, dispatch
modes and functorch levels show too. Equal in all of that to a call that passed means: passes. Where it is missing, the
exact predicate answers every time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tt_core.guards.dynamo import dynamo

_TENSOR_GUARDS: Any = getattr(dynamo, "TensorGuards", None)

Check = Callable[..., bool]
Dims = Sequence[Sequence[int | None]]

_VARIANTS = 4
"""Remembered verdicts: normal and inference tensors, under no_grad and under inference_mode."""
_KINDS = (torch.Tensor, torch.nn.Parameter)


class Seen:
    """An exact predicate over tensors with a memory of the calls that passed.

    Args:
        exact: the predicate; it must depend on nothing but what `TensorGuards` looks at.
        sizes: per tensor the sizes that `exact` fixes, None for those it leaves free.
        strides: the same for strides.
        publish: told a faster predicate each time there is one.
    """

    def __init__(self, exact: Check, sizes: Dims, strides: Dims, publish: Callable[[Check], None]) -> None:
        self.exact = exact
        self.sizes = [list(size) for size in sizes]
        self.strides = [list(stride) for stride in strides]
        self.publish = publish
        self.checks: list[Check] = []
        publish(never)

    def learn(self, *tensors: torch.Tensor) -> bool:
        """The exact verdict; a call that passes is remembered."""
        if not self.exact(*tensors):
            return False
        if _TENSOR_GUARDS is not None and all(type(tensor) in _KINDS for tensor in tensors):
            made = _TENSOR_GUARDS(*tensors, dynamic_dims_sizes=self.sizes, dynamic_dims_strides=self.strides)
            self.checks = [made.check, *self.checks[: _VARIANTS - 1]]
            self.publish(_either(self.checks))
        return True


def never(*_: object) -> bool:
    """The predicate that holds for nothing."""
    return False


def _either(checks: Sequence[Check]) -> Check:
    if len(checks) == 1:
        return checks[0]
    kept = tuple(checks)

    def either(*tensors: torch.Tensor) -> bool:
        return any(check(*tensors) for check in kept)

    return either
