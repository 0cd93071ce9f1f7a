"""Samples: the dataset normalised, calls of units recorded, and what eager makes of them."""

from __future__ import annotations

from tt_core.samples.feed import ONE_SHAPE, Feed, read
from tt_core.samples.observe import observe
from tt_core.samples.record import record
from tt_core.samples.refuse import refuse

__all__ = ["ONE_SHAPE", "Feed", "observe", "read", "record", "refuse"]
