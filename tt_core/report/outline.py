"""What a report says, as words in their places: the table and the page differ only in how they set them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tt_core.report.folding import fold, pattern
from tt_core.report.losers import is_eager
from tt_core.report.units import Group, depth_name, groups, label
from tt_core.report.words import clean, duration, inverse, many, milliseconds, percent, ratio, size
from tt_core.values import evolve, valued

Data = Mapping[str, Any]
_NONE = "-"
_NOTABLE = 0.05
"""Noise below is what any machine has."""


@valued
class DepthRow:
    """One cut, or the untuned object, in the table of depths.

    Attributes:
        name: "untuned", or the depths that give this cut.
        selected: whether it is what runs now.
        wrapped, tuned, failed: numbers of modules, as text.
        latency: median of a pass.
        lowest: sum over samples of the lowest latencies seen.
        speedup: against untuned, with its interval.
        memory: what tuning needs for recorded calls.
        error: why it was not measured or not selected.
        modules: what it wraps, shortened.
        share: latency as a share of the slowest row's, 0 where unknown.
    """

    name: str
    selected: bool = False
    wrapped: str = ""
    tuned: str = ""
    failed: str = ""
    latency: str = ""
    lowest: str = ""
    speedup: str = ""
    interval: str = ""
    memory: str = ""
    error: str = ""
    modules: str = ""
    share: float = 0.0


@valued
class Refused:
    """A plugin or backend that did not take part."""

    name: str
    reason: str
    hint: str


@valued
class Outline:
    """A whole report in words.

    Attributes:
        headline: the one sentence on top.
        dry_run: whether nothing was built: the depths then have modules and memory only.
        samples: how many samples a pass has, as text, empty where nothing was measured.
        depths: the untuned object first where it was measured.
        groups: units by the depth they were tuned for.
        refused: who did not take part.
        notes: sentences.
        footer: how long it took, and on what.
    """

    headline: str
    dry_run: bool
    samples: str
    depths: tuple[DepthRow, ...]
    groups: tuple[Group, ...]
    refused: tuple[Refused, ...]
    notes: tuple[str, ...]
    footer: str


def outline(data: Data) -> Outline:
    """The words of a report.

    Args:
        data: what `to_json` makes.

    Raises:
        LookupError, TypeError, ValueError, AttributeError, ArithmeticError: `data` is damaged.
    """
    data = {
        **data,
        "untuned": revived(data["untuned"]),
        "depths": [{**depth, "timing": revived(depth["timing"])} for depth in data["depths"]],
        "trials": [{**trial, "timing": revived(trial["timing"])} for trial in data["trials"]],
    }
    return Outline(
        headline=clean(data["headline"]),
        dry_run=bool(data["dry_run"]),
        samples=many(len(data["untuned_sample_s"]), "sample") if data["untuned_sample_s"] else "",
        depths=_depths(data),
        groups=() if data["dry_run"] else groups(data),
        refused=_refused(data["refused"]),
        notes=(*(clean(note) for note in data["notes"]), *_kept(data), *_busy(data)),
        footer=_footer(data),
    )


def revived(value: Any) -> Any:
    """Numbers that JSON cannot hold, which stand there as "nan", "inf" and "-inf"."""
    if isinstance(value, Mapping):
        return {name: revived(item) for name, item in value.items()}
    if isinstance(value, list):
        return [revived(item) for item in value]
    return float(value) if value in {"nan", "inf", "-inf"} else value


def _depths(data: Data) -> tuple[DepthRow, ...]:
    rows = [_row(depth, data) for depth in data["depths"]]
    untuned = data["untuned"]
    first = [] if untuned is None else [_untuned(untuned, data["untuned_sample_s"])]
    seconds = [t["median_s"] for t in (untuned, *(d["timing"] for d in data["depths"])) if t is not None]
    slowest = max(seconds, default=0.0)
    timings = [untuned] * len(first) + [depth["timing"] for depth in data["depths"]]
    return tuple(
        evolve(row, share=timing["median_s"] / slowest if timing and slowest else 0.0)
        for row, timing in zip([*first, *rows], timings, strict=True)
    )


def _untuned(timing: Data, lowest: Sequence[float]) -> DepthRow:
    return DepthRow(
        name="untuned",
        latency=milliseconds(timing["median_s"]),
        lowest=milliseconds(sum(lowest)) if lowest else _NONE,
        speedup=ratio(1.0),
    )


def _row(depth: Data, data: Data) -> DepthRow:
    timing, dry = depth["timing"], data["dry_run"]
    tried = bool(timing or depth["tuned"] or depth["failed"] or depth["choices"])
    return DepthRow(
        name=depth_name(depth),
        selected=bool(depth["selected"]),
        wrapped=f"{depth['wrapped']:,}",
        tuned=f"{depth['tuned']:,}" if tried else _NONE,
        failed=f"{depth['failed']:,}" if tried else _NONE,
        latency=milliseconds(timing["median_s"]) if timing else _NONE,
        lowest=milliseconds(sum(depth["sample_s"])) if depth["sample_s"] else _NONE,
        speedup=ratio(timing["speedup"]) if timing else _NONE,
        interval=_interval(timing["interval"]) if timing else "",
        memory=size(depth["bytes_needed"]) if depth["bytes_needed"] is not None else _NONE,
        error=clean(depth["error"]),
        modules=_modules(depth["units"], data["units"]) if dry else "",
    )


def _interval(interval: Data) -> str:
    """The interval of a speed-up: the ratio of times is its inverse."""
    return f"{ratio(inverse(interval['high']))[:-1]}-{ratio(inverse(interval['low']))[:-1]}"


def _modules(paths: Sequence[str], kinds: Mapping[str, str]) -> str:
    """What a cut wraps, equal kinds of modules in a row folded."""
    folded: dict[tuple[str, str], list[str]] = {}
    for path in paths:
        folded.setdefault((pattern(path), kinds.get(path, "")), []).append(path)
    return ", ".join(label(fold(paths), kind, len(paths)) for (_, kind), paths in folded.items())


def _refused(refused: Sequence[Data]) -> tuple[Refused, ...]:
    rows = [Refused(name=clean(r["name"]), reason=clean(r["reason"]), hint=clean(r["hint"])) for r in refused]
    return tuple(dict.fromkeys(rows))


def _kept(data: Data) -> list[str]:
    """How close the installed candidates are to eager: what makes a speed-up worth having."""
    selected = [depth for depth in data["depths"] if depth["selected"]]
    chosen = {(c["unit"], c["key"], c["candidate"]["text"]) for depth in selected for c in depth["choices"]}
    verdicts = [
        float(verdict["rel_l2"])
        for trial in data["trials"]
        if (trial["unit"], trial["key"], trial["candidate"]["text"]) in chosen and not is_eager(trial["candidate"])
        for verdict in trial["verdicts"]
        if verdict["rel_l2"] is not None
    ]
    if not verdicts:
        return []
    worst = max(verdicts)
    how = f"differ from eager by at most {worst:.1e} (relative L2)" if worst else "gave eager's results bit for bit"
    return [f"results are kept: on the recorded samples the installed units {how}"]


def _busy(data: Data) -> list[str]:
    """How many decisions noise took: a tie because of it is no proof that nothing is faster."""
    raced = [t["timing"] for t in data["trials"] if t["timing"] and not is_eager(t["candidate"])]
    raced += [depth["timing"] for depth in data["depths"] if depth["timing"]]
    undecided = [timing for timing in raced if timing["undecided"]]
    noise = sorted(timing["noise"] for timing in raced)
    typical = noise[len(noise) // 2] if noise else 0.0
    if undecided:
        worst = max(timing["noise"] for timing in undecided)
        ties = "is a tie" if len(undecided) == 1 else "are ties"
        return [f"noise {percent(worst)}: {len(undecided)} of {many(len(raced), 'decision')} {ties} because of it"]
    return [f"noise {percent(typical)}: the machine was busy, all decisions held"] if typical > _NOTABLE else []


def _footer(data: Data) -> str:
    parts = [f"{clean(name)} {clean(value)}" for name, value in data["environment"].items()]
    took = [f"took {duration(data['seconds'])}"] if data["seconds"] else []
    return "; ".join([*took, *parts])
