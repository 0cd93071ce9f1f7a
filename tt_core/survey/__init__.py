"""The survey: which modules of an object run on a dataset, how often, how long, and with what calls."""

from __future__ import annotations

from tt_core.survey.cut import ancestors, cut_at
from tt_core.survey.inspection import Inspection, Seen
from tt_core.survey.watch import inspect

__all__ = ["Inspection", "Seen", "ancestors", "cut_at", "inspect"]
