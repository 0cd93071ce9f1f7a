"""The dispatcher: what stands in `module.__dict__["forward"]` of a tuned unit.

It asks a guard whether a built may serve the call; every other call runs the original forward, with the caller's own
spelling of the arguments, is counted by kind, and warned about once per kind.

`deepcopy`, `pickle` and `torch.save` of the module give a plain module with the original forward. `copy.copy` shares
everything with the module it copies, parameters and dispatcher alike: calling the copy calls the tuned original, until
`tt.untune(copy)`, which leaves the original tuned.
"""

from __future__ import annotations

import inspect
import operator
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from tt_core.errors import DeclinedError, FallbackWarning
from tt_core.guards import UNREADABLE, Fall, Why, compile_pick
from tt_core.install.counts import Count
from tt_core.install.entry import ERRORS_KEPT, Entry, MovedError, Route
from tt_core.values import Unit

if TYPE_CHECKING:
    from tt_core.install.installed import Holdings

_is_dynamo_compiling: Callable[[], bool] = torch.compiler.is_dynamo_compiling
_ABSENT: Any = object()
_LOOKS = ("__name__", "__qualname__", "__doc__", "__annotations__", "__func__", "__self__")
"""Attributes of a bound method that code looks at."""


class Dispatcher:
    """Serves the calls of one unit. Make it with `dispatcher(unit, entries)`.

    Attributes:
        unit: the unit.
        original: its original forward; also `__wrapped__`.
        routes: one per entry.
        falls: counts by kind, of every kind.
    """

    def __init__(self, unit: Unit, entries: Sequence[Entry]) -> None:
        self.unit = unit
        self.original = unit.forward
        self.routes = tuple(Route(entry) for entry in entries)
        self.prints: Mapping[str, bytes] | None = None
        self.holdings: Holdings | None = None
        self._previous = vars(unit.module).get("forward", _ABSENT)
        self._closed = False
        self.reset()
        self.__wrapped__ = unit.forward
        self.__signature__ = inspect.signature(unit.forward)
        for name in _LOOKS:
            if hasattr(unit.forward, name):
                setattr(self, name, getattr(unit.forward, name))

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Serves or falls; the subclasses say how a route is found."""
        raise NotImplementedError

    def __reduce__(self) -> tuple[Any, ...]:
        """As the plain module would have it: its class's forward, or the instance's that was there before."""
        if self._previous is _ABSENT:
            return getattr, (self.unit.module, "forward")
        return operator.getitem, ((self._previous,), 0)

    def __repr__(self) -> str:
        names = ", ".join(str(route.entry.candidate) for route in self.routes)
        return f"<tt_core dispatcher of {_title(self.unit)}: {names}>"

    @property
    def active(self) -> bool:
        """Whether it is the module's forward now."""
        return vars(self.unit.module).get("forward") is self

    def on(self) -> bool:
        """Becomes the module's forward; False where somebody else's has taken that place since."""
        own = vars(self.unit.module)
        if own.get("forward", _ABSENT) is self._previous and not self._closed:
            own["forward"] = self
        return self.active

    def off(self) -> bool:
        """Puts the very forward back that was there before; False where somebody else's stands there now: it stays."""
        own = vars(self.unit.module)
        if not self.active:
            return own.get("forward", _ABSENT) is self._previous
        self.leave(self.unit.module)
        return True

    def close(self) -> bool:
        """`off` for good: whoever still holds this object calls the original through it, without a count or a word."""
        self._closed = True
        for route in self.routes:
            route.retire()
        return self.off()

    def leave(self, module: nn.Module) -> None:
        """Frees a shallow copy of the unit's module, which shares this object with it."""
        if self._previous is _ABSENT:
            del vars(module)["forward"]
        else:
            vars(module)["forward"] = self._previous

    def count(self, on: bool) -> None:
        """Starts to count hits from 0, or stops."""
        for route in self.routes:
            route.count(on)

    def reset(self) -> None:
        """Forgets the falls so far: each kind counts from 0 and warns once more."""
        self.falls: Mapping[Fall, Count] = {kind: Count() for kind in Fall}
        self._warned: dict[Fall, object] = {}

    def answer(self, route: Route, given: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The built's answer to a call that its guard let in; the original's where the built breaks, or its weights moved.

        `given` is what the guard said.
        """
        try:
            result = route.serve(given) if route.packs else route.serve(*args, **kwargs)
            if route.again:
                route.guard(*args, **kwargs)
        except Exception as error:  # noqa: BLE001  a built that raises in service costs only itself
            caught = error
        else:
            if (hits := route.hits) is not None:
                hits.add()
            return result
        return self.failed(route, caught, args, kwargs)

    def fall(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The original's answer, the fall counted and warned about once per kind."""
        if not self._closed:
            self._note(self.why(args, kwargs))
        return self.original(*args, **kwargs)

    def why(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Why:
        """Why no route may serve a call: the reason of the one that came closest."""
        live = [route for route in self.routes if not route.retired]
        if not live:
            return Why(kind=Fall.RETIRED, seen=f"its backend raised {ERRORS_KEPT} times and is out of service")
        try:
            return min((route.explain(args, kwargs) for route in live), key=_distance)[0]
        except UNREADABLE as error:
            return Why(kind=Fall.OTHER, seen=f"the guard could not read the call ({type(error).__name__})")

    def failed(self, route: Route, error: Exception, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """After a built did not answer: its weights moved, it handed the call back, or it broke."""
        if isinstance(error, MovedError):
            return self.fall(args, kwargs)
        if not isinstance(error, DeclinedError):
            return self._broke(route, error, args, kwargs)
        self._note(Why(kind=Fall.DECLINED, seen=f"{route.entry.candidate} handed the call back: {_line(error)}"))
        return self.original(*args, **kwargs)

    def _broke(self, route: Route, error: Exception, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """After a built raised: the original's answer, or its exception; a unit that writes is not run twice."""
        facts = route.entry.facts
        writes = facts.writes_inputs or bool(facts.writes_state)
        result = None if writes else self.original(*args, **kwargs)
        route.errors.add()
        if route.errors.value >= ERRORS_KEPT:
            route.retire()
        seen = f"{route.entry.candidate} raised {type(error).__name__}: {_line(error)}"
        self._note(Why(kind=Fall.ERROR, seen=seen))
        if writes:
            raise error
        return result

    def _note(self, why: Why) -> None:
        self.falls[why.kind].add()
        token = object()
        if self._warned.setdefault(why.kind, token) is token:
            message = f"{_title(self.unit)} ran its original forward: {why}"
            warnings.warn(message, FallbackWarning, stacklevel=_callers_level())


class OneKey(Dispatcher):
    """A unit with one entry: its guard is asked right away."""

    def __init__(self, unit: Unit, entries: Sequence[Entry]) -> None:
        super().__init__(unit, entries)
        (self.route,) = self.routes

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Serves or falls."""
        if _is_dynamo_compiling():  # constant under dynamo, which then sees nothing but the original
            return self.original(*args, **kwargs)
        route = self.route
        try:
            given = route.guard(*args, **kwargs)
        except UNREADABLE:
            given = False
        if not given:
            return self.fall(args, kwargs)
        return self.answer(route, given, args, kwargs)


class ManyKeys(Dispatcher):
    """A unit with several entries: one look-up finds the few whose guards are asked."""

    def __init__(self, unit: Unit, entries: Sequence[Entry]) -> None:
        super().__init__(unit, entries)
        pick = compile_pick(unit, [entry.key for entry in entries])
        self._pick = pick.of
        self._table = {value: tuple(self.routes[index] for index in found) for value, found in pick.table.items()}

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Serves or falls."""
        if _is_dynamo_compiling():  # constant under dynamo, which then sees nothing but the original
            return self.original(*args, **kwargs)
        try:
            found = self._table.get(self._pick(*args, **kwargs), ())
        except UNREADABLE:
            found = ()
        for route in found:
            try:
                given = route.guard(*args, **kwargs)
            except UNREADABLE:
                continue
            if given:
                break
        else:
            return self.fall(args, kwargs)
        return self.answer(route, given, args, kwargs)


def dispatcher(unit: Unit, entries: Sequence[Entry]) -> Dispatcher:
    """The dispatcher of a unit, called like its forward; it is not installed anywhere.

    Args:
        unit: the unit, its module with the forward that `off` must put back.
        entries: at least one; several are tried for the keys they were built for.
    """
    return OneKey(unit, entries) if len(entries) == 1 else ManyKeys(unit, entries)


def _distance(reasons: Sequence[Why]) -> tuple[bool, int]:
    """How far a call is from an entry: another structure is further than any number of other leaves."""
    return reasons[0].kind is Fall.STRUCTURE, len(reasons)


def _line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0][:200]


def _title(unit: Unit) -> str:
    return f"unit {unit.path!r}" if unit.path else f"the tuned {type(unit.module).__name__}"


def _callers_level() -> int:
    """The stack level of the code that called the module: past this package and torch's own calling of modules."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(
        ("tt_core.install", "torch.nn.modules.module")
    ):
        level, frame = level + 1, frame.f_back
    return level
