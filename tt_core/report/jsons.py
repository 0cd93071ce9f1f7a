"""A result as plain JSON values and back: everything that was found, and no name of a host, user or folder."""

from __future__ import annotations

import getpass
import math
import platform
from collections.abc import Mapping, Sequence
from typing import Any

from tt_core.callkey import describe
from tt_core.errors import UsageError
from tt_core.report.words import inverse, scrub
from tt_core.result import AutoTuneResult
from tt_core.values import (
    Axis,
    CallKey,
    Candidate,
    Choice,
    DepthResult,
    Failure,
    Interval,
    Shapes,
    Timing,
    Trial,
    Verdict,
    frozen,
)

FORMAT = 1
"""The format's number. A new key leaves it alone; a new meaning raises it."""
KIND = "tt_core report"
_COMMON = {"root", "user", "localhost", "runner", "build"}
"""Names that tell nothing about anybody, but are words that messages need."""
_FREE = {"headline", "error", "reason", "hint", "detail", "where", "why", "notes", "environment"}
"""Keys whose texts other programs wrote; paths of units and names of backends must stay what they are."""
Json = dict[str, Any]


@frozen
class Report:
    """A result that was read back from JSON: prints the same table, holds no model.

    Attributes:
        data: what `to_json` wrote.
    """

    data: Json

    @property
    def headline(self) -> str:
        """One sentence: what was installed, or why nothing was."""
        return str(self.data["headline"])

    def __str__(self) -> str:
        """The table as plain text."""
        from tt_core.report.table import text

        return text(self)

    def _repr_html_(self) -> str:
        """The table for notebooks."""
        from tt_core.report.page import html

        return html(self)

    def to_json(self) -> Json:
        """The values it was made of."""
        return to_json(self)


def to_json(result: AutoTuneResult | Report) -> Json:
    """Everything but the model, as values that `json.dumps(..., allow_nan=False)` takes.

    Seconds are seconds, sizes are bytes, ratios are time divided by the baseline's time; call keys are text. Numbers that
    are not finite are the strings "nan", "inf" and "-inf".
    """
    if isinstance(result, Report):
        return dict(result.data)
    keys = _key_texts(result)
    chosen = result.selected
    place = -1 if chosen is None else _position(chosen, result.depths)
    data = {
        "kind": KIND,
        "format": FORMAT,
        "headline": result.headline,
        "dry_run": result.dry_run,
        "changed": result.changed,
        "speedup": 1.0 if chosen is None or chosen.timing is None else inverse(chosen.timing.interval.mid),
        "seconds": result.seconds,
        "untuned": _timing(result.untuned),
        "untuned_sample_s": list(result.untuned_sample_s),
        "depths": [_depth(depth, keys, selected=i == place) for i, depth in enumerate(result.depths)],
        "units": dict(result.units),
        "trials": [_trial(trial, keys) for trial in result.trials],
        "weights_print": result.plan.weights_print if result.plan else "",
        "refused": [{"name": r.name, "stage": r.stage, "reason": r.reason, "hint": r.hint} for r in result.refused],
        "notes": list(result.notes),
        "environment": dict(result.environment),
    }
    plain: Json = _plain(data, _private_names())
    return plain


def from_json(data: Mapping[str, Any]) -> Report:
    """A report from what `to_json` wrote: `str()` of it is the table of the original.

    Raises:
        UsageError: `data` is no report, was written by a newer tt_core, or is damaged.
    """
    from tt_core.report.outline import outline

    if not isinstance(data, Mapping) or data.get("kind") != KIND:
        raise UsageError("this is no report of tt_core: to_json() of a result makes one")
    number = data.get("format")
    if type(number) is not int or number < 1:
        raise UsageError(f"this report has no valid format number: {number!r}")
    if number > FORMAT:
        raise UsageError(f"this report has format {number}, this tt_core reads up to {FORMAT}: update tt-core")
    report = Report(data=dict(data))
    try:
        outline(report.data)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise UsageError(f"this report is damaged: {type(error).__name__}: {error}") from error
    return report


def _position(selected: DepthResult, depths: Sequence[DepthResult]) -> int:
    """Where the selected depth stands; it may be a copy of the entry, so equal cuts count too."""
    same = [i for i, depth in enumerate(depths) if depth is selected]
    return [*same, *(i for i, depth in enumerate(depths) if depth.cut == selected.cut), -1][0]


def _depth(depth: DepthResult, keys: Mapping[tuple[str, CallKey], str], *, selected: bool) -> Json:
    return {
        "depths": list(depth.cut.depths),
        "units": list(depth.cut.units),
        "selected": selected,
        "origin": depth.origin,
        "wrapped": depth.wrapped,
        "tuned": depth.tuned,
        "failed": depth.failed,
        "timing": _timing(depth.timing),
        "sample_s": list(depth.sample_s),
        "bytes_needed": depth.bytes_needed,
        "error": depth.error,
        "choices": [_choice(choice, keys) for choice in depth.choices],
    }


def _choice(choice: Choice, keys: Mapping[tuple[str, CallKey], str]) -> Json:
    return {
        "unit": choice.unit,
        "key": keys[choice.unit, choice.key],
        "candidate": _candidate(choice.candidate),
        "covers": None if choice.covers is None else _shapes(choice.covers),
        "members": list(choice.members),
        "why": choice.why,
    }


def _trial(trial: Trial, keys: Mapping[tuple[str, CallKey], str]) -> Json:
    failure = trial.outcome if isinstance(trial.outcome, Failure) else None
    return {
        "unit": trial.unit,
        "key": keys[trial.unit, trial.key],
        "candidate": _candidate(trial.candidate),
        "verdicts": [_verdict(verdict) for verdict in trial.verdicts],
        "timing": _timing(trial.outcome) if isinstance(trial.outcome, Timing) else None,
        "failure": _failure(failure) if failure else None,
        "notes": list(trial.notes),
    }


def _candidate(candidate: Candidate) -> Json:
    steps = [{"backend": name, "options": dict(options)} for name, options in candidate.steps]
    return {"name": candidate.name, "text": str(candidate), "steps": steps}


def _failure(failure: Failure) -> Json:
    return {name: getattr(failure, name) for name in ("stage", "kind", "reason", "hint", "detail")}


def _verdict(verdict: Verdict) -> Json:
    names = ("ok", "reason", "error", "eager_error", "max_abs", "rel_l2", "where", "compared", "skipped")
    return {name: getattr(verdict, name) for name in names}


def _timing(timing: Timing | None) -> Json | None:
    """Raw stamps, and the statistics that are derived from them."""
    if timing is None:
        return None
    raw = [
        "seconds",
        "blocks",
        "ratios",
        "first_call_s",
        "build_s",
        "device_s",
        "noise",
        "undecided",
        "bytes_peak",
        "items",
    ]
    derived = {"median_s": timing.median, "p90_s": timing.p90, "p99_s": timing.p99, "minimum_s": timing.minimum}
    return {
        **{name: getattr(timing, name) for name in raw},
        "interval": _interval(timing.interval),
        "speedup": inverse(timing.interval.mid),
        **derived,
        "items_per_s": timing.items_per_s,
    }


def _interval(interval: Interval) -> Json:
    return {"low": interval.low, "mid": interval.mid, "high": interval.high}


def _shapes(shapes: Shapes) -> list[list[Any]]:
    return [[_axis(axis) for axis in leaf] for leaf in shapes.leaves]


def _axis(axis: int | Axis) -> Any:
    return {"lo": axis.lo, "hi": axis.hi, "symbol": axis.symbol} if isinstance(axis, Axis) else axis


def _key_texts(result: AutoTuneResult) -> dict[tuple[str, CallKey], str]:
    """A text for each unit's keys, different ones for different keys of a unit."""
    chosen = [choice for depth in result.depths for choice in depth.choices]
    chosen += result.plan.choices if result.plan else ()
    covers = {(c.unit, c.key): c.covers for c in chosen if c.covers is not None}
    texts: dict[tuple[str, CallKey], str] = {}
    taken: set[tuple[str, str]] = set()
    for place in [(t.unit, t.key) for t in result.trials] + [(c.unit, c.key) for c in chosen]:
        if place in texts:
            continue
        text = base = describe(place[1], covers.get(place))
        number = 2
        while (place[0], text) in taken:
            text, number = f"{base} (#{number})", number + 1
        taken.add((place[0], text))
        texts[place] = text
    return texts


def _private_names() -> tuple[str, ...]:
    """The host's and the user's name, where they are more than a common word."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):  # no such user in this container
        user = ""
    host = platform.node()
    names = {host, host.split(".")[0], user}
    return tuple(sorted((n for n in names if len(n) > 2 and n.lower() not in _COMMON), key=len, reverse=True))  # noqa: PLR2004


def _plain(value: Any, private: tuple[str, ...], *, free: bool = False) -> Any:
    """`value` in dicts, lists, strings, numbers and None; no text keeps a folder, no free text a private name."""
    if value is None or type(value) in {bool, int}:
        return value
    if isinstance(value, int):  # an enum
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, Mapping):
        return {_text(name): _plain(item, private, free=free or name in _FREE) for name, item in value.items()}
    if isinstance(value, Sequence | set | frozenset) and not isinstance(value, str | bytes):
        return [_plain(item, private, free=free) for item in value]
    return _text(value, private if free else ())


def _text(value: Any, private: tuple[str, ...] = ()) -> str:
    """A text that UTF-8 can hold."""
    return scrub(str(value), private).encode("utf-8", "replace").decode("utf-8")
