"""What a guard holds a built to."""

from __future__ import annotations

from tt_core.values import CallKey, Facts, Shapes, Weights, frozen


@frozen
class Claim:
    """What a guard holds a built to.

    Attributes:
        key: the identity of the calls it was built for.
        covers: the sizes it is right for; None: any.
        weights: where it reads its weights from.
        facts: what eager runs of the unit showed; inputs that are written to must not share memory.
        needs_strides: whether its inputs must be contiguous.
        fork_safe: whether a forked child may call it.
    """

    key: CallKey
    covers: Shapes | None = None
    weights: Weights = Weights.VALUES
    facts: Facts = Facts()
    needs_strides: bool = False
    fork_safe: bool = True
