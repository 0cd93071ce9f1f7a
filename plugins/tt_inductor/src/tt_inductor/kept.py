"""A build runs the unit and imports a compiler: what both change of the module and of the process is put back."""

from __future__ import annotations

import contextlib
import copy
import multiprocessing
import os
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

_CONTAINERS = (list, dict, set)
_VARIABLE = "_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR"  # tells a library that is being loaded where a function is


@contextlib.contextmanager
def process_kept(device: torch.device) -> Iterator[None]:
    """Puts back random numbers, the recursion limit, the start method of processes and a variable of Inductor's.

    Not put back: what an import adds to `sys.path` (setuptools would not find its own parts any more).

    Args:
        device: whose generator is kept beside the CPU's.
    """
    limit, method = sys.getrecursionlimit(), multiprocessing.get_start_method(allow_none=True)
    variable = os.environ.get(_VARIABLE)
    devices = [] if device.type == "cpu" else [device]
    with torch.random.fork_rng(devices=devices, device_type="cuda" if device.type == "cpu" else device.type):
        try:
            yield
        finally:
            sys.setrecursionlimit(limit)
            if multiprocessing.get_start_method(allow_none=True) != method:
                multiprocessing.set_start_method(method, force=True)
            if variable is None:
                os.environ.pop(_VARIABLE, None)
            else:
                os.environ[_VARIABLE] = variable


@contextlib.contextmanager
def module_kept(module: nn.Module, written: tuple[str, ...]) -> Iterator[None]:
    """Puts back buffers, attributes and containers by value, and whatever else eager was seen to write.

    Args:
        module: the unit's module, with all modules inside.
        written: dotted names of state that the unit writes: parameters among them are kept too.
    """
    parameters = dict(module.named_parameters())
    tensors = [*module.buffers(), *(parameters[name] for name in written if name in parameters)]
    attributes = [
        value for each in module.modules() for value in vars(each).values() if isinstance(value, torch.Tensor)
    ]
    values = [(tensor, tensor.detach().clone()) for tensor in [*tensors, *attributes]]
    holders = [(space, dict(space)) for each in module.modules() for space in _spaces(each)]
    contents = [(value, copy.copy(value)) for _, items in holders for value in items.values() if _container(value)]
    try:
        yield
    finally:
        for space, items in holders:
            _refill(space, items)
        for value, content in contents:
            _refill(value, content)
        with torch.no_grad():
            for tensor, value in values:
                if not torch.equal(tensor, value):
                    tensor.copy_(value)


def _spaces(module: nn.Module) -> tuple[dict[str, Any], ...]:
    return vars(module), module._parameters, module._buffers, module._modules


def _container(value: Any) -> bool:
    return type(value) in _CONTAINERS


def _refill(container: Any, content: Any) -> None:
    """Gives a container its items back; one that has them still is not touched."""
    if isinstance(container, list):
        if len(container) != len(content) or any(a is not b for a, b in zip(container, content, strict=True)):
            container[:] = content
    elif isinstance(container, set):
        if container != content:
            container.clear()
            container.update(content)
    elif list(container) != list(content) or any(container[key] is not content[key] for key in content):
        container.clear()
        container.update(content)
