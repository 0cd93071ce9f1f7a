"""Samples: the dataset normalised, calls of units recorded, and what eager makes of them."""

from __future__ import annotations

from tt_core.samples.feed import Feed, read
from tt_core.samples.observe import observe
from tt_core.samples.record import record
from tt_core.samples.refuse import refuse

__all__ = ["Feed", "observe", "read", "record", "refuse"]
