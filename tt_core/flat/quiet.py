"""Keeps what exporters print from the user's screen: the reason goes into the report instead."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any

_LOGGERS = (
    "torch.fx.experimental.symbolic_shapes",
    "torch.export",
    "torch._export",
    "torch._dynamo",
    "torch._subclasses",
)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """No warnings, log lines or prints of this thread; other threads' stderr goes where it went."""
    loggers = [(logger, logger.level) for logger in map(logging.getLogger, _LOGGERS)]
    with warnings.catch_warnings(), contextlib.redirect_stderr(_OthersOnly(sys.stderr)):
        warnings.simplefilter("ignore")
        try:
            for logger, _ in loggers:
                logger.setLevel(logging.CRITICAL)
            yield
        finally:
            for logger, level in loggers:
                logger.setLevel(level)


class _OthersOnly:
    """A stderr that drops what this thread writes: `torch.export` prints the graph of a failed trace there."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._thread = threading.get_ident()

    def write(self, text: str) -> int:
        if threading.get_ident() != self._thread:
            return int(self._stream.write(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
