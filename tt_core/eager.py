"""The baseline backend: the unit's original forward. A plugin like any other, but one that cannot be blocked."""

from __future__ import annotations

from tt_core.hookspecs import hookimpl
from tt_core.values import Backend, Built, Fidelity, Keeps, Unit, Weights


@hookimpl
def tt_backends() -> Backend:
    """Declares eager: exact, on every device, keeping all that eager does."""
    return Backend(
        name="eager",
        devices=frozenset({"*"}),
        fidelity=Fidelity.EXACT,
        priority=100,
        weights=Weights.LIVE,
        keeps=frozenset(Keeps),
        capturable=True,
    )


@hookimpl
def tt_build(unit: Unit) -> Built:
    """Hands out the original forward."""
    return Built(call=unit.forward, weights=Weights.LIVE)
