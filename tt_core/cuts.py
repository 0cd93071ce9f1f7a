"""Cuts: sets of units, none inside another, that together cover what ran. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tt_core.errors import UsageError
from tt_core.survey import Inspection, Seen, ancestors, cut_at
from tt_core.values import Cut

__all__ = ["cut_at", "cut_of", "cuts"]


def cuts(inspection: Inspection, min_depth: int, max_depth: int) -> tuple[Cut, ...]:
    """The distinct cuts from `min_depth` to `max_depth`, shallowest first.

    Depths that give the same units are one cut, with all of them in `depths`.
    """
    merged: dict[frozenset[str], Cut] = {}
    for depth in range(min_depth, max_depth + 1):
        cut = cut_at(inspection, depth)
        same = merged.get(frozenset(cut.units))
        merged[frozenset(cut.units)] = cut if same is None else Cut(depths=(*same.depths, depth), units=same.units)
    return tuple(merged.values())


def cut_of(inspection: Inspection, paths: Sequence[str]) -> Cut:
    """The cut of units that the caller names, by any of their paths.

    Raises:
        UsageError: no path, an unknown path, one that never ran or calls itself, or one inside another.
    """
    if isinstance(paths, str) or not paths:
        raise UsageError(f"units={paths!r}: give a list of paths such as ['encoder.0'], or a depth")
    by_name = {name: seen for seen in inspection.modules for name in (*seen.aliases, seen.path)}
    chosen = {_known(by_name, name).path: None for name in paths}
    for path in chosen:
        outer = next((other for other in chosen if other in ancestors(inspection, path)), None)
        if outer is not None:
            raise UsageError(f"units: {path!r} runs inside {outer!r}: give one of them")
    units = tuple(seen.path for seen in inspection.modules if seen.path in chosen)
    return Cut(depths=(min(by_name[path].depth for path in units),), units=units)


def _known(by_name: Mapping[str, Seen], name: str) -> Seen:
    seen = by_name.get(name)
    if seen is None:
        some = ", ".join(map(repr, list(by_name)[:12]))
        raise UsageError(f"units: no module {name!r} ran on the dataset; some that did: {some}")
    if seen.recursive:
        raise UsageError(f"units: {name!r} calls itself, which cannot be tuned")
    return seen
