"""Which of two libraries multiplies by a float32 weight faster on this machine: MKL, or oneDNN."""

from __future__ import annotations

import statistics
import timeit
from collections.abc import Callable
from functools import lru_cache

import attrs
import torch

_ROUNDS = 25
_ROUND_S = 2e-3
_GAIN = 1.03
"""At least this many times as fast: a race this short cannot tell less than that from noise."""
_LEAST = 1 << 18
"""Multiplications under which nothing is raced: MKL needs some 5 us for them, and calling oneDNN alone takes 16 us."""
Run = Callable[[], object]


@attrs.frozen(kw_only=True)
class Product:
    """`bias + x @ weight.t()`.

    Attributes:
        rows: of x.
        ins: columns of x, and of the weight.
        outs: rows of the weight.
        biased: whether there is a bias.
        packed: whether the weight is a constant, which both libraries may pack before.
        called: whether oneDNN is called through the operator of `linears`, which takes weights that are no constants.
    """

    rows: int
    ins: int
    outs: int
    biased: bool
    packed: bool = False
    called: bool = False


def faster(product: Product) -> bool:
    """Whether oneDNN is faster, with as many threads as torch has now; raced once a process for each product."""
    if product.rows * product.ins * product.outs < _LEAST:
        return False
    return _raced(product, torch.get_num_threads())


@lru_cache(maxsize=4096)
def _raced(product: Product, _threads: int) -> bool:
    with torch.inference_mode(False), torch.no_grad():
        return gain(*ways(product)) > _GAIN


def gain(before: Run, after: Run, clock: Callable[[], float] = timeit.default_timer) -> float:
    """How many times as fast `after` is as `before`: the median over rounds in which both take turns."""
    timers = [timeit.Timer(before, timer=clock), timeit.Timer(after, timer=clock)]
    once = min(one.timeit(2) / 2 for one in timers)
    number = max(1, int(_ROUND_S / max(once, 1e-7)))
    rounds = [[one.timeit(number) for one in timers] for _ in range(_ROUNDS)]
    return statistics.median(slow / fast for slow, fast in rounds)


def ways(product: Product) -> tuple[Run, Run]:
    """The product as Inductor has MKL compute it, and by oneDNN, on memory of its own."""
    rows = product.rows
    x, weight = torch.rand(rows, product.ins), torch.rand(product.outs, product.ins)
    bias = torch.rand(product.outs) if product.biased else None
    linear = torch.ops.mkldnn._linear_pointwise.default
    if product.packed:
        mkl = torch.ops.mkl._mkl_reorder_linear_weight(weight, rows)
        onednn = torch.ops.mkldnn._reorder_linear_weight(weight, rows)
        return (
            lambda: torch.ops.mkl._mkl_linear(x, mkl, weight, bias, rows),
            lambda: linear(x, onednn, bias, "none", [], ""),
        )
    return _unpacked(x, weight, bias), (
        (lambda: torch.ops.tt_inductor.linear.default(x, weight, bias))
        if product.called
        else (lambda: linear(x, weight, bias, "none", [], ""))
    )


def _unpacked(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> Run:
    turned, out = weight.t(), torch.empty(x.shape[0], weight.shape[0])
    if bias is None:
        return lambda: torch.mm(x, turned, out=out)
    return lambda: torch.addmm(bias, x, turned, out=out)
