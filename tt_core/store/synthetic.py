"""Made-up calls of a recorded identity: to build from, to compare with eager, and to warm up, where no sample exists."""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from tt_core import trees
from tt_core.callkey import path_names
from tt_core.flat import spelled
from tt_core.values import (
    Axis,
    CallKey,
    Calls,
    ConstLeaf,
    Facts,
    Observation,
    Sample,
    Shapes,
    TensorLeaf,
    valued,
)

BYTES = 256 << 20
"""Of one call's tensors: a larger one is not made up."""
_SEED = 0
Sizes = tuple[tuple[int, ...], ...]


@valued
class Unmade:
    """No call can be made up, and why."""

    reason: str


def calls_of(forward: Callable[..., Any], key: CallKey, covers: Shapes | None, facts: Facts) -> Calls | Unmade:
    """Calls at the smallest and the largest sizes that are covered: seeded normal numbers, and zeros for integers.

    Integers named as a mask are ones: all masked out is no call that anybody makes.

    Args:
        forward: gives the signature.
        key: structure, dtypes and constants.
        covers: sizes.
        facts: passed on.
    """
    if covers is None:
        return Unmade(reason="the sizes that it covers were not kept")
    strange = next((leaf for leaf in key.tensors if not _is_plain(leaf)), None)
    if strange is not None:
        return Unmade(reason=f"it takes tensors of a kind that cannot be made up ({strange.type.__name__})")
    wanted = dict.fromkeys((_at(covers, largest=False), _at(covers, largest=True)))
    fitting = [sizes for sizes in wanted if covers.admit(sizes) and _bytes(key, sizes) <= BYTES]
    if not fitting:
        return Unmade(reason="its sizes are too large to be tried")
    samples = []
    for index, sizes in enumerate(fitting):
        leaves = list(_leaves(key, sizes))
        call = spelled(inspect.signature(forward), trees.unflatten(key.tree, leaves))
        samples.append(Sample(call=call, expected=Observation(result=None), index=index))
    return Calls(key=key, shapes=covers, samples=tuple(samples), seen=len(samples), facts=facts)


def _is_plain(leaf: TensorLeaf) -> bool:
    return leaf.layout is torch.strided and leaf.type in {torch.Tensor, torch.nn.Parameter}


def _at(covers: Shapes, *, largest: bool) -> Sizes:
    return tuple(
        tuple((size.hi if largest else size.lo) if isinstance(size, Axis) else size for size in leaf)
        for leaf in covers.leaves
    )


def _bytes(key: CallKey, sizes: Sizes) -> int:
    return sum(leaf.dtype.itemsize * math.prod(size) for leaf, size in zip(key.tensors, sizes, strict=True))


def _leaves(key: CallKey, sizes: Sizes) -> Iterator[Any]:
    drawn = torch.Generator().manual_seed(_SEED)
    left = iter(sizes)
    for name, leaf in zip(path_names(key.tree), key.leaves, strict=True):
        yield _value(leaf) if isinstance(leaf, ConstLeaf) else _tensor(leaf, next(left), name.lower(), drawn)


def _tensor(leaf: TensorLeaf, size: tuple[int, ...], name: str, drawn: torch.Generator) -> torch.Tensor:
    if leaf.dtype.is_floating_point or leaf.dtype.is_complex:
        wide = torch.complex64 if leaf.dtype.is_complex else torch.float32
        made = torch.randn(size, dtype=wide, generator=drawn).to(leaf.device, leaf.dtype)
    else:
        kept = "attention_mask" in name if leaf.dtype is torch.bool else "mask" in name
        made = (torch.ones if kept else torch.zeros)(size, dtype=leaf.dtype, device=leaf.device)
    return torch.nn.Parameter(made, requires_grad=False) if leaf.type is torch.nn.Parameter else made


def _value(leaf: ConstLeaf) -> Any:
    """The constant that a leaf stands for."""
    kind, value = leaf.type, leaf.value
    if kind is float:
        return float.fromhex(value)
    if kind is complex:
        return complex(*map(float.fromhex, value))
    if kind is torch.Size:
        return torch.Size(value)
    if kind in {slice, range}:
        return kind(*map(_value, value))
    numpy = sys.modules.get("numpy")
    if numpy is not None and issubclass(kind, numpy.generic):
        text, data = value
        return kind("nan") if data == "nan" else numpy.frombuffer(data, dtype=text)[0]
    return value
