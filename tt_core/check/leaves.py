"""Leaves: what each kind of leaf must agree in, and the plain real tensors that its numbers are compared as."""

from __future__ import annotations

import cmath
import math
from collections.abc import Iterator
from enum import Enum
from types import NoneType
from typing import Any

import torch

from tt_core.check.limits import FLOAT_ABSOLUTE, FLOAT_RELATIVE
from tt_core.values import Tolerance, frozen

CONSTANTS = (
    NoneType,
    bool,
    int,
    str,
    bytes,
    Enum,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    slice,
    range,
)
_LARGEST = {"b": 1, "i": 8, "u": 8, "f": 8, "c": 16}
"""numpy's kinds that torch has too, and their largest size in bytes."""
_DENSE_LAYOUTS = (torch.strided, torch.jagged)


@frozen
class Numbers:
    """One real, dense piece of a tensor leaf, as eager, the candidate and float64 gave it.

    Attributes:
        name: leaf path, for people.
        dtype: the leaf's own dtype: the limits are its.
        paired: whether the last axis holds real and imaginary parts.
        want, got: eager's and the candidate's, of one shape.
        true: the float64 run's, None where there is none.
    """

    name: str
    dtype: torch.dtype
    paired: bool
    want: torch.Tensor
    got: torch.Tensor
    true: torch.Tensor | None


def plain(leaf: Any) -> Any:
    """`leaf`, with numpy arrays of numbers as tensors and numpy scalars as Python's."""
    if type(leaf).__module__ != "numpy" or not hasattr(leaf, "dtype"):
        return leaf
    if leaf.dtype.itemsize > _LARGEST.get(leaf.dtype.kind, 0):
        return leaf
    if not hasattr(leaf, "ctypes"):  # a numpy scalar has no memory to point at
        return leaf.item()
    native = leaf.astype(
        leaf.dtype.newbyteorder("=")
    )  # a copy: torch takes neither other byte orders nor read-only memory
    return torch.from_numpy(native)


def kind_mismatch(want: Any, got: Any) -> str:
    """Why two leaves cannot be the same value, before any number is read; empty where they can."""
    if _class(want) is not _class(got):
        return f"a {_name(got)} where eager gives a {_name(want)}"
    if not isinstance(want, torch.Tensor):
        return ""
    for word in ("dtype", "layout", "device", "shape"):
        left, right = _trait(want, word), _trait(got, word)
        if left != right:
            return f"{word} {right} where eager's is {left}"
    if want.is_quantized and want.qscheme() != got.qscheme():
        return f"quantised as {got.qscheme()} where eager's is {want.qscheme()}"
    return ""


def constants_equal(want: Any, got: Any, true: Any, tolerance: Tolerance) -> bool | None:
    """Whether two leaves of one class that are no tensors are the same; None: this kind cannot be compared."""
    if isinstance(want, float | complex):
        return _close(want, got, true, tolerance)
    if isinstance(want, CONSTANTS):
        return bool(want == got)
    if type(want).__module__ == "numpy" and getattr(getattr(want, "dtype", None), "kind", "O") != "O":
        return bool(want.dtype == got.dtype and want.tolist() == got.tolist())
    return None


def numbers(name: str, want: torch.Tensor, got: torch.Tensor, true: Any) -> Iterator[Numbers]:
    """The pieces of one tensor leaf; nothing for a tensor without memory (meta).

    Raises:
        ValueError: the pieces of both sides differ in number (`kind_mismatch` was not asked first).
    """
    if want.is_meta:
        return
    lefts, rights = list(_pieces(want)), list(_pieces(got))
    truths = list(_pieces(true)) if isinstance(true, torch.Tensor) else []
    same = [t.shape for _, t in truths] == [w.shape for _, w in lefts]
    for position, ((suffix, left), (_, right)) in enumerate(zip(lefts, rights, strict=True)):
        yield Numbers(
            name=name + suffix,
            dtype=left.dtype,
            paired=left.is_complex(),
            want=_real(left),
            got=_real(right),
            true=_real(truths[position][1]) if same else None,
        )


def _pieces(tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """A tensor of any kind as dense ones, each with the end of its name."""
    if tensor.is_nested:
        parts: Any = [(f"[{i}]", part) for i, part in enumerate(tensor.unbind())]
    elif hasattr(tensor, "__tensor_flatten__"):  # torch's protocol for tensors that wrap others
        parts = [(f".{word}", getattr(tensor, word)) for word in tensor.__tensor_flatten__()[0]]
    elif tensor.is_quantized:
        yield "", tensor.dequantize()
        return
    else:
        yield "", tensor if tensor.layout in _DENSE_LAYOUTS else tensor.to_dense()
        return
    for label, part in parts:
        for suffix, piece in _pieces(part):
            yield label + suffix, piece


def _real(tensor: torch.Tensor) -> torch.Tensor:
    bare = tensor.detach().as_subclass(torch.Tensor)
    return torch.view_as_real(bare.resolve_conj()) if bare.is_complex() else bare.resolve_neg()


def _close(want: complex, got: complex, true: Any, tolerance: Tolerance) -> bool:
    if cmath.isnan(want) or cmath.isnan(got):
        return cmath.isnan(want) and cmath.isnan(got)
    limit = tolerance.factor * (FLOAT_RELATIVE if tolerance.relative is None else tolerance.relative)
    if cmath.isclose(want, got, rel_tol=limit, abs_tol=FLOAT_ABSOLUTE * tolerance.factor):
        return True
    if not isinstance(true, float | complex) or tolerance.relative is not None or not cmath.isfinite(want):
        return False
    allowed = abs(want - true) + limit * abs(true)
    return math.isfinite(allowed) and abs(got - true) <= allowed


def _trait(tensor: torch.Tensor, word: str) -> Any:
    if word == "device":
        return str(tensor.device) if tensor.device.index else tensor.device.type  # "cuda" is "cuda:0"
    if word == "shape":
        return [tuple(part.shape) for part in tensor.unbind()] if tensor.is_nested else tuple(tensor.shape)
    return getattr(tensor, word)


def _class(leaf: Any) -> type:
    return torch.Tensor if isinstance(leaf, torch.nn.Parameter) else type(leaf)


def _name(leaf: Any) -> str:
    return "Tensor" if isinstance(leaf, torch.nn.Parameter) else type(leaf).__name__
