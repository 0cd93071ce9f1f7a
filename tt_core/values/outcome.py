"""How trials end, what a race measured, and what is installed."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from tt_core.values.backend import EAGER, Candidate
from tt_core.values.call import CallKey
from tt_core.values.kinds import frozen, valued
from tt_core.values.shapes import Shapes


@frozen
class Failure:
    """Why a trial ended without a timing.

    `stage`: "keeps", "build", "check", "race", "limit"; `kind`: exception class name, or a word of our own;
    `detail`: the traceback's text, for the log and the JSON report.
    """

    stage: str
    candidate: Candidate
    unit: str
    key: CallKey | None
    kind: str
    reason: str
    hint: str = ""
    detail: str = ""


@valued
class Verdict:
    """A check's answer.

    Attributes:
        ok: whether the candidate is right.
        reason: one sentence; empty when ok.
        error: the candidate's relative L2 distance to the truth, the worst over output tensors; None: nothing to compare.
        eager_error: eager's own distance for the same tensor.
        max_abs: the largest absolute difference to eager.
        rel_l2: the relative L2 distance to eager.
        where: the worst place: leaf path, row and sample.
        compared: how many leaves were compared.
        skipped: leaves of kinds that cannot be compared.
    """

    ok: bool
    reason: str = ""
    error: float | None = None
    eager_error: float | None = None
    max_abs: float | None = None
    rel_l2: float | None = None
    where: str = ""
    compared: int = 0
    skipped: tuple[str, ...] = ()

    @classmethod
    def no(cls, reason: str, where: str = "") -> Verdict:
        """A veto with its reason."""
        return cls(ok=False, reason=reason, where=where)


@valued
class Tolerance:
    """How far a candidate may be from eager; a factor loosens (above 1) or tightens the default check.

    Attributes:
        factor: multiplies every floating point limit of the check.
        relative: a fixed limit on the relative L2 distance to eager instead, for every float dtype.
    """

    factor: float = 1.0
    relative: float | None = None


@valued
class Interval:
    """An interval of a ratio with its point estimate (the median over rounds)."""

    low: float
    mid: float
    high: float


def quantile(values: Sequence[float], q: float) -> float:
    """The q-quantile, linear between order statistics (type 7 of Hyndman and Fan, 1996)."""
    ordered = sorted(values)
    at = (len(ordered) - 1) * q
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


@valued
class Timing:
    """What a race measured of one runner, raw; statistics are derived.

    Attributes:
        seconds: latency of each timed call (unit races) or pass (end-to-end races), in seconds, in order.
        blocks: the figure of each round, in seconds: the median of its block.
        ratios: per round, this runner's time divided by the baseline's: below 1 is faster.
        interval: the median of `ratios` and its 99 % order-statistic interval.
        first_call_s: seconds of the very first call, outside every block.
        build_s: seconds that the build took, 0 for eager.
        noise: median absolute relative deviation of the baseline's blocks in the same race.
        undecided: whether the race ended before the interval could decide; a tie because of noise.
        bytes_peak: peak memory of the runner's calls, None where unknown.
        items: items per call (batch size), None where unknown.
        calls: how many calls (or passes) were timed; more than `seconds` holds where a block had very many.
        device_s: seconds of the device a call, by its own events, with calls queued back to back: far below `median`, the
            host is what a lone call waits for. None on the CPU, end to end, and where it is not known.
    """

    seconds: tuple[float, ...]
    blocks: tuple[float, ...] = ()
    ratios: tuple[float, ...]
    interval: Interval
    first_call_s: float = 0.0
    build_s: float = 0.0
    noise: float = 0.0
    undecided: bool = False
    bytes_peak: int | None = None
    items: int | None = None
    calls: int = 0
    device_s: float | None = None

    @property
    def median(self) -> float:
        """Median latency in seconds."""
        return statistics.median(self.seconds)

    @property
    def p90(self) -> float:
        """90th percentile of the latency in seconds."""
        return quantile(self.seconds, 0.9)

    @property
    def p99(self) -> float | None:
        """99th percentile of the latency in seconds; None under 100 stamps."""
        return quantile(self.seconds, 0.99) if len(self.seconds) >= 100 else None  # noqa: PLR2004

    @property
    def minimum(self) -> float:
        """Lowest latency in seconds."""
        return min(self.seconds)

    @property
    def speedup(self) -> float:
        """How many times as fast as the baseline: 1 / the deciding ratio."""
        return 1.0 / self.interval.mid

    @property
    def items_per_s(self) -> float | None:
        """Items per second at the median latency, None where the batch size is unknown."""
        return None if self.items is None else self.items / self.median


@frozen
class Trial:
    """One candidate on one unit and call key, and how it ended."""

    unit: str
    key: CallKey
    candidate: Candidate
    verdicts: tuple[Verdict, ...] = ()
    outcome: Timing | Failure
    notes: tuple[str, ...] = ()

    @property
    def failed(self) -> bool:
        """Whether it ended in a failure."""
        return isinstance(self.outcome, Failure)


@valued
class Cut:
    """A set of units, none inside another, that together cover everything executed."""

    depths: tuple[int, ...]
    """The depths that give this very cut."""
    units: tuple[str, ...]


@frozen
class Choice:
    """The candidate chosen for one unit and call key, and why it."""

    unit: str
    key: CallKey
    candidate: Candidate
    covers: Shapes | None = None
    members: tuple[str, ...] = ()
    why: str = ""


@frozen
class Plan:
    """What is installed: a cut, and for each unit and call key the chosen candidate; without choices all stays eager.

    It is a recipe: `json.dump(plan.to_json(), file, indent=2)` makes a small file to be committed, and `tt.apply` or
    `tt.auto_tune(..., plan=...)` take it up again.
    """

    cut: Cut
    choices: tuple[Choice, ...]
    environment: Mapping[str, str] = attrs.field(factory=dict)
    weights_print: str = ""

    @property
    def eager(self) -> bool:
        """Whether every unit keeps its original forward."""
        return all(choice.candidate == EAGER for choice in self.choices)

    def to_json(self) -> dict[str, Any]:
        """The plan as plain JSON values: no samples, weights, host, user or folder names; long texts as hashes.

        Raises:
            StoreError: an argument of a call has no form, such as an instance of a class that a function defines.
        """
        from tt_core.forms import plan_form

        return plan_form(self)

    @classmethod
    def from_json(cls, given: Mapping[str, Any] | str | bytes) -> Plan:
        """The plan of what `to_json` made, or of the text of it.

        Raises:
            StoreError: it is no plan, malformed, or of a newer format; a class that its calls name is not imported.
        """
        from tt_core.forms import plan_of

        return plan_of(given)


@frozen
class DepthResult:
    """One cut, tuned and measured end to end.

    Attributes:
        cut: the cut.
        wrapped: units in the cut.
        tuned: units where a candidate other than eager was chosen.
        failed: units where every candidate but eager failed.
        timing: end-to-end passes in the race against untuned, None where it was not raced.
        sample_s: the lowest latency of each sample in any race, seconds.
        error: why the depth has no timing, or was not selected; empty where all went well.
        bytes_needed: memory that tuning the depth needs for recorded calls, None where unknown.
        origin: where the cut comes from: "plan" (the caller's), "cache" (an earlier run's), empty: from the search.
    """

    cut: Cut
    wrapped: int
    tuned: int = 0
    failed: int = 0
    timing: Timing | None = None
    sample_s: tuple[float, ...] = ()
    error: str = ""
    choices: tuple[Choice, ...] = ()
    bytes_needed: int | None = None
    origin: str = ""
