"""Containment: every call of plugin code goes through here, and costs only itself when it fails."""

from __future__ import annotations

import contextlib
import logging
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch

from tt_core.values import valued

T = TypeVar("T")


@valued
class Caught:
    """An exception of foreign code as a value.

    Attributes:
        kind: the exception's class name.
        reason: its message in one line.
        hint: what to do, where the code said so.
        detail: the whole traceback, as text.
    """

    kind: str
    reason: str
    hint: str = ""
    detail: str = ""


def attempt(call: Callable[[], T], *, where: str) -> T | Caught:
    """Runs foreign code with torch's global state kept; an exception becomes a value.

    Args:
        call: what to run.
        where: the place, for people: `build of 'encoder.0'`.

    Raises:
        KeyboardInterrupt, SystemExit: always passed on.
    """
    with torch_kept():
        try:
            return call()
        except Exception as error:  # noqa: BLE001  the one place where foreign failures end
            error.add_note(where)
            return caught(error)


def caught(error: BaseException) -> Caught:
    """An exception as a value: its first meaningful line, its hint, and its traceback."""
    text = str(error).strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    reason = lines[0] if lines else type(error).__name__
    detail = "".join(traceback.format_exception(error))
    return Caught(kind=type(error).__name__, reason=reason[:300], hint=getattr(error, "hint", ""), detail=detail)


@contextlib.contextmanager
def torch_kept() -> Iterator[None]:
    """Puts back what foreign code may change for the whole process: torch's modes and flags, RNG, warnings, logging."""
    saved = [(read, restore, read()) for read, restore in _GLOBALS]
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    generators = _generators()
    with warnings.catch_warnings():
        try:
            yield
        finally:
            for read, restore, value in saved:
                if read() != value:
                    restore(value)
            for device, state in generators:
                _set_generator(device, state)
            root.handlers[:] = handlers
            if root.level != level:  # setting it empties the caches of every logger
                root.setLevel(level)


def _generators() -> list[tuple[torch.device | None, torch.Tensor]]:
    """RNG states: the CPU's, and those of devices already in use (asking must not start a device)."""
    states: list[tuple[torch.device | None, torch.Tensor]] = [(None, torch.random.get_rng_state())]
    for name in ("cuda", "xpu"):
        runtime = getattr(torch, name, None)
        if runtime is not None and runtime.is_initialized():
            states += [(torch.device(name, i), runtime.get_rng_state(i)) for i in range(runtime.device_count())]
    return states


def _set_generator(device: torch.device | None, state: torch.Tensor) -> None:
    if device is None:
        torch.random.set_rng_state(state)
    else:
        getattr(torch, device.type).set_rng_state(state, device)


def _set_deterministic(value: tuple[bool, bool]) -> None:
    torch.use_deterministic_algorithms(value[0], warn_only=value[1])


def _backend_flags() -> tuple[Any, ...]:
    cudnn = torch.backends.cudnn
    return cudnn.enabled, cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32, torch.backends.mkldnn.enabled


def _set_backend_flags(value: tuple[Any, ...]) -> None:
    cudnn = torch.backends.cudnn
    cudnn.enabled, cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32 = value[:4]
    torch._C._set_mkldnn_enabled(value[4])  # torch.backends.mkldnn is frozen; this is what its own flags() calls


_GLOBALS: tuple[tuple[Callable[[], Any], Callable[[Any], Any]], ...] = (
    (torch.is_grad_enabled, torch._C._set_grad_enabled),
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_num_threads, torch.set_num_threads),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    (
        lambda: (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()),
        _set_deterministic,
    ),
    (_backend_flags, _set_backend_flags),
)
