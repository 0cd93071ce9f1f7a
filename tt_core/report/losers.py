"""Why a candidate was not chosen: one short line each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from tt_core.report.words import clean, clip, percent, span
from tt_core.values import EAGER, valued

Data = Mapping[str, Any]
SENTENCE = 160
"""Characters of a foreign sentence; the JSON has all of it."""
_NOTABLE = 0.02
_FAR = 0.1
_STAGES = {
    "build": "build failed: ",
    "check": "wrong result: ",
    "race": "failed while timed: ",
    "limit": "over the limit: ",
    "keeps": "",
}


@valued
class Other:
    """A candidate that was not chosen; exactly one of `speedup` and a failure's `reason` is there."""

    backend: str
    verdict: str
    speedup: float | None = None
    noise: float = 0.0
    reason: str = ""


def is_eager(candidate: Data) -> bool:
    """Whether a candidate is the original forward."""
    return bool(candidate["name"] == EAGER.name)


def other(trial: Data, own: Data | None, *, chosen: Data) -> Other:
    """What became of a candidate beside the chosen one.

    Args:
        trial: the candidate's trial.
        own: the timing of the chosen candidate, where it has one.
        chosen: the chosen candidate.
    """
    backend = clean(trial["candidate"]["text"])
    failure, timing = trial["failure"], trial["timing"]
    if failure:
        return Other(backend=backend, verdict="failed", reason=_failed(failure, trial["candidate"]["name"]))
    noise = timing["noise"] if timing["undecided"] or timing["noise"] > _NOTABLE else 0.0
    return Other(backend=backend, verdict=_lost(timing, own, chosen), speedup=timing["speedup"], noise=noise)


def _lost(timing: Data, own: Data | None, chosen: Data) -> str:
    """Why a candidate that was timed was not chosen."""
    low, high = timing["interval"]["low"], timing["interval"]["high"]
    if timing["undecided"] and abs(timing["speedup"] - 1.0) > _FAR:
        return "undecided"  # a tie all the same, but nobody would call it one
    if timing["undecided"] or low <= 1.0 <= high:
        return "tie"
    if low > 1.0:
        return "slower"
    if is_eager(chosen) or own is None:
        return "gain too small"
    return "the chosen one is faster" if timing["speedup"] < own["speedup"] else "tie with the plainer one chosen"


def _failed(failure: Data, name: str) -> str:
    reason, kind = clean(failure["reason"]).removeprefix(f"{name} "), clean(failure["kind"])
    raised = f"{kind}: " if kind.endswith(("Error", "Exception")) else ""
    start = _STAGES.get(failure["stage"], f"{clean(failure['stage'])} failed: ") + raised
    if kind == "BuildRefusedError":
        start = "refused: "
    elif failure["stage"] == "check" and raised:
        start = f"failed when it was called: {raised}"
    hint = f" ({clean(failure['hint'])})" if failure["hint"] else ""
    return clip(f"{start}{reason or kind}{hint}", SENTENCE)


def sentence(same: Sequence[Other]) -> str:
    """`name: 0.97x, tie (noise 4 %)`, or `name: build failed: ...`."""
    first = same[0]
    speeds = [other.speedup for other in same if other.speedup is not None]
    if not speeds:
        return f"{first.backend}: {first.reason}"
    noise = max(other.noise for other in same)
    tail = f" (noise {percent(noise)})" if noise else ""
    return f"{first.backend}: {span(speeds)}, {_verdicts([other.verdict for other in same])}{tail}"


def _verdicts(verdicts: Sequence[str]) -> str:
    """One verdict, or `tie (10), slower (2)` where folded units differ."""
    counted = Counter(verdicts).most_common()
    return counted[0][0] if len(counted) == 1 else ", ".join(f"{verdict} ({n})" for verdict, n in counted)
