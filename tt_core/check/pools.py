"""The numbers of one output tensor over all samples, as sums: a relative L2 distance needs nothing more."""

from __future__ import annotations

import math
from collections.abc import Iterator

import attrs
import torch

from tt_core.check.leaves import Numbers
from tt_core.check.limits import LAST_BITS, SENTINEL
from tt_core.check.places import Difference, at, unravel

CHUNK = 1 << 20
"""Numbers looked at together: 8 MiB in float64."""


@attrs.define
class Pool:
    """Sums over all samples of one tensor, and its worst element.

    Attributes:
        name: leaf path.
        dtype: eager's dtype, whose limits apply.
        true: whether the distances are to float64 (else to eager).
        count: finite numbers seen.
        off2, own2, norm2: sums of squares of (candidate - truth), (eager - truth), truth.
        gap2, size2: sums of squares of (candidate - eager), eager.
        worst, where: the largest |candidate - truth|, and its place; where there is no truth, beyond the number's last bits.
        own_worst: the largest |eager - truth|.
        max_abs: the largest |candidate - eager|.
    """

    name: str
    dtype: torch.dtype
    true: bool
    count: int = 0
    off2: float = 0.0
    own2: float = 0.0
    norm2: float = 0.0
    gap2: float = 0.0
    size2: float = 0.0
    worst: float = -1.0
    where: str = ""
    own_worst: float = 0.0
    max_abs: float = 0.0

    @property
    def rel_l2(self) -> float:
        """The candidate's distance to eager, relative to eager (absolute, per number, where eager is all zero)."""
        return self.relative(math.sqrt(self.gap2), math.sqrt(self.size2))

    def relative(self, length: float, norm: float | None = None) -> float:
        """A length as a share of the truth's (or of `norm`); where that is zero: the length per number (rms)."""
        norm = math.sqrt(self.norm2) if norm is None else norm
        return length / norm if norm > 0 else length / math.sqrt(max(self.count, 1))


def usable_truth(piece: Numbers) -> torch.Tensor | None:
    """The float64 numbers, unless they are not finite where eager's are."""
    if piece.true is None or not piece.true.is_floating_point():
        return None
    lost = ~torch.isfinite(piece.true)
    if bool(lost.any()) and bool((lost & torch.isfinite(piece.want).to(lost.device)).any()):
        return None
    return piece.true


def pour(pool: Pool, piece: Numbers, true: torch.Tensor | None, sample: int) -> Difference | None:
    """Adds one sample's numbers; a non-finite number on one side only (or of another kind) is a difference."""
    for start, want, got, truth in _chunks(piece, true):
        stray = _stray(want, got)
        if stray is not None:
            flat, left, right = stray
            place = _place(piece, start + flat, sample)
            return Difference(reason=f"{right} where eager gives {left} at {place}", where=place)
        largest, flat = _sum(pool, want, got, truth)
        if largest > pool.worst:
            pool.worst, pool.where = largest, _place(piece, start + flat, sample)
    return None


def first_unequal(piece: Numbers, sample: int) -> Difference | None:
    """The first place where integers or booleans differ."""
    if torch.equal(piece.want, piece.got):
        return None
    want, got = piece.want.reshape(-1).to(torch.int64), piece.got.reshape(-1).to(torch.int64)
    flat = int((want != got).nonzero()[0])
    place = _place(piece, flat, sample)
    return Difference(reason=f"{int(got[flat])} where eager gives {int(want[flat])} at {place}", where=place)


def _place(piece: Numbers, flat: int, sample: int) -> str:
    index = unravel(flat, piece.want.shape)
    return at(piece.name, sample, index[:-1] if piece.paired else index)


def _chunks(
    piece: Numbers, true: torch.Tensor | None
) -> Iterator[tuple[int, torch.Tensor, torch.Tensor, torch.Tensor | None]]:
    """(start, eager, candidate, truth) in float64, where float64 can be computed."""
    home = (true if true is not None else piece.want).device
    home = home if home.type in {"cpu", "cuda"} or true is not None else torch.device("cpu")
    want, got = piece.want.reshape(-1), piece.got.reshape(-1)
    flat = None if true is None else true.reshape(-1)
    range_of = torch.finfo(piece.want.dtype)
    for start in range(0, want.numel(), CHUNK):
        part = slice(start, start + CHUNK)
        truth = None if flat is None else flat[part].to(torch.float64).clamp(range_of.min, range_of.max)
        yield start, want[part].to(home, torch.float64), got[part].to(home, torch.float64), truth


def _stray(want: torch.Tensor, got: torch.Tensor) -> tuple[int, float, float] | None:
    """The first position where only one side is NaN, +inf or -inf."""
    if bool((torch.isfinite(want) & torch.isfinite(got)).all()):
        return None
    lost = ~torch.isfinite(want) | ~torch.isfinite(got)
    unequal = lost & (want != got) & ~(want.isnan() & got.isnan())
    if not bool(unequal.any()):
        return None
    flat = int(unequal.nonzero()[0])
    return flat, float(want[flat]), float(got[flat])


def _sum(pool: Pool, want: torch.Tensor, got: torch.Tensor, true: torch.Tensor | None) -> tuple[float, int]:
    """Adds one chunk to the sums; the largest |candidate - truth| and its position."""
    keep = _counted(want, got)
    want, got = (torch.where(keep, side, 0.0) for side in (want, got))
    gap = got - want
    base = want if true is None else torch.where(keep, true, 0.0)
    off, own = (gap, torch.zeros_like(gap)) if true is None else (got - base, want - base)
    far, flat = _beyond(off.abs(), want, pool).max(0)
    sums = [side.square().sum() for side in (off, own, base, gap, want)]
    figures = torch.stack([*sums, keep.sum().double(), own.abs().max(), gap.abs().max(), far, flat.double()]).tolist()
    pool.off2 += figures[0]
    pool.own2 += figures[1]
    pool.norm2 += figures[2]
    pool.gap2 += figures[3]
    pool.size2 += figures[4]
    pool.count += int(figures[5])
    pool.own_worst = max(pool.own_worst, figures[6])
    pool.max_abs = max(pool.max_abs, figures[7])
    return figures[8], int(figures[9])


def _beyond(off: torch.Tensor, want: torch.Tensor, pool: Pool) -> torch.Tensor:
    """What of each distance counts for a single number: all of it beside the truth, else what exceeds its own last bits."""
    if pool.true or not pool.dtype.is_floating_point:
        return off
    return (off - LAST_BITS * torch.finfo(pool.dtype).eps * want.abs()).clamp_min(0)


def _counted(want: torch.Tensor, got: torch.Tensor) -> torch.Tensor:
    """Which numbers count: finite ones, without a mask's value, beside which every other number would be nothing."""
    keep = torch.isfinite(want)
    finite = torch.where(keep, want, 0.0)
    for value in torch.stack([finite.min(), finite.max()]).tolist():
        masked = (want == value) & (got == value)
        if abs(value) >= SENTINEL and int(masked.sum()) > 1:
            keep &= ~masked
    return keep
