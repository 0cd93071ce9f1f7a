"""The ladder: small modules and calls, each of which asks one thing of a backend.

A compiler takes seconds for each rung, so `QUICK` holds as few as show every promise once.

for rung in QUICK:
    module, calls = rung.make(frozenset()), rung.calls()
"""

from __future__ import annotations

from tt_core.testing.ladder.modules import Rows
from tt_core.testing.ladder.rungs import ALL, AXES, BEHAVES, DOUBLE, HALF, LONG, NESTED, QUICK, ROWS, TOKENS, Rung

__all__ = [
    "ALL",
    "AXES",
    "BEHAVES",
    "DOUBLE",
    "HALF",
    "LONG",
    "NESTED",
    "QUICK",
    "ROWS",
    "TOKENS",
    "Rows",
    "Rung",
]
