"""Keeps what exporters print from the user's screen: the reason goes into the report instead."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

_LOGGERS = (
    "torch.fx",
    "torch.fx.experimental.symbolic_shapes",
    "torch.export",
    "torch._export",
    "torch._dynamo",
    "torch._subclasses",
)


@contextlib.contextmanager
def quiet(*loggers: str) -> Iterator[None]:
    """No warnings, log lines or prints of this thread; what other threads print goes where it went.

    Args:
        loggers: names of loggers to silence, beside those of `torch.export`.
    """
    _give_tqdm_its_lock()
    silenced = [(logger, logger.level) for logger in map(logging.getLogger, _names(loggers))]
    prints = contextlib.redirect_stdout(_OthersOnly(sys.stdout))
    errors = contextlib.redirect_stderr(_OthersOnly(sys.stderr))
    with warnings.catch_warnings(), prints, errors:
        warnings.simplefilter("ignore")
        try:
            for logger, _ in silenced:
                logger.setLevel(logging.CRITICAL)
            yield
        finally:
            for logger, level in silenced:
                logger.setLevel(level)


def _names(more: Sequence[str]) -> tuple[str, ...]:
    return (*_LOGGERS, *more)


def _give_tqdm_its_lock() -> None:
    """Makes the lock that a first progress bar would make, from a context by name.

    `torch.fx` makes a bar to decompose a graph, shown or not. Its lock of the default context would settle the start
    method of processes, which is the application's choice.
    """
    try:
        from tqdm.std import TqdmDefaultWriteLock
    except ImportError:  # then torch makes no bar
        return
    if not hasattr(TqdmDefaultWriteLock, "mp_lock"):
        default = multiprocessing.get_all_start_methods()[0]
        with contextlib.suppress(OSError):  # no semaphores here: tqdm does without, too
            TqdmDefaultWriteLock.mp_lock = multiprocessing.get_context(default).RLock()


class _OthersOnly:
    """A stream that drops what this thread writes: `torch.export` prints the graph of a failed trace."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._thread = threading.get_ident()

    def write(self, text: str) -> int:
        if threading.get_ident() != self._thread:
            return int(self._stream.write(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
