"""What a process and a module look like, so that a test can say what foreign code changed."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Mapping
from os import environ, getcwd  # only compared: nothing here depends on a variable
from typing import Any

import torch
from torch import nn

from tt_core import state

_TORCHS_OWN = ("TORCH", "PYTORCH", "TRITON")
"""Variables that torch sets itself when its compiler is imported first."""
# a library that is imported first may set filters on warnings of its own, which are nobody else's
_PROCESS: Mapping[str, Callable[[], Any]] = {
    "grad mode": torch.is_grad_enabled,
    "inference mode": torch.is_inference_mode_enabled,
    "torch's default dtype": torch.get_default_dtype,
    "torch's default device": torch.get_default_device,
    "torch's number of threads": torch.get_num_threads,
    "the float32 matmul precision": torch.get_float32_matmul_precision,
    "deterministic algorithms": lambda: (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    ),
    "anomaly detection": torch.is_anomaly_enabled,
    "autocast": lambda: (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")),
    "the flags of cuDNN and oneDNN": lambda: (
        torch.backends.cudnn.enabled,
        torch.backends.cudnn.benchmark,
        torch.backends.cudnn.deterministic,
        torch.backends.cudnn.allow_tf32,
        torch.backends.mkldnn.enabled,
    ),
    "warning filters": lambda: [each for each in warnings.filters if each[2].__module__ == "builtins"],
    "the root logger": lambda: (logging.root.level, list(logging.root.handlers), logging.root.manager.disable),
    "environment variables": lambda: {k: v for k, v in environ.items() if not k.startswith(_TORCHS_OWN)},
    "the working directory": getcwd,
    "sys.path": lambda: [path for path in sys.path if not path.endswith("_vendor")],  # setuptools adds its own
    "standard streams": lambda: (id(sys.stdout), id(sys.stderr), id(sys.stdin)),
    "exception hooks": lambda: (sys.excepthook, threading.excepthook, sys.unraisablehook),
    "signal handlers": lambda: [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)],
    "garbage collection": lambda: (gc.isenabled(), gc.get_threshold()),
    "the recursion limit": sys.getrecursionlimit,
    "the start method of processes": lambda: multiprocessing.get_start_method(allow_none=True),
    "hooks around all modules": lambda: [
        list(hooks) for hooks in (nn.modules.module._global_forward_hooks, nn.modules.module._global_forward_pre_hooks)
    ],
}


class Process:
    """What belongs to the whole process, as it is now."""

    def __init__(self) -> None:
        self._values = {name: read() for name, read in _PROCESS.items()}
        self._generators = state.states()

    def changed(self) -> tuple[str, ...]:
        """What is not as it was, in words: `warning filters`, `random numbers (cpu)`."""
        names = [name + _difference(was, now) for name, was in self._values.items() if (now := _PROCESS[name]()) != was]
        now = state.states()
        moved = [name for name, value in self._generators.items() if name in now and not _same_state(value, now[name])]
        return tuple(names + [f"random numbers ({name})" for name in moved])


def _difference(was: Any, now: Any) -> str:
    """What came and what went, for lists and dicts of texts."""
    if not isinstance(was, (list, dict)):
        return f" ({was} became {now})"
    pairs = (was, now) if isinstance(was, list) else (list(was.items()), list(now.items()))
    gone, new = ([one for one in a if one not in b] for a, b in (pairs, pairs[::-1]))
    return f" ({'; '.join([f'without {one}' for one in gone] + [f'with {one}' for one in new]) or 'another order'})"


def _same_state(was: Any, now: Any) -> bool:
    if isinstance(was, torch.Tensor):
        return torch.equal(was, now)
    return repr(was) == repr(now)  # NumPy's holds an array, which `==` compares element by element


class Portrait:
    """A module as it is now: the very objects in it, and their values."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._snapshot = state.take(module)
        self._objects = _objects(module)

    def changed(self) -> tuple[str, ...]:
        """What is not as it was, as dotted names with what happened: `first.weight is another object`."""
        now = _objects(self._module)
        gone = [f"{name} is gone" for name in self._objects if name not in now]
        new = [f"{name} is new" for name in now if name not in self._objects]
        other = [
            f"{name} is another object" for name, value in self._objects.items() if name in now and now[name] != value
        ]
        return (*gone, *new, *other, *(f"{name} has another value" for name in self._snapshot.changed()))

    def restore(self) -> None:
        """Puts back what can be put back."""
        self._snapshot.restore()


def _objects(module: nn.Module) -> dict[str, Any]:
    """Every attribute and entry of the modules inside by dotted name: its identity; plain constants by value."""
    found: dict[str, Any] = {}
    for path, inner in module.named_modules(remove_duplicate=False):
        for name, value in vars(inner).items():
            found[f"{path}.{name}".strip(".")] = (type(value), repr(value)) if _constant(value) else id(value)
            if isinstance(value, dict):
                found |= {f"{path}.{name}[{key!r}]".strip("."): id(entry) for key, entry in value.items()}
    return found


def _constant(value: Any) -> bool:
    """Whether a value is as good as any that is equal to it."""
    if type(value) is tuple:
        return all(map(_constant, value))
    return type(value) in {bool, int, float, str, type(None)}
