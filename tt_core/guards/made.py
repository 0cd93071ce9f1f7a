"""Functions made from source text, readable in tracebacks and debuggers."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from typing import Any

_KEPT = 256
"""Source texts kept for tracebacks; beyond, the oldest goes. The text stays on the function itself."""
_files: list[str] = []


def made(name: str, source: str, held: dict[str, Any]) -> Callable[..., Any]:
    """The function `name` of a source text; the text is kept for tracebacks and as `__source__`.

    Args:
        name: what the text defines.
        source: Python, written by this package from names, literals and sizes.
        held: the globals of the function: every object that the text names.
    """
    file = f"<tt_core {name} {abs(hash(source)):x}>"
    exec(compile(source, file, "exec"), held)  # noqa: S102  our own text, no foreign word in it
    _remember(file, source)
    function: Callable[..., Any] = held[name]
    function.__source__ = source  # type: ignore[attr-defined]
    return function


def _remember(file: str, source: str) -> None:
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    _files.append(file)
    if len(_files) > _KEPT:
        linecache.cache.pop(_files.pop(0), None)
