"""The cores that a session's threads are bound to.

ONNX Runtime binds the threads of its pool only where it is not told how many there are. Unbound ones were seen to wake up on
the core that the caller runs on, and to stay there: an LSTM of 2 ms took 1.6 to 2 times as long.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

_TOPOLOGY = Path("/sys/devices/system/cpu")


def affinities(threads: int, topology: Path = _TOPOLOGY) -> str:
    """The value of `session.intra_op_thread_affinities`; empty: threads are not bound.

    They are bound where the pool has every core that this process may use. A pool of fewer is left to the system: several
    processes, each with some of the cores, would otherwise all be bound to the same ones.

    Args:
        threads: of the pool, the caller's own among them.
        topology: where Linux describes its processors.
    """
    cores = _cores(topology)
    if threads < 2 or threads != len(cores):  # noqa: PLR2004  the caller's alone is no pool
        return ""
    return ";".join(",".join(str(processor + 1) for processor in core) for core in cores[1:])


def _cores(topology: Path) -> list[tuple[int, ...]]:
    """The processors that this process may use, by core; none where the system does not say."""
    if not hasattr(os, "sched_getaffinity"):
        return []
    allowed = sorted(os.sched_getaffinity(0))
    try:
        told = [(topology / f"cpu{n}" / "topology" / "thread_siblings_list").read_text("ascii") for n in allowed]
    except (OSError, ValueError):
        return []
    cores: dict[str, list[int]] = {}
    for processor, siblings in zip(allowed, told, strict=True):
        cores.setdefault(re.sub(r"\s", "", siblings), []).append(processor)
    return [tuple(core) for core in cores.values()]
