"""Which backend each unit got, how much faster it is alone, and why the others lost; equal units folded into one."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tt_core.report.folding import fold, pattern
from tt_core.report.losers import SENTENCE, Other, is_eager, other, sentence
from tt_core.report.words import about, clean, clip, duration, inverse, milliseconds, span
from tt_core.values import EAGER, valued

Data = Mapping[str, Any]
_SHOWN_INSTALLED = 60
_SHOWN_TRIED = 20
_SPEED = re.compile(r"^[\d.]+x \S+[;:]?\s*")


@valued
class Outcome:
    """One call key of one unit: what was chosen, and what became of the others."""

    key: str
    backend: str
    speedup: float | None
    seconds: float | None
    build_s: float
    pays_after: float | None
    why: str
    others: tuple[Other, ...]


@valued
class UnitRow:
    """One line of the table of units.

    Attributes:
        name: path, or several folded, with class and number.
        key: the call, where the unit is called in several ways.
        backend: what was chosen.
        speedup: alone, against its own original forward.
        latency: median of a call.
        lines: one sentence each: costs, the reason, and why others lost.
        tuned: whether it runs something other than its original forward.
    """

    name: str
    key: str
    backend: str
    speedup: str
    latency: str
    lines: tuple[str, ...]
    tuned: bool


@valued
class Group:
    """Units that were tuned for one depth.

    Attributes:
        title: which depth, and whether it runs now.
        rows: what to show.
        more: how many rows were left out.
        installed: whether it runs now.
    """

    title: str
    rows: tuple[UnitRow, ...]
    more: int
    installed: bool


def groups(data: Data) -> tuple[Group, ...]:
    """The units of every depth that was tried, the installed depth first; each unit stands once."""
    trials = _by_place(data["trials"])
    shared = (choice["members"] for depth in data["depths"] for choice in depth["choices"])
    twins = (path for members in shared if len(members) > 1 for path in members)  # only the first of them was tried
    left = dict.fromkeys([*(path for path, _ in trials), *twins])
    made: list[Group] = []
    for depth in sorted(data["depths"], key=lambda depth: not depth["selected"]):
        choices = _chosen(depth)
        left.update(dict.fromkeys(path for path, _ in choices if depth["selected"]))
        paths = [path for path in depth["units"] if path in left]
        left = {path: None for path in left if path not in set(paths)}
        rows = _rows(paths, choices, trials, data["units"])
        limit = _SHOWN_INSTALLED if depth["selected"] else _SHOWN_TRIED
        made += [_group(_title(depth), rows, limit, installed=bool(depth["selected"]))] if rows else []
    rest = _rows(list(left), {}, trials, data["units"])  # the run broke off before their depth was finished
    return (*made, _group("Tried before the run ended", rest, _SHOWN_TRIED, installed=False)) if rest else tuple(made)


def _group(title: str, rows: Sequence[UnitRow], limit: int, *, installed: bool) -> Group:
    return Group(title=title, rows=tuple(rows[:limit]), more=max(0, len(rows) - limit), installed=installed)


def _title(depth: Data) -> str:
    where = (
        f"{'depth' if len(depth['depths']) == 1 else 'depths'} {depth_name(depth)}"
        if depth["depths"]
        else "the chosen units"
    )
    return f"Installed: {where}" if depth["selected"] else f"Tried, not installed: {where}"


def depth_name(depth: Data) -> str:
    """The depths that give a cut: `1`, `2-4`, `1 (plan)`, or `units` where the user chose them."""
    numbers, origin = depth["depths"], depth.get("origin", "")  # reports of old had no origin
    name = "units" if not numbers else str(numbers[0]) if len(numbers) == 1 else f"{min(numbers)}-{max(numbers)}"
    return f"{name} ({clean(origin)})" if origin else name


def _by_place(trials: Iterable[Data]) -> dict[tuple[str, str], list[Data]]:
    """Every place's trials; of a candidate that a plan and the search tried, the last one."""
    places: dict[tuple[str, str], dict[str, Data]] = {}
    for trial in trials:
        places.setdefault((trial["unit"], trial["key"]), {})[trial["candidate"]["text"]] = trial
    return {place: list(tried.values()) for place, tried in places.items()}


def _chosen(depth: Data) -> dict[tuple[str, str], tuple[Data, str]]:
    """(unit, key) -> the choice, and the unit whose trials tell about it: twins share those of the first."""
    chosen = {(c["unit"], c["key"]): (c, c["unit"]) for c in depth["choices"]}
    for choice in depth["choices"]:
        for member in choice["members"]:
            chosen.setdefault((member, choice["key"]), (choice, choice["unit"]))
    return chosen


def _rows(
    paths: Sequence[str],
    choices: Mapping[tuple[str, str], tuple[Data, str]],
    trials: Mapping[tuple[str, str], Sequence[Data]],
    kinds: Mapping[str, str],
) -> list[UnitRow]:
    folded: dict[object, list[tuple[str, tuple[Outcome, ...]]]] = {}
    for path in paths:
        keys = dict.fromkeys(key for unit, key in [*choices, *trials] if unit == path)
        outcomes = tuple(_outcome(path, key, choices.get((path, key)), trials) for key in keys)
        same = (kinds.get(path, ""), pattern(path), tuple(_likeness(o, alone=len(keys) == 1) for o in outcomes))
        folded.setdefault(same, []).append((path, outcomes))
    return [row for members in folded.values() for row in _fold(members, kinds)]


def _outcome(
    path: str, key: str, chosen: tuple[Data, str] | None, trials: Mapping[tuple[str, str], Sequence[Data]]
) -> Outcome:
    candidate = chosen[0]["candidate"] if chosen else {"name": EAGER.name, "text": str(EAGER)}
    tried = trials.get((path, key)) or (trials.get((chosen[1], key), ()) if chosen else ())
    own = next((t["timing"] for t in tried if t["candidate"]["text"] == candidate["text"] and t["timing"]), None)
    others = tuple(
        other(trial, own, chosen=candidate)
        for trial in tried
        if trial["candidate"]["text"] != candidate["text"] and not is_eager(trial["candidate"])
    )
    eager = is_eager(candidate)
    why = clean(chosen[0]["why"]) if chosen else ""
    return Outcome(
        key=clean(key),
        backend=clean(candidate["text"]),
        speedup=None if own is None or eager else own["speedup"],
        seconds=own["median_s"] if own else None,
        build_s=own["build_s"] if own else 0.0,
        pays_after=_pays_after(own) if own and not eager else None,
        why="" if eager and others else clip(_SPEED.sub("", why), SENTENCE),
        others=others,
    )


def _pays_after(timing: Data) -> float | None:
    """Calls after which build and first call have paid for themselves; None where they never do."""
    gained = timing["median_s"] * (inverse(timing["interval"]["mid"]) - 1.0)
    paid = (timing["build_s"] + timing["first_call_s"]) * inverse(gained)
    return paid if gained > 0 and math.isfinite(paid) else None


def _likeness(outcome: Outcome, *, alone: bool) -> object:
    """What must be equal for two units to stand in one line: all but figures, and what follows from figures alone."""
    others = tuple((o.backend, "" if o.speedup is not None else pattern(o.reason)) for o in outcome.others)
    key = "" if alone else outcome.key
    return key, outcome.backend, outcome.speedup is None, pattern(outcome.why), others


def _fold(members: Sequence[tuple[str, tuple[Outcome, ...]]], kinds: Mapping[str, str]) -> list[UnitRow]:
    paths = [path for path, _ in members]
    name = label(fold(paths), kinds.get(paths[0], ""), len(paths))
    several = len(members[0][1]) > 1
    rows: list[UnitRow] = []
    for same in zip(*(outcomes for _, outcomes in members), strict=True):
        rows.append(_row(name if not rows else "", same, key=same[0].key if several else ""))
    return rows


def label(path: str, kind: str, count: int) -> str:
    """A unit's name for people: `encoder.layer.0-11 (12 BertLayer)`; the root has no path."""
    name, kind = clean(path) or "whole model", clean(kind)
    inner = f"{count} {kind}".strip() if count > 1 else kind
    return f"{name} ({inner})" if inner else name


def _row(name: str, same: Sequence[Outcome], *, key: str) -> UnitRow:
    first = same[0]
    speeds = [o.speedup for o in same if o.speedup is not None]
    seconds = [o.seconds for o in same if o.seconds is not None]
    others = zip(*(o.others for o in same), strict=True)
    return UnitRow(
        name=name,
        key=key,
        backend=first.backend,
        speedup=span(speeds) if speeds else "-",
        latency=milliseconds(sorted(seconds)[len(seconds) // 2]) if seconds else "-",
        lines=(*_costs(same), *([first.why] if first.why else []), *(sentence(each) for each in others)),
        tuned=first.backend != EAGER.name,
    )


def _costs(same: Sequence[Outcome]) -> list[str]:
    """Build seconds, and the calls after which they are paid: what a short-lived process wants to know."""
    built = sum(o.build_s for o in same)
    if not built:
        return []
    pays = [o.pays_after for o in same if o.pays_after is not None]
    each = " each" if len(same) > 1 else ""
    after = f", paid for after about {about(max(pays))} calls{each}" if len(pays) == len(same) else ""
    return [f"built in {duration(built)}{after}"]
