"""Compile output is kept off the terminal: torch's loggers speak to the log of tt_core while a build runs."""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import warnings
from collections.abc import Iterator

_log = logging.getLogger("tt_core.inductor")


class _Forward(logging.Handler):
    """Passes what torch says on, at the lowest level: nobody asked for a compiler's diary."""

    def emit(self, record: logging.LogRecord) -> None:
        _log.debug("%s: %s", record.name, record.getMessage())


@contextlib.contextmanager
def quiet(*, tuners: bool = False) -> Iterator[None]:
    """Catches warnings and what torch logs until the block ends.

    Args:
        tuners: also catch what kernel tuners write straight to stderr. Everybody else's output is caught with it.
    """
    output = io.StringIO()
    redirect = contextlib.redirect_stderr(output) if tuners else contextlib.nullcontext()
    saved: list[tuple[logging.Logger, list[logging.Handler]]] = []
    try:
        with warnings.catch_warnings(), redirect:
            warnings.simplefilter("ignore")
            importlib.import_module("torch._dynamo")  # it sets up its loggers, and adds a warnings filter
            for log in _torch_loggers():
                saved.append((log, log.handlers[:]))
                log.handlers[:] = [_Forward()]
            yield
    finally:
        for log, handlers in saved:
            log.handlers[:] = handlers
        if output.getvalue():
            _log.debug("%s", output.getvalue())


def _torch_loggers() -> list[logging.Logger]:
    """Torch's loggers that have handlers of their own."""
    named = logging.Logger.manager.loggerDict
    ours = [log for name, log in named.items() if name.split(".")[0] == "torch" and isinstance(log, logging.Logger)]
    return [log for log in ours if log.handlers]
