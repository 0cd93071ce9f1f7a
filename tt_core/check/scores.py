"""One pool judged: the formula of the check."""

from __future__ import annotations

import math

from tt_core.check.limits import ELEMENT_RMS, ELEMENT_TIMES, FEW, FEW_FLOORS, NOISE_TIMES, limit_of
from tt_core.check.pools import Pool
from tt_core.values import Tolerance, valued


@valued
class Score:
    """One pool judged: how much of its limit it uses (above 1: wrong), and the figures for people."""

    share: float
    error: float
    own: float | None
    where: str
    reason: str


def score_of(pool: Pool, tolerance: Tolerance, noise: float) -> Score:
    """Judges a pool by its relative L2 distance and by its single worst number, whichever is closer to its limit.

    Args:
        pool: the sums.
        tolerance: the caller's.
        noise: relative L2 distance that is known to be rounding, where there is no truth.
    """
    off, own, norm = math.sqrt(pool.off2), math.sqrt(pool.own2), math.sqrt(pool.norm2)
    limit = _l2_limit(pool, own, norm, tolerance, noise)
    length = math.sqrt(pool.gap2) if tolerance.relative is not None else off
    l2 = _share(length, limit)
    single = _share(pool.worst, _element_limit(pool, norm, tolerance, noise))
    beside = "float64" if pool.true and tolerance.relative is None else "eager"
    reason = (
        f"{pool.name} is {pool.relative(length):.2g} off {beside} (relative L2), {pool.relative(limit):.2g} is allowed"
        if l2 >= single
        else f"one number is {pool.worst:.2g} off {beside}; eager's own worst is {pool.own_worst:.2g}"
    )
    return Score(
        share=max(l2, single),
        error=pool.relative(off),
        own=pool.relative(own) if pool.true else None,
        where=pool.where,
        reason=f"{reason}; worst at {pool.where}",
    )


def _share(value: float, limit: float) -> float:
    """`value` as a share of `limit`; nothing at all is always allowed, and what is no number never."""
    if value <= 0:
        return 0.0
    share = value / limit if limit > 0 else math.inf
    return math.inf if math.isnan(share) else share


def _l2_limit(pool: Pool, own: float, norm: float, tolerance: Tolerance, noise: float) -> float:
    """The allowed length of (candidate - truth)."""
    row = limit_of(pool.dtype)
    few = pool.count < FEW
    if tolerance.relative is not None:
        return tolerance.factor * tolerance.relative * math.sqrt(pool.size2)
    if not pool.true:
        fixed = max(row.fixed, FEW_FLOORS * row.floor) if few else row.fixed
        return tolerance.factor * max(fixed, NOISE_TIMES * noise) * norm
    if few:  # eager's own error is added once, so that what is as good as eager is never refused
        return tolerance.factor * (FEW_FLOORS * row.floor * norm + own)
    return tolerance.factor * (row.times * own + row.floor * norm)


def _element_limit(pool: Pool, norm: float, tolerance: Tolerance, noise: float) -> float:
    """The allowed |candidate - truth| of any single number; few numbers, and the caller's own limit, need none.

    Without a truth nobody knows eager's own worst number: rounding of the size that is allowed on the average, or that the
    units showed, takes its place (in half precision a large number's last bit alone may be over 5 % of the rms).
    """
    if pool.count < FEW or tolerance.relative is not None:
        return math.inf
    rms = norm / math.sqrt(pool.count)
    own_worst = pool.own_worst if pool.true else max(limit_of(pool.dtype).fixed, noise) * rms
    return tolerance.factor * (ELEMENT_TIMES * own_worst + ELEMENT_RMS * rms)
