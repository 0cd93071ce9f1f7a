"""Installing entries on a model, and putting everything back."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from tt_core.contain import Caught, attempt
from tt_core.errors import FallbackWarning, UsageError
from tt_core.install.contents import contents
from tt_core.install.dispatcher import Dispatcher, dispatcher
from tt_core.install.entry import Entry
from tt_core.values import Built, Unit, Weights


class Holdings:
    """Builts in service, each closed once, when the last dispatcher that uses it has gone."""

    def __init__(self, dispatchers: Sequence[Dispatcher]) -> None:
        self._users: dict[int, tuple[Built, set[int]]] = {}
        for each in dispatchers:
            for built in _builts(each):
                self._users.setdefault(id(built), (built, set()))[1].add(id(each))

    def release(self, user: Dispatcher) -> list[Caught]:
        """Closes what only `user` still used, outer builts first; what raised is returned."""
        failures: list[Caught] = []
        for built in _builts(user):
            users = self._users[id(built)][1]
            if id(user) in users:
                users.discard(id(user))
                failed = attempt(built.close, where="close a built") if not users else None
                failures += [failed] if isinstance(failed, Caught) else []
        return failures


def _builts(each: Dispatcher) -> list[Built]:
    """Every built of a dispatcher, outer before inner."""
    found: list[Built] = []
    for route in each.routes:
        built: Built | None = route.entry.built
        while built is not None:
            found.append(built)
            built = built.inner
    return found


class Installed:
    """What `install` did, switched with `on` and `off`, ended with `undo`.

    Attributes:
        entries: what was installed.
        dispatchers: one per unit.
    """

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.entries = tuple(entries)
        self.dispatchers = tuple(dispatcher(unit, found) for unit, found in _by_unit(entries))
        holdings = Holdings(self.dispatchers)
        for each in self.dispatchers:
            each.holdings = holdings

    @property
    def units(self) -> tuple[Unit, ...]:
        """The units, in the order of the entries."""
        return tuple(each.unit for each in self.dispatchers)

    def on(self) -> None:
        """Every unit dispatches; a unit whose forward somebody else replaced meanwhile is left alone."""
        for each in self.dispatchers:
            each.on()

    def off(self) -> None:
        """Every unit has the very forward back that it had; one that somebody else replaced meanwhile keeps it."""
        for each in reversed(self.dispatchers):
            each.off()

    def reset(self) -> None:
        """Forgets the falls so far, for when measuring ends and service begins."""
        for each in self.dispatchers:
            each.reset()

    def undo(self) -> tuple[str, ...]:
        """`off` for good, and every built closed, outer first. Twice is as once. No call may be running.

        Returns:
            Paths of units whose `forward` somebody else replaced since: it was left in place.
        """
        kept = [undo(each) for each in reversed(self.dispatchers)]
        return tuple(each.unit.path for each, done in zip(reversed(self.dispatchers), kept, strict=True) if not done)


def install(entries: Sequence[Entry], *, fingerprint: bool = True) -> Installed:
    """Puts a dispatcher on every unit of `entries`; on from the start.

    Args:
        entries: what to install; several entries of one unit are several keys. Units must not lie inside each other.
        fingerprint: hash the weights of builts that hold them by value now, for `stale` (about 1 s per GB).

    Raises:
        UsageError: units that lie inside each other, or one module as two units.
    """
    _check_apart([entry.unit for entry in entries])
    made = Installed(entries)
    for each in made.dispatchers:
        if fingerprint and any(route.entry.built.weights is Weights.VALUES for route in each.routes):
            each.prints = contents(each.unit.module)
    try:
        made.on()
    except BaseException:
        made.off()
        raise
    return made


def undo(each: Dispatcher) -> bool:
    """Ends one dispatcher and closes its builts; whether the original forward stands in its place."""
    done = each.close()
    failures = each.holdings.release(each) if each.holdings is not None else []
    for failure in failures:
        warnings.warn(
            f"closing a built of {each!r} raised {failure.kind}: {failure.reason}", FallbackWarning, stacklevel=3
        )
    return done


def _by_unit(entries: Sequence[Entry]) -> list[tuple[Unit, list[Entry]]]:
    groups: dict[int, tuple[Unit, list[Entry]]] = {}
    for entry in entries:
        groups.setdefault(id(entry.unit.module), (entry.unit, []))[1].append(entry)
    return list(groups.values())


def _check_apart(units: Sequence[Unit]) -> None:
    by_module = {id(unit.module): unit for unit in units}
    for unit in by_module.values():
        for path, inner in unit.module.named_modules():
            other = by_module.get(id(inner))
            if path and other is not None:
                raise UsageError(f"unit {other.path!r} lies inside unit {unit.path!r}: install one of them")
    for unit in units:
        first = by_module[id(unit.module)]
        if first.path != unit.path:
            raise UsageError(f"{first.path!r} and {unit.path!r} are one module: name one as an alias of the other")
