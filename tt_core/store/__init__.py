"""Tuned objects in files, and remembered plans: the only room of the core that writes files."""

from __future__ import annotations

from tt_core.store.load import Loading, load
from tt_core.store.reports import Line, LoadReport, SaveReport
from tt_core.store.save import save

__all__ = ["Line", "LoadReport", "Loading", "SaveReport", "load", "save"]
