"""The table for people: plain text of 80 columns, or colours on a terminal. rich is imported on first use."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, TextIO

from tt_core.report.console import console
from tt_core.report.jsons import Report, to_json
from tt_core.report.outline import DepthRow, Outline, outline
from tt_core.report.units import Group, UnitRow
from tt_core.report.words import shorten
from tt_core.result import AutoTuneResult
from tt_core.state import rng_kept

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

WIDTH = 80
_INDENT = 6
_BACKEND = 26
"""At most so many columns for a candidate's name; the JSON has all of it."""
_FIGURES = (11, 9)
"""Columns for the speed-up and the latency of a unit."""
_GAP = 2
_FRAME = "    \n    \n -- \n    \n    \n    \n    \n    \n"
"""rich's SIMPLE_HEAD box in ASCII: a table may be printed in any encoding."""


def text(result: AutoTuneResult | Report) -> str:
    """The report as plain text: no colours, no control characters, at most 80 columns."""
    file = io.StringIO()
    plain = console(file, width=WIDTH, color_system=None, force_terminal=False, legacy_windows=False)
    _print(outline(to_json(result)), plain, fancy=False)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()).strip("\n")


def show(result: AutoTuneResult | Report, file: TextIO | None = None) -> None:
    """Prints the report: in colours on a terminal, as plain text elsewhere.

    Args:
        result: what tuning returned, or a report that was read back.
        file: where to; None: stdout.
    """
    file = sys.stdout if file is None else file
    made = console(file)
    if made.is_terminal:
        made.width = min(made.width, 120)
        _print(outline(to_json(result)), made, fancy=True)
    else:
        print(text(result), file=file)


def _print(report: Outline, on: Console, *, fancy: bool) -> None:
    with rng_kept():  # rich draws from Python's generator
        for part in _parts(report, on.width, fancy=fancy):
            on.print(part)


def _parts(report: Outline, width: int, *, fancy: bool) -> Iterator[RenderableType]:
    yield _styled(report.headline, "bold")
    if report.depths:
        yield ""
        yield _dry_table(report, fancy=fancy) if report.dry_run else _depth_table(report, fancy=fancy)
        yield from _legend(report)
    yield from _groups(report.groups, width, fancy=fancy)
    if report.refused:
        yield from _title("Did not take part")
        yield from _refused(report)
    if report.notes:
        yield from _title("Notes")
        yield from (_hanging(note, 2, "", bullet="- ") for note in report.notes)
    if report.footer:
        yield ""
        yield _styled(report.footer, "dim")


def _title(words: str) -> Iterator[RenderableType]:
    yield ""
    yield _styled(words, "bold cyan")


def _styled(words: str, style: str = "") -> RenderableType:
    """Foreign words in our style: a Text is never read as markup."""
    from rich.text import Text

    return Text(words, style=style, overflow="fold")


def _hanging(words: str, left: int, style: str, *, bullet: str = "") -> RenderableType:
    """A sentence that stays indented where it wraps."""
    from rich.table import Table

    grid = Table.grid(padding=0, pad_edge=False)
    grid.add_column(width=left)
    grid.add_column(overflow="fold")
    grid.add_row(bullet, _styled(words, style))
    return grid


def _table(*, fancy: bool, header: bool = True) -> Table:
    from rich import box
    from rich.table import Table

    frame = box.SIMPLE_HEAD if fancy else box.Box(_FRAME, ascii=True)
    return Table(box=frame, show_header=header, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)


def _depth_table(report: Outline, *, fancy: bool) -> Table:
    table = _table(fancy=fancy)
    table.add_column("", width=1)
    table.add_column("depth", no_wrap=True)
    for name in ("modules", "tuned", "failed", "latency", "lowest", "speed-up"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("interval", no_wrap=True)
    for row in report.depths:
        figures = [row.wrapped, row.tuned, row.failed, row.latency, row.lowest, row.speedup, row.interval]
        table.add_row(_mark(row), row.name, *figures, style=_style(row, fancy=fancy))
    return table


def _dry_table(report: Outline, *, fancy: bool) -> Table:
    table = _table(fancy=fancy)
    table.add_column("depth")
    table.add_column("modules", justify="right")
    table.add_column("memory", justify="right", no_wrap=True)
    table.add_column("what it wraps", overflow="fold")
    for row in report.depths:
        table.add_row(row.name, row.wrapped, row.memory, _styled(row.modules))
    return table


def _mark(row: DepthRow) -> str:
    return ">" if row.selected else ""


def _style(row: DepthRow, *, fancy: bool) -> str:
    return "bold green" if fancy and row.selected else ""


def _legend(report: Outline) -> Iterator[RenderableType]:
    yield ""
    if report.dry_run:
        yield _hanging("memory: what the recorded calls of one depth take while it is tuned", 2, "dim")
        return
    for row in report.depths:
        if row.error:
            yield _hanging(f"depth {row.name}: {row.error}", 2, "yellow")
    if any(row.selected for row in report.depths):
        yield _hanging("> runs now", 2, "green")
    if report.samples:
        words = (
            f"latency: median of a pass over the dataset ({report.samples}); lowest: each sample at its best, "
            "summed; interval: 99 % of the speed-up against untuned"
        )
        yield _hanging(words, 2, "dim")


def _groups(groups: Iterable[Group], width: int, *, fancy: bool) -> Iterator[RenderableType]:
    longest = max((len(row.backend) for group in groups for row in group.rows), default=0)
    backend = min(_BACKEND, max(longest, len("backend")))
    for group in groups:
        yield from _title(group.title)
        for i, row in enumerate(group.rows):
            yield _unit_table(row, width, backend, header=not i, fancy=fancy)
            yield from (_hanging(line, _INDENT, "dim") for line in row.lines)
        if group.more:
            yield _styled(f"  ... and {group.more} more: result.to_json() has them all", "dim")
    if groups:
        yield ""
        words = "speed-up, per call: each unit alone, against its own original forward (eager)"
        yield _hanging(words, 2, "dim")


def _unit_table(row: UnitRow, width: int, backend: int, *, header: bool, fancy: bool) -> RenderableType:
    """One unit as a table of fixed columns, so that sentences can stand between two rows."""
    name = width - backend - sum(_FIGURES) - 3 * _GAP
    table = _table(fancy=fancy, header=header)
    table.add_column("  unit", width=name)
    table.add_column("backend", width=backend, no_wrap=True)
    for title, columns in zip(("speed-up", "per call"), _FIGURES, strict=True):
        table.add_column(title, width=columns, justify="right", no_wrap=True)
    lines = [row.name] * bool(row.name) + [f"  called with {row.key}"] * bool(row.key)
    shown = "\n".join(f"  {shorten(line, name - 2)}" for line in lines)
    style = "green" if fancy and row.tuned else ""
    table.add_row(_styled(shown), _styled(shorten(row.backend, backend), style), row.speedup, row.latency)
    return table


def _refused(report: Outline) -> Iterator[Any]:
    for refused in report.refused:
        yield _hanging(f"{refused.name}: {refused.reason}", 2, "")
        if refused.hint:
            yield _hanging(refused.hint, _INDENT, "cyan", bullet="   -> ")
