"""Random number generators: the CPU's, those of devices in use, Python's and NumPy's."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator
from typing import Any

import torch

States = dict[str, Any]
"""A state by the generator's name: `cpu`, `cuda:0`, `python`, `numpy`."""


def states() -> States:
    """The states of all generators. Asking starts no device."""
    found: States = {"cpu": torch.random.get_rng_state()}
    for name in _in_use():
        runtime = getattr(torch, name)
        found |= {f"{name}:{i}": runtime.get_rng_state(i) for i in range(runtime.device_count())}
    found["python"] = random.getstate()
    if (numpy := _numpy()) is not None:
        found["numpy"] = numpy.random.get_state(legacy=False)
    return found


def restore(saved: States) -> None:
    """Puts the generators back, those that moved only."""
    now = states()
    for name, state in saved.items():
        if name not in now or not _equal(now[name], state):
            _set(name, state)


def moved(before: States) -> bool:
    """Whether random numbers were drawn since `before`."""
    now = states()
    return any(name in now and not _equal(now[name], state) for name, state in before.items())


def seed(number: int) -> None:
    """Seeds all generators. Unlike `torch.manual_seed`, leaves nothing behind for devices that are not in use."""
    torch.default_generator.manual_seed(number)
    for name in _in_use():
        for generator in getattr(torch, name).default_generators:
            generator.manual_seed(number)
    random.seed(number)
    if (numpy := _numpy()) is not None:
        numpy.random.seed(number % 2**32)


@contextlib.contextmanager
def rng_kept() -> Iterator[None]:
    """Leaves every generator as it was."""
    saved = states()
    try:
        yield
    finally:
        restore(saved)


def _in_use() -> list[str]:
    runtimes = ((name, getattr(torch, name, None)) for name in ("cuda", "xpu"))
    return [name for name, runtime in runtimes if runtime is not None and runtime.is_initialized()]


def _numpy() -> Any:
    """NumPy where the process has loaded it: its generator cannot have been used otherwise."""
    numpy = sys.modules.get("numpy")
    return numpy if numpy is not None and hasattr(numpy, "random") else None


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):  # NumPy's: a dict with an array inside
        return a.keys() == b.keys() and all(_equal(a[key], b[key]) for key in a)
    return bool((a == b).all()) if hasattr(a, "all") else bool(a == b)


def _set(name: str, state: Any) -> None:
    if name == "cpu":
        torch.random.set_rng_state(state)
    elif name == "python":
        random.setstate(state)
    elif name == "numpy":
        _numpy().random.set_state(state)
    else:
        device = torch.device(name)
        getattr(torch, device.type).set_rng_state(state, device)
