"""The report as one HTML fragment for notebooks and browsers: no scripts, nothing loaded, light and dark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape

from tt_core.report.jsons import Report, to_json
from tt_core.report.outline import DepthRow, Outline, outline
from tt_core.report.units import Group, UnitRow
from tt_core.result import AutoTuneResult

# Text and ground are inherited, lines and bars are half transparent: right on any ground, whatever the notebook's theme.
_STYLE = """
.tt-report{font:14px/1.45 system-ui,sans-serif;max-width:60em;color:inherit}
.tt-report p{margin:.3em 0}
.tt-report .tt-headline{font-size:1.25em;font-weight:600;margin:0 0 .6em}
.tt-report h4{font-size:1em;font-weight:600;margin:1.4em 0 .3em}
.tt-report table{border-collapse:collapse;width:100%;color:inherit;background:none;margin:0}
.tt-report tr{background:none!important}
.tt-report th,.tt-report td{text-align:left;vertical-align:top;padding:.3em .7em .3em 0;border:0;white-space:nowrap;
border-bottom:1px solid rgba(128,128,128,.25)}
.tt-report th{font-weight:500;opacity:.7}
.tt-report .tt-n{text-align:right;font-variant-numeric:tabular-nums}
.tt-report .tt-wrap{white-space:normal;overflow-wrap:anywhere;min-width:11em}
.tt-report .tt-on{font-weight:600}
.tt-report .tt-tag{background:rgba(34,160,90,.22);border-radius:.7em;padding:.05em .6em;font-size:.85em;margin-left:.5em}
.tt-report .tt-bar{display:block;height:.55em;margin-top:.45em;border-radius:.3em;background:rgba(128,128,128,.55);min-width:2px}
.tt-report .tt-on .tt-bar{background:rgb(34,160,90)}
.tt-report .tt-dim{opacity:.7;font-size:.92em;font-weight:400}
.tt-report code{font-family:ui-monospace,monospace;font-size:.95em;background:none;color:inherit;padding:0}
.tt-report .tt-scroll{overflow-x:auto}
.tt-report ul{margin:.2em 0;padding-left:1.3em}
"""
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="color-scheme" content="light dark">
<meta name="viewport" content="width=device-width"><title>{title}</title>
<style>body{{margin:2em}}</style></head><body>
{body}
</body></html>
"""


def html(result: AutoTuneResult | Report, *, page: bool = False) -> str:
    """The report as HTML; every foreign text is escaped.

    Args:
        result: what tuning returned, or a report that was read back.
        page: a whole document, to be written to a file, instead of a fragment.
    """
    report = outline(to_json(result))
    body = f'<div class="tt-report"><style>{_STYLE}</style>\n{"".join(_parts(report))}</div>'
    return _PAGE.format(title=escape(report.headline), body=body) if page else body


def _parts(report: Outline) -> Iterator[str]:
    yield f'<p class="tt-headline">{escape(report.headline)}</p>\n'
    if report.depths:
        yield _dry_table(report) if report.dry_run else _depth_table(report)
    yield from (_group(group) for group in report.groups)
    if report.groups:
        yield _dim("Speed-up and latency of each unit alone, against its own original forward (eager).")
    if report.refused:
        rows = [
            _row([_code(r.name), escape(r.reason), _code(r.hint) if r.hint else ""], ("", "tt-wrap", "tt-wrap"))
            for r in report.refused
        ]
        yield _titled("Did not take part", _table(("name", "why", "what to do"), rows))
    if report.notes:
        items = "".join(f"<li>{escape(note)}</li>" for note in report.notes)
        yield _titled("Notes", f"<ul>{items}</ul>")
    if report.footer:
        yield _dim(report.footer)


def _depth_table(report: Outline) -> str:
    heads = ("depth", "modules", "tuned", "failed", "latency", "", "lowest", "speed-up", "interval", "")
    kinds = ("", "tt-n", "tt-n", "tt-n", "tt-n", "tt-bars", "tt-n", "tt-n", "tt-n", "tt-wrap tt-dim")
    rows = [_row(_depth(row), kinds, "tt-on" if row.selected else "") for row in report.depths]
    legend = (
        f"Latency: median of a pass over the dataset ({report.samples}). Lowest: each sample at its best, summed. "
        "Interval: 99 % of the speed-up against untuned."
    )
    return _table(heads, rows, kinds) + (_dim(legend) if report.samples else "")


def _depth(row: DepthRow) -> list[str]:
    tag = '<span class="tt-tag">runs now</span>' if row.selected else ""
    bar = f'<span class="tt-bar" style="width:{max(row.share, 0.01) * 8:.2f}em"></span>' if row.share else ""
    figures = [escape(word) for word in (row.wrapped, row.tuned, row.failed, row.latency)]
    rest = [escape(word) for word in (row.lowest, row.speedup, row.interval, row.error)]
    return [escape(row.name) + tag, *figures, bar, *rest]


def _dry_table(report: Outline) -> str:
    kinds = ("", "tt-n", "tt-n", "tt-wrap")
    rows = [_row([escape(w) for w in (r.name, r.wrapped, r.memory, r.modules)], kinds) for r in report.depths]
    heads = ("depth", "modules", "memory", "what it wraps")
    return _table(heads, rows, kinds) + _dim("Memory: what the recorded calls of one depth take while it is tuned.")


def _group(group: Group) -> str:
    kinds = ("tt-wrap", "", "tt-n", "tt-n", "tt-wrap tt-dim")
    rows = [_row(_unit(row), kinds) for row in group.rows]
    more = _dim(f"... and {group.more} more: result.to_json() has them all") if group.more else ""
    heads = ("unit", "backend", "speed-up", "per call", "costs, and why the others lost")
    return _titled(group.title, _table(heads, rows, kinds) + more)


def _unit(row: UnitRow) -> list[str]:
    key = f'<div class="tt-dim">called with {escape(row.key)}</div>' if row.key else ""
    backend = f"<b>{escape(row.backend)}</b>" if row.tuned else escape(row.backend)
    lines = "".join(f"<div>{escape(line)}</div>" for line in row.lines)
    return [_code(row.name) + key, backend, escape(row.speedup), escape(row.latency), lines]


def _titled(title: str, body: str) -> str:
    return f"<h4>{escape(title)}</h4>\n{body}"


def _dim(words: str) -> str:
    return f'<p class="tt-dim">{escape(words)}</p>\n'


def _code(words: str) -> str:
    return f"<code>{escape(words)}</code>" if words else ""


def _row(cells: Iterable[str], kinds: Iterable[str], kind: str = "") -> str:
    """A table row; the cells are HTML already."""
    inner = "".join(f'<td class="{k}">{cell}</td>' for cell, k in zip(cells, kinds, strict=True))
    return f'<tr class="{kind}">{inner}</tr>\n'


def _table(heads: Iterable[str], rows: Iterable[str], kinds: Iterable[str] | None = None) -> str:
    heads = tuple(heads)
    numeric = ["tt-n" if "tt-n" in kind.split() else "" for kind in kinds or ("",) * len(heads)]
    inner = "".join(f'<th class="{kind}">{escape(head)}</th>' for head, kind in zip(heads, numeric, strict=True))
    return (
        f'<div class="tt-scroll"><table><thead><tr>{inner}</tr></thead><tbody>\n{"".join(rows)}</tbody></table></div>\n'
    )
