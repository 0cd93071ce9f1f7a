"""Asking tuned objects: counts, staleness, and the way back. The dispatchers found on an object are the only record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tt_core import state
from tt_core.install.contents import contents
from tt_core.install.dispatcher import Dispatcher
from tt_core.install.installed import undo
from tt_core.state import Found
from tt_core.values import valued


@valued
class UnitStats:
    """How the calls of one tuned unit were answered.

    Attributes:
        hits: calls that a built answered while hits were counted; None where they are not.
        falls: calls that ran the original forward, by kind; kinds that never occurred are left out.
        candidates: what is installed, one per call key.
        retired: how many of them are out of service, because they raised.
    """

    hits: int | None
    falls: Mapping[str, int]
    candidates: tuple[str, ...] = ()
    retired: int = 0

    @property
    def fell(self) -> int:
        """All falls together."""
        return sum(self.falls.values())


def stats(obj: Any, hits: bool | None = None) -> Mapping[str, UnitStats]:
    """Counts of every tuned unit in `obj`, by path in `obj`.

    Args:
        obj: the tuned object, or a part of it.
        hits: True starts to count hits, from 0; False stops; None changes nothing. Counting costs about 0.1 us a call.
    """
    found = [(each.path, dispatcher) for each, dispatcher in tuned(obj)]
    for _, dispatcher in found:
        if hits is not None:
            dispatcher.count(hits)
    return {path: _stats(dispatcher) for path, dispatcher in found}


def stale(obj: Any) -> tuple[str, ...]:
    """Paths of tuned units whose weights or settings are not those that their builts were made from.

    Looks at everything a guard looks at, and, for builts that hold weights by value, at the values themselves: also
    those that were written through `.data`, numpy or raw memory, which no guard notices. Reads every weight once.
    """
    return tuple(each.path for each, dispatcher in tuned(obj) if _is_stale(dispatcher))


def untune(obj: Any) -> tuple[str, ...]:
    """Puts the original forward back on every tuned unit in `obj` and closes the builts. No call may be running.

    On a `copy.copy` of a tuned module only the copy is freed.

    Returns:
        The paths of the units that were tuned.
    """
    paths = []
    for each in state.find(obj):
        held = vars(each.module).get("forward")
        if isinstance(held, Dispatcher):
            paths.append(each.path)
            if held.unit.module is each.module:
                undo(held)
            else:
                held.leave(each.module)
    return tuple(paths)


def tuned(obj: Any) -> Iterator[tuple[Found, Dispatcher]]:
    """Every tuned unit of `obj` with its name in `obj`, and its dispatcher."""
    for each in state.find(obj):
        held = vars(each.module).get("forward")
        if isinstance(held, Dispatcher) and held.unit.module is each.module:
            yield each, held


def _stats(dispatcher: Dispatcher) -> UnitStats:
    counted = [route.hits.value for route in dispatcher.routes if route.hits is not None]
    falls = {kind.value: count.value for kind, count in dispatcher.falls.items()}
    return UnitStats(
        hits=sum(counted) if counted else None,
        falls={kind: n for kind, n in falls.items() if n},
        candidates=tuple(str(route.entry.candidate) for route in dispatcher.routes),
        retired=sum(route.retired for route in dispatcher.routes),
    )


def _is_stale(dispatcher: Dispatcher) -> bool:
    watches = [route.watch for route in dispatcher.routes if route.watch is not None]
    if any(watch.difference() is not None for watch in watches):
        return True
    return dispatcher.prints is not None and contents(dispatcher.unit.module) != dispatcher.prints
