"""The cut of an inspection at one depth. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tt_core.errors import UsageError
from tt_core.values import Cut

if TYPE_CHECKING:
    from tt_core.survey.inspection import Inspection, Seen


def cut_at(inspection: Inspection, depth: int) -> Cut:
    """The cut at a depth: every executed unit there, and every executed leaf that is shallower.

    Where a unit also runs inside another unit of the cut, the outer one is kept; of two that run inside each other, the
    first. A module that calls itself is in no cut.

    Args:
        inspection: what ran.
        depth: 0 for the whole object, or more.

    Returns:
        The cut, its units in the order of the object's tree; without units where all that ran calls itself.

    Raises:
        UsageError: a negative depth.
    """
    if depth < 0:
        raise UsageError(f"depth {depth}: a depth is 0 (the whole object) or more")
    here = [seen.path for seen in inspection.modules if _belongs(seen, depth) and not seen.recursive]
    above = {path: ancestors(inspection, path) for path in here}
    rank = {path: index for index, path in enumerate(here)}
    units = tuple(path for path in here if not any(_gives_way(path, other, above, rank) for other in above[path]))
    return Cut(depths=(depth,), units=units)


def _belongs(seen: Seen, depth: int) -> bool:
    return seen.depth == depth or (seen.depth < depth and not seen.children_executed)


def _gives_way(path: str, outer: str, above: Mapping[str, frozenset[str]], rank: Mapping[str, int]) -> bool:
    """Whether `path` leaves the cut for `outer`, which it runs inside of."""
    return outer in rank and (path not in above[outer] or rank[outer] < rank[path])


def ancestors(inspection: Inspection, path: str) -> frozenset[str]:
    """Every module that `path` ran inside of, at any of its calls."""
    callers = {seen.path: seen.parents for seen in inspection.modules}
    found: set[str] = set()
    todo = list(callers[path])
    while todo:
        caller = todo.pop()
        if caller not in found:
            found.add(caller)
            todo.extend(callers.get(caller, ()))
    return frozenset(found - {path})
