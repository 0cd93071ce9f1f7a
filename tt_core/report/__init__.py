"""Reports: a table for people, JSON for programs, a page for notebooks, progress while tuning runs."""

from __future__ import annotations

from tt_core.report.jsons import Report, from_json, to_json
from tt_core.report.page import html
from tt_core.report.progress import listening, progress_printer
from tt_core.report.table import show, text

__all__ = ["Report", "from_json", "html", "listening", "progress_printer", "show", "text", "to_json"]
