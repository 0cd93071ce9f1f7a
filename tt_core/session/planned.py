"""A given plan on an object: its cut is tuned with nothing but the candidates that it names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from tt_core import cuts, survey
from tt_core.callkey import describe
from tt_core.errors import StoreError
from tt_core.forms import key_print
from tt_core.strategy import Strategy
from tt_core.values import EAGER, CallKey, Calls, Candidate, Cut, Plan, Unit, evolve, frozen

Table = tuple[tuple[str, Candidate], ...]
"""A call key's print and the candidate for it, sorted by print."""
_UNKNOWN = "the plan does not know this call"
_EAGER = "the plan says so"
_SHOWN = 3


@attrs.frozen(eq=False)
class AsPlanned(Strategy):
    """Tries what a plan chose for a call key, and nothing else. It need not be faster alone: the end-to-end race decides."""

    table: Table = attrs.field(default=(), kw_only=True)

    must_win = False
    asked = "the plan says so"

    def candidates(
        self,
        unit: Unit,  # noqa: ARG002
        calls: Calls,
        offered: Sequence[Candidate],  # noqa: ARG002  it names its candidates itself
    ) -> Sequence[Candidate]:
        """Eager, and the planned candidate."""
        found = self.candidate(calls.key)
        return (EAGER,) if found is None else (EAGER, found)

    def candidate(self, key: CallKey) -> Candidate | None:
        """What the plan chose for a call key; None for one that it does not know."""
        return dict(self.table).get(_print(key))


@frozen
class Planned:
    """A plan that fits the object.

    Attributes:
        cut: its cut, as the object has it.
        origin: as `DepthResult.origin`.
        strategies: by unit; units that the plan treats alike share one, so that they can be twins.
    """

    cut: Cut
    origin: str
    strategies: Mapping[str, AsPlanned]

    def known(self, recorded: Mapping[str, Sequence[Calls]]) -> tuple[Mapping[str, Sequence[Calls]], tuple[str, ...]]:
        """The recorded calls, those without a candidate to try marked as such, and the calls that the plan does not know."""
        marked = {path: tuple(self._marked(path, calls) for calls in keys) for path, keys in recorded.items()}
        strange = tuple(
            f"{path or 'the whole object'} with {describe(calls.key, calls.shapes)}"
            for path, keys in marked.items()
            for calls in keys
            if calls.untunable == _UNKNOWN
        )
        return marked, strange

    def _marked(self, path: str, calls: Calls) -> Calls:
        if calls.untunable:
            return calls
        found = self.strategies[path].candidate(calls.key)
        return calls if found not in {None, EAGER} else evolve(calls, untunable=_UNKNOWN if found is None else _EAGER)


def planned(plan: Plan, inspection: survey.Inspection, origin: str) -> Planned:
    """A plan on the object that was inspected.

    Raises:
        UsageError: a unit of its cut did not run, or lies inside another one.
    """
    cut = cuts.cut_of(inspection, plan.cut.units)
    depths = [d for d in plan.cut.depths if cuts.cut_at(inspection, d).units == cut.units]
    tables: dict[str, dict[str, Candidate]] = {path: {} for path in cut.units}
    for choice in plan.choices:
        for path in choice.members or (choice.unit,):
            tables[inspection[path].path].setdefault(_print(choice.key), choice.candidate)
    shared: dict[Table, AsPlanned] = {}
    for table in map(_sorted, tables.values()):
        shared.setdefault(table, AsPlanned(table=table))
    return Planned(
        cut=Cut(depths=tuple(depths) or cut.depths, units=cut.units),
        origin=origin,
        strategies={path: shared[_sorted(table)] for path, table in tables.items()},
    )


def unknown_text(strange: Sequence[str]) -> str:
    """The sentence about calls that the plan does not know."""
    more = f", and {len(strange) - _SHOWN} more" if len(strange) > _SHOWN else ""
    return f"the plan does not know these calls, which stay eager: {'; '.join(strange[:_SHOWN])}{more}"


def _sorted(table: Mapping[str, Candidate]) -> Table:
    return tuple(sorted(table.items(), key=lambda item: item[0]))


def _print(key: CallKey) -> str:
    """Empty for a key without a form, which no plan can hold."""
    try:
        return key_print(key)
    except StoreError:
        return ""
