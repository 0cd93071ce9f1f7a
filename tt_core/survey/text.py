"""An inspection as a table of plain text."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tt_core.survey.inspection import Inspection, Seen

WIDTH = 80
_NAME = 38
_KEYS = 3
"""Call keys shown of one module."""
_NONE = re.compile(r"(^|, )[\w\[\]']+: None(?=,|$)")
"""Arguments of a call key that were not given."""


def tree_text(inspection: Inspection) -> str:
    """One line a module, indented by depth, and below it what it was called with; no line over `WIDTH` columns."""
    outside = _share(inspection.outside_s, inspection.seconds)
    lines = [
        f"{'module':<{_NAME}} {'calls':>6} {'total':>6} {'own':>6} {'params':>7}  dtype",
        *(line for seen in inspection.modules for line in _entry(seen, inspection.seconds)),
        f"Samples: {inspection.samples}. One pass: {inspection.seconds * 1e3:.1f} ms, {outside} outside the modules.",
    ]
    if inspection.idle:
        lines.append(f"Never called: {len(inspection.idle)} modules: {', '.join(map(_name, inspection.idle))}")
    if inspection.changed:
        lines.append(f"A pass changes: {', '.join(inspection.changed)}")
    return "\n".join(_fit(line, WIDTH) for line in lines)


def _entry(seen: Seen, seconds: float) -> list[str]:
    indent = "  " * min(seen.depth, 8)
    inner = seen.parent and seen.path.startswith(f"{seen.parent}.")
    name = _middle(f"{indent}{seen.path[len(seen.parent or '') :] if inner else _name(seen.path)} {seen.kind}", _NAME)
    shares = f"{_share(seen.total_s, seconds):>6} {_share(seen.own_s, seconds):>6}"
    dtypes = "+".join(map(_short, seen.dtypes)) + (" calls itself" if seen.recursive else "")
    first = f"{name:<{_NAME}} {seen.calls:>6} {shares} {_count(seen.parameters):>7}  {dtypes}"
    keys = [f"{indent}    ({_NONE.sub('', key).removeprefix(', ')})" for key in seen.keys[:_KEYS]]
    if len(seen.keys) > _KEYS:
        keys.append(f"{indent}    and {len(seen.keys) - _KEYS} more kinds of call")
    return [first, *keys]


def _name(path: str) -> str:
    return path or "(the object)"


def _short(dtype: str) -> str:
    for long, short in (("bfloat", "bf"), ("float", "f"), ("uint", "u"), ("int", "i"), ("complex", "c")):
        dtype = dtype.replace(long, short)
    return dtype


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f}%" if whole > 0 else "-"


def _count(number: int) -> str:
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if number >= size:
            return f"{number / size:.1f}{unit}"
    return str(number)


def _middle(text: str, width: int) -> str:
    """`text` with its middle left out: both ends of a module's path tell something."""
    text = _printable(text)
    if len(text) <= width:
        return text
    head = width // 3
    return f"{text[:head]}...{text[len(text) - (width - head - 3) :]}"


def _fit(line: str, width: int) -> str:
    line = _printable(line).rstrip()
    return line if len(line) <= width else f"{line[: width - 3]}..."


def _printable(text: str) -> str:
    """Names of modules and keys are untrusted: no control characters reach a terminal."""
    return "".join(char if char.isprintable() else "?" for char in text)
