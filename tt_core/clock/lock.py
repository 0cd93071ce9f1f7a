"""One tuning at a time in a process: two would race each other instead of their candidates."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from tt_core.errors import BusyError

tuning_lock = threading.RLock()
"""Held while a tuning runs; re-entrant, so that a tuning may start another one inside itself."""
_guard = threading.Lock()
_busy: dict[int, tuple[int, int]] = {}
"""id of an object being tuned -> (thread, how often that thread entered with it)."""


@contextlib.contextmanager
def tuning(*objects: object) -> Iterator[None]:
    """Waits for any other tuning in the process, then holds the lock.

    Args:
        objects: what is tuned: the user's object and the modules found in it.

    Raises:
        BusyError: another thread is tuning (or waits to tune) one of `objects`; raised at once, without waiting.
    """
    keys = {id(each) for each in objects}
    _claim(keys)
    try:
        with tuning_lock:
            yield
    finally:
        _release(keys)


def _claim(keys: set[int]) -> None:
    me = threading.get_ident()
    with _guard:
        if any(key in _busy and _busy[key][0] != me for key in keys):
            raise BusyError("another thread is tuning this object: wait for it to end, or tune a copy")
        for key in keys:
            _busy[key] = (me, _busy.get(key, (me, 0))[1] + 1)


def _release(keys: set[int]) -> None:
    with _guard:
        for key in keys:
            owner, entered = _busy.pop(key)
            if entered > 1:
                _busy[key] = (owner, entered - 1)
