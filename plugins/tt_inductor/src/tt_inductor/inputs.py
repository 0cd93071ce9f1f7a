"""What an ahead-of-time program may be given: it trusts its caller with dtypes, sizes, strides and addresses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

import tt_core as tt

ALIGNMENT = 16  # bytes; generated kernels load whole vectors
Inputs = Callable[..., list[torch.Tensor] | None]


def inputs_of(key: tt.CallKey, covers: tt.Shapes) -> Inputs:
    """A function from a call's tensors to what the program gets: contiguous and aligned; None for what it must not get.

    Args:
        key: gives dtype and device of each tensor.
        covers: gives the sizes; axes of one symbol have to be equal.
    """
    names = [f"t{index}" for index in range(len(covers.leaves))]
    scope: dict[str, Any] = {"_ready": _ready}
    tests: list[str] = []
    seen: set[str] = set()
    for name, leaf, sizes in zip(names, key.tensors, covers.leaves, strict=True):
        scope[f"_{name}_dtype"], scope[f"_{name}_device"] = leaf.dtype, leaf.device
        tests += [f"{name}.dtype is _{name}_dtype", f"{name}.device == _{name}_device", *_sizes(name, sizes, seen)]
    mask = ALIGNMENT - 1
    ready = ", ".join(f"{t} if {t}.is_contiguous() and not {t}.data_ptr() & {mask} else _ready({t})" for t in names)
    source = f"def inputs({', '.join(names)}):\n    return [{ready}] if {' and '.join(tests) or 'True'} else None\n"
    exec(compile(source, "<tt_inductor inputs>", "exec"), scope)  # noqa: S102  only numbers and names of our own
    made: Inputs = scope["inputs"]
    return made


def _sizes(name: str, sizes: Sequence[int | tt.Axis], seen: set[str]) -> list[str]:
    if all(isinstance(size, int) for size in sizes):
        return [f"{name}.shape == {tuple(sizes)!r}"]
    tests = [f"{name}.ndim == {len(sizes)}"]
    for dim, size in enumerate(sizes):
        at = f"{name}.shape[{dim}]"
        if isinstance(size, int):
            tests.append(f"{at} == {size}")
        elif size.symbol in seen:
            tests.append(f"{at} == n_{size.symbol}")
        else:
            seen.add(size.symbol)
            tests.append(f"{size.lo} <= (n_{size.symbol} := {at}) <= {size.hi}")
    return tests


def _ready(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous tensor of the same content whose address is aligned."""
    made = tensor.contiguous()
    return made if not made.data_ptr() & (ALIGNMENT - 1) else made.clone()
