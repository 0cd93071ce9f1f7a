"""Guards: may this built serve this call? Compiled from a key and what a built claims; pure."""

from __future__ import annotations

from tt_core.guards.claim import Claim
from tt_core.guards.compiler import UNREADABLE, Guard, compile_guard
from tt_core.guards.kinds import FIXES, Fall, Why
from tt_core.guards.pick import Pick, compile_pick
from tt_core.guards.weights import Watch

__all__ = ["FIXES", "UNREADABLE", "Claim", "Fall", "Guard", "Pick", "Watch", "Why", "compile_guard", "compile_pick"]
