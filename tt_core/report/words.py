"""Numbers, names and foreign texts as short words for people. Pure; ASCII, since a table may be piped anywhere."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable

_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-_])")
_HOME = re.compile(
    r"(?:~|/home/[^/\s'\"]+|/Users/[^/\s'\"]+|/root|[A-Za-z]:[\\/]Users[\\/][^\\/\s'\"]+)(?=[\\/\s'\":,;)\]]|$)"
)
_FOLDERS = re.compile(
    r"(?<![\w/.:~-])(?:~[\\/](?:{part}[\\/])*|(?:[A-Za-z]:)?(?:\.\.?)?[\\/](?:{part}[\\/])+)".replace(
        "{part}", r"[^\s\\/'\"<>|:;,()\[\]]+"
    )
)
_FILE_URL = re.compile(r"file://(?=/)")


def clean(text: object) -> str:
    """An untrusted text as one line: terminal sequences, control and invisible characters are taken out."""
    plain = " ".join(_ESCAPE.sub("", str(text)).split())
    return "".join(char for char in plain if not unicodedata.category(char).startswith("C"))


def scrub(text: str, names: Iterable[str] = ()) -> str:
    """`text` without folders, and without `names`: files keep their own name (`.../model.py`).

    Args:
        text: a message or a traceback.
        names: words that must not appear, such as a host's or a user's name.
    """
    text = _HOME.sub("~", _FILE_URL.sub("", text))
    text = _FOLDERS.sub(".../", text)
    for name in names:
        text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", "...", text)
    return text


def shorten(text: str, width: int) -> str:
    """`text` in at most `width` terminal cells: the middle gives way, since both ends tell modules apart."""
    from rich.cells import cell_len

    if cell_len(text) <= width:
        return text
    left, right = (width - 3 + 1) // 2, (width - 3) // 2
    head, tail = text, text
    while cell_len(head) > left:
        head = head[:-1]
    while cell_len(tail) > right:
        tail = tail[1:]
    return f"{head}...{tail}"


def clip(text: str, length: int) -> str:
    """The first `length` characters of a sentence."""
    return text if len(text) <= length else text[: length - 3].rstrip() + "..."


def milliseconds(seconds: float) -> str:
    """Seconds as milliseconds with three digits: `12.4 ms`."""
    value = seconds * 1e3
    return f"{value:.{_decimals(value)}f} ms"


def duration(seconds: float) -> str:
    """Seconds as people say them: `0.8 s`, `12 s`, `2 min 5 s`."""
    if seconds < 10 or not math.isfinite(seconds):  # noqa: PLR2004  below, tenths matter
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:  # noqa: PLR2004
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"  # noqa: PLR2004


def ratio(value: float) -> str:
    """A speed-up: `1.38x`."""
    return f"{value:.{_decimals(value, most=2)}f}x"


def span(values: Iterable[float]) -> str:
    """Speed-ups as a range: `1.38-1.42x`, or one where both ends read the same."""
    ordered = sorted(values)
    low, high = ratio(ordered[0]), ratio(ordered[-1])
    return high if low == high else f"{low[:-1]}-{high}"


def inverse(value: float) -> float:
    """1 / value; infinite at 0, which a clock that stood still may have measured."""
    return 1.0 / value if value else math.inf


def about(value: float) -> str:
    """A count to two digits: `9,000`."""
    digits = len(str(round(value)))
    return f"{round(value, 2 - digits) if digits > 2 else round(value):,.0f}"  # noqa: PLR2004


def percent(share: float) -> str:
    """A share as a whole percentage: `4 %`."""
    return f"{100 * share:.0f} %"


def size(count: float) -> str:
    """Bytes as `12.3 MiB`."""
    power = min(4, int(math.log(max(count, 1), 1024)))
    return f"{count / 1024**power:.{min(power, 1)}f} {('bytes', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"


def many(count: int, one: str, several: str = "") -> str:
    """A number with its noun: `1 module`, `1,204 modules`."""
    return f"{count:,} {one if count == 1 else several or one + 's'}"


def _decimals(value: float, most: int = 3) -> int:
    """Decimals that leave about three digits."""
    return min(most, 3 if value < 1 else 2 if value < 10 else 1 if value < 100 else 0)  # noqa: PLR2004
