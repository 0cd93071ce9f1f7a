"""Versions of dicts: a number that moves whenever a dict does, so that one number stands for all that the dict holds.

CPython numbers the states of its dicts for exactly this use (PEP 509); torch reads the number, or where Python has given it
up (3.12) watches the dict and counts itself. That function is private to torch: where it is missing, or overlooks a
change in a trial, nothing here is used and the items are compared one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tt_core.guards.dynamo import dynamo

Version = Callable[[dict[Any, Any]], int]
Versions = dict[int, tuple[dict[Any, Any], int]]
"""Dicts with their versions, by the id of the dict, which is held."""

_TRIALS = 64
"""Writes of each kind: enough for the interpreter to replace a general instruction by a specialised one."""


class _Plain:
    x: int
    y: int


def notices(version: Version) -> bool:
    """Whether every way to change an object's dict moves its version."""
    thing = _Plain()
    thing.x = 0
    own = vars(thing)

    def by_attribute(value: int) -> None:
        thing.x = value

    def by_item(value: int) -> None:
        own["x"] = value

    def by_call(value: int) -> None:
        own.update(x=value)

    def by_key(_: int) -> None:
        if "y" in own:
            del thing.y
        else:
            thing.y = 1

    for write in (by_attribute, by_item, by_call, by_key):
        for trial in range(1, _TRIALS + 1):
            before = version(own)
            write(-trial)
            if version(own) == before:
                return False
    return version(own) == version(own)


def _tried(version: Version | None) -> Version | None:
    try:
        return version if version is not None and notices(version) else None
    except (TypeError, RuntimeError, SystemError):
        return None


dict_version: Version | None = _tried(getattr(dynamo, "dict_version", None))
"""The version of a dict; None where there is none to trust."""


def versions_of(dicts: Iterable[dict[Any, Any]]) -> Versions:
    """The version of each; empty where dicts have none."""
    if dict_version is None:
        return {}
    return {id(each): (each, dict_version(each)) for each in dicts}
