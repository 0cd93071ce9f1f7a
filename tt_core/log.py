"""Structured events of tt_core: silent until the application asks for them.

Alone, events go to the stdlib logger `tt_core`, which has a `NullHandler`. An application that configured structlog gets
them through its own configuration. `TT_LOG=debug` prints them to stderr for one look. structlog is imported on first use.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
from typing import Any

_NAME = "tt_core"


def event(name: str, /, *, level: str = "info", **fields: Any) -> None:
    """Logs one event with its fields, if anybody listens.

    Args:
        name: the event: `trial_done`.
        level: "debug", "info" or "warning".
        fields: plain values.
    """
    if _heard(level):
        getattr(_logger(), level)(name, **fields)


def _heard(level: str) -> bool:
    """Whether anybody listens: structlog costs 200 ms to import, so it is loaded only then."""
    structlog = sys.modules.get("structlog")
    configured = structlog is not None and structlog.is_configured()
    wanted = getattr(logging, level.upper())
    return configured or "TT_LOG" in os.environ or logging.getLogger(_NAME).isEnabledFor(wanted)


def _logger() -> Any:
    import structlog

    return structlog.get_logger(_NAME) if structlog.is_configured() else _own_logger()


@functools.cache
def _own_logger() -> Any:
    import structlog

    stdlib = logging.getLogger(_NAME)
    if os.environ.get("TT_LOG"):
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(message)s"))
        stdlib.addHandler(handler)
        stdlib.setLevel(os.environ["TT_LOG"].upper())
        stdlib.propagate = False
    return structlog.wrap_logger(stdlib, processors=[structlog.processors.KeyValueRenderer(key_order=["event"])])


logging.getLogger(_NAME).addHandler(logging.NullHandler())
