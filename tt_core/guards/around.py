"""What surrounds a call and makes a built the wrong answer: tracing, transforms, modes, forward AD, a forked process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.autograd import forward_ad

grad_on: Callable[[], bool] = torch.is_grad_enabled
forward_ad_state: dict[str, Any] = vars(forward_ad)
"""Holds `_current_level`, at least 0 while forward-mode derivatives are taken; torch has no question for it."""
forks = [0]
"""How many forks lie between this process and the one that imported us; a list, so that guards share it."""


def _forked() -> None:
    forks[0] += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def traced() -> str:
    """What traces or transforms the call now, in words; empty for a plain call."""
    if torch.compiler.is_compiling():
        return "torch.compile or torch.export is at work"
    if torch._C._get_tracing_state() is not None:  # private: what nn.Module itself asks; the public one imports jit
        return "torch.jit.trace is at work"
    if torch._C._functorch.maybe_current_level() is not None:
        return "a torch.func transform (vmap, grad, ...) is at work"
    if torch._C._len_torch_dispatch_stack():
        return "a torch dispatch mode is active"
    if forward_ad_state["_current_level"] >= 0:
        return "forward-mode derivatives are taken"
    return ""


def plain(devices: Iterable[str], autocast: bool) -> bool:
    """Whether nothing traces or transforms the call, and (unless the key has an autocast) none of `devices` autocasts."""
    return not traced() and (autocast or not any(map(torch.is_autocast_enabled, devices)))


def disjoint(*tensors: torch.Tensor) -> bool:
    """Whether no two of these strided tensors, and no two elements of one, can share memory.

    Careful rather than exact: tensors whose address ranges overlap count as sharing.
    """
    if any(stride == 0 < size - 1 for tensor in tensors for size, stride in zip(tensor.shape, tensor.stride())):  # noqa: B905
        return False
    spans = sorted(_span(tensor) for tensor in tensors if tensor.numel())
    return all(left[0] != right[0] or left[2] <= right[1] for left, right in zip(spans, spans[1:]))  # noqa: B905, RUF007


def _span(tensor: torch.Tensor) -> tuple[str, int, int]:
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))  # noqa: B905
    start = tensor.data_ptr()
    return str(tensor.device), start, start + (last + 1) * tensor.element_size()
