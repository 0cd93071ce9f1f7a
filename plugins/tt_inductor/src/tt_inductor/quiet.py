"""Compile output is kept off the terminal: torch's loggers speak to the log of tt_core while a build runs."""

from __future__ import annotations

import contextlib
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
    loggers = [log for log in _torch_loggers() if log.handlers]
    saved = [(log, log.handlers[:]) for log in loggers]
    output = io.StringIO()
    redirect = contextlib.redirect_stderr(output) if tuners else contextlib.nullcontext()
    forward = _Forward()
    try:
        for log in loggers:
            log.handlers[:] = [forward]
        with warnings.catch_warnings(), redirect:
            warnings.simplefilter("ignore")
            yield
    finally:
        for log, handlers in saved:
            log.handlers[:] = handlers
        if output.getvalue():
            _log.debug("%s", output.getvalue())


def _torch_loggers() -> list[logging.Logger]:
    """Torch's loggers; the one at the top may get its handler later, when `torch._dynamo` is imported."""
    known = logging.Logger.manager.loggerDict
    return [log for name, log in known.items() if name.split(".")[0] == "torch" and isinstance(log, logging.Logger)]
