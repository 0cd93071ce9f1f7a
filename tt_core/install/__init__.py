"""The dispatcher on `module.forward`: the only room that changes the user's model."""

from __future__ import annotations

from tt_core.install.dispatcher import Dispatcher, dispatcher
from tt_core.install.entry import Entry
from tt_core.install.installed import Installed, install, undo
from tt_core.install.quiet import quiet_falls
from tt_core.install.records import UnitStats, stale, stats, tuned, untune
from tt_core.install.serving import Serving
from tt_core.install.suspend import Earlier, off, suspended

__all__ = [
    "Dispatcher",
    "Earlier",
    "Entry",
    "Installed",
    "Serving",
    "UnitStats",
    "dispatcher",
    "install",
    "off",
    "quiet_falls",
    "stale",
    "stats",
    "suspended",
    "tuned",
    "undo",
    "untune",
]
