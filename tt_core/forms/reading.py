"""Strict reading of JSON values: what does not fit is a `StoreError` with a sentence, never another exception."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from tt_core.errors import StoreError

Json = Any
"""None, bool, int, finite float, str, lists of them, and dicts of them with text keys."""

DEEPEST = 64
"""Levels of nested containers."""
MOST = 100_000
"""Entries of one list."""
LONGEST = 1024
"""Characters of a path, a sentence, or a class name."""
LARGEST = 2**63 - 1
_SHOWN = 60


def shown(value: Any) -> str:
    """What was found instead, short enough for a sentence."""
    text = f"{value!r}" if isinstance(value, bool | str | float | type(None)) else f"a {type(value).__name__}"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def as_fields(form: Json, where: str, needed: Iterable[str], others: Iterable[str] = ()) -> dict[str, Json]:
    """A dict with all of `needed`, and nothing beyond `others`."""
    needed, others = tuple(needed), tuple(others)
    if not isinstance(form, dict):
        raise StoreError(f"{where} is {shown(form)}, not a table of fields")
    for name in needed:
        if name not in form:
            raise StoreError(f"{where} has no field {name!r}")
    for name in form:
        if name not in needed and name not in others:
            raise StoreError(f"{where} has an unknown field {shown(name)}")
    return form


def as_list(form: Json, where: str, most: int = MOST) -> list[Json]:
    """A list of at most `most` entries."""
    if not isinstance(form, list):
        raise StoreError(f"{where} is {shown(form)}, not a list")
    if len(form) > most:
        raise StoreError(f"{where} has {len(form)} entries; at most {most} are read")
    return form


def as_pair(form: Json, where: str) -> tuple[Json, Json]:
    """A list of two."""
    if not isinstance(form, list) or len(form) != 2:  # noqa: PLR2004
        raise StoreError(f"{where} is not a list of two")
    return form[0], form[1]


def as_text(form: Json, where: str, longest: int = LONGEST) -> str:
    """A text of at most `longest` characters that UTF-8 can hold."""
    if type(form) is not str:
        raise StoreError(f"{where} is {shown(form)}, not a text")
    if len(form) > longest:
        raise StoreError(f"{where} has {len(form)} characters; at most {longest} are read")
    if any("\ud800" <= letter <= "\udfff" for letter in form):
        raise StoreError(f"{where} holds half a character")
    return form


def as_int(form: Json, where: str, lo: int = 0, hi: int = LARGEST) -> int:
    """A whole number from `lo` to `hi`."""
    if type(form) is not int:
        raise StoreError(f"{where} is {shown(form)}, not a whole number")
    if not lo <= form <= hi:
        raise StoreError(f"{where} is out of range: {lo} to {hi}")
    return form


def as_bool(form: Json, where: str) -> bool:
    """True or false."""
    if type(form) is not bool:
        raise StoreError(f"{where} is {shown(form)}, not true or false")
    return form


def class_form(kind: type) -> str:
    """A class as `module:qualname`.

    Raises:
        StoreError: it cannot be found by that name.
    """
    name = f"{kind.__module__}:{kind.__qualname__}"
    if len(name) > LONGEST or _found(name) is not kind:
        raise StoreError(
            f"class {kind.__qualname__!r} cannot be found by the name {shown(name)}: define it in a module"
        )
    return name


def read_class(form: Json, where: str) -> type:
    """The class of a name, looked for among the modules that are imported already; nothing is imported.

    Raises:
        StoreError: no such class, or its module is not imported yet.
    """
    name = as_text(form, where)
    module, colon, _ = name.partition(":")
    if not colon:
        raise StoreError(f"{where} is {shown(name)}, not module:class")
    if module not in sys.modules:
        raise StoreError(f"{where} is {shown(name)}: import {shown(module)} first; nothing is imported for a file")
    found = _found(name)
    if not isinstance(found, type):
        raise StoreError(f"{where} is {shown(name)}, and there is no such class")
    return found


def _found(name: str) -> Any:
    """What a name stands for; looks into namespaces only, since `getattr` on a module may import."""
    module, _, qualname = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in qualname.split("."):
        try:
            found = vars(found).get(part)
        except TypeError:  # it has no namespace
            return None
    return found
