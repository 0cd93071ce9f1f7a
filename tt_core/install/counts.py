"""Counters that threads share without a lock on the way."""

from __future__ import annotations

import itertools
import threading


class Count:
    """Counts from any number of threads: `next` on an `itertools.count` is one step of the interpreter."""

    __slots__ = ("_lock", "_reads", "_ticks")

    def __init__(self) -> None:
        self._ticks = itertools.count()
        self._reads = 0
        self._lock = threading.Lock()

    def add(self) -> None:
        """One more."""
        next(self._ticks)

    @property
    def value(self) -> int:
        """How many were added; a read takes a tick of its own, which is taken off again."""
        with self._lock:
            ticks = next(self._ticks) - self._reads
            self._reads += 1
        return ticks
