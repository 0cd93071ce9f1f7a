"""The kit for plugin authors: the contract of a backend as tests, fakes, the wrong-backend matrix, and comparisons."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tt_core.testing.contract import BackendContract as BackendContract
    from tt_core.testing.fake_clock import FakeClock as FakeClock
    from tt_core.testing.fakes import Bench as Bench
    from tt_core.testing.fakes import FakeBackend as FakeBackend
    from tt_core.testing.results import assert_same_results as assert_same_results
    from tt_core.testing.wrong import WRONG as WRONG

_HOMES = {
    "BackendContract": "contract",
    "FakeClock": "fake_clock",
    "Bench": "fakes",
    "FakeBackend": "fakes",
    "assert_same_results": "results",
    "WRONG": "wrong",
}
__all__ = list(_HOMES)
_REWRITTEN = (f"{__name__}.contract", f"{__name__}.results")


def _rewrite() -> None:
    """Where pytest runs, failing promises show the values that they compared: it has to know before their import.

    An entry point would tell it too, but import the core, and torch, in every run of pytest.
    """
    if "pytest" in sys.modules:
        sys.modules["pytest"].register_assert_rewrite(*(name for name in _REWRITTEN if name not in sys.modules))


def __getattr__(name: str) -> Any:
    """Imports on first use: only the contract needs pytest."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    _rewrite()
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


_rewrite()
