"""The state of the user's object: found, copied and put back by value; `forward` watched for the length of a block."""

from __future__ import annotations

from tt_core.state.bits import identical
from tt_core.state.find import Found, find
from tt_core.state.patch import patched
from tt_core.state.rng import rng_kept, seed, states
from tt_core.state.snapshot import Snapshot, kept, take

__all__ = ["Found", "Snapshot", "find", "identical", "kept", "patched", "rng_kept", "seed", "states", "take"]
