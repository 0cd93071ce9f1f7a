"""A candidate and a unit's calls become a built, or a failure with its reason."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch

from tt_core.contain import Caught, attempt
from tt_core.plugins import Plugins
from tt_core.values import Backend, Built, Calls, Candidate, Failure, Keeps, Limits, Unit, covers_of, evolve, frozen


@frozen
class Chain:
    """A built with the seconds its build took, and the chain's parts, innermost first."""

    built: Built
    seconds: float
    parts: tuple[Built, ...]


def build(
    plugins: Plugins,
    candidate: Candidate,
    unit: Unit,
    calls: Calls,
    device: torch.device,
    limits: Limits,
    now: Callable[[], float],
) -> Chain | Failure:
    """Builds every step of `candidate`, innermost first.

    Args:
        plugins: whom to ask.
        candidate: the chain.
        unit: the unit; its module runs the original forward.
        calls: key, sizes, samples and facts.
        device: where the unit is.
        limits: seconds, bytes and folder; an overrun is a failure, noticed at the end of the build.
        now: the run's clock, seconds.

    Returns:
        The composed built, or the failure of the first step that failed; inner parts are closed then.
    """
    backends = [plugins.named(name) for name, _ in candidate.steps]
    missing = _lost(backends, calls)
    if missing:
        what = " and ".join(sorted(keep.value for keep in missing))
        return failure("keeps", candidate, unit, calls, f"{candidate.name} does not keep {what}", kind="keeps")
    began = now()
    parts = _parts(plugins, candidate, unit, calls, device, limits)
    seconds = now() - began
    if isinstance(parts, Failure):
        return parts
    if seconds > limits.seconds:
        close(parts)
        reason = f"the build took {seconds:.0f} s, which exceeded the limit of {limits.seconds:.0f} s"
        hint = "raise settings.build_timeout"
        return failure("limit", candidate, unit, calls, reason, kind="timeout", hint=hint)
    built = compose(parts)
    if limits.bytes is not None and (built.bytes_held or 0) > limits.bytes:
        close(parts)
        reason = f"it holds {built.bytes_held} bytes, the limit is {limits.bytes}"
        return failure("limit", candidate, unit, calls, reason, kind="memory", hint="raise settings.build_bytes")
    return Chain(built=built, seconds=seconds, parts=tuple(parts))


def _lost(backends: Sequence[Backend], calls: Calls) -> frozenset[Keeps]:
    """Behaviours of the unit that some step of the chain does not keep."""
    return calls.facts.needs - frozenset.intersection(*(backend.keeps for backend in backends))


def _parts(
    plugins: Plugins, candidate: Candidate, unit: Unit, calls: Calls, device: torch.device, limits: Limits
) -> list[Built] | Failure:
    parts: list[Built] = []
    steps = list(candidate.steps)
    if plugins.named(steps[0][0]).layer:
        steps.insert(0, ("eager", ()))  # a layer on its own stands on the original forward
    try:
        for name, options in steps:
            inner = parts[-1] if parts else None
            answer = plugins.build(name, unit, calls, device, dict(options), inner, limits)
            if isinstance(answer, Caught):
                close(parts)
                return refused("build", candidate, unit, calls, answer)
            parts.append(answer)
    except BaseException:
        close(parts)
        raise
    return parts


def compose(parts: Sequence[Built]) -> Built:
    """The outermost built with the claims of the whole chain: the weakest of each.

    Args:
        parts: innermost first.
    """
    outer = parts[-1]
    closing = [_once(part.close) for part in parts]  # whoever installs a chain also closes its inner parts one by one
    known = [part.bytes_held for part in parts if part.bytes_held is not None]
    return evolve(
        outer,
        covers=covers_of([part.covers for part in parts]),
        weights=max(part.weights for part in parts),
        concurrent=all(part.concurrent for part in parts),
        fork_safe=all(part.fork_safe for part in parts),
        needs_strides=any(part.needs_strides for part in parts),
        bytes_held=sum(known) if known else None,
        notes=tuple(note for part in parts for note in part.notes),
        close=lambda: _run(reversed(closing)),
        inner=_nested(parts[:-1], closing[:-1]),
    )


def _nested(parts: Sequence[Built], closing: Sequence[Callable[[], None]]) -> Built | None:
    """Inner parts, each with those inside it."""
    inner: Built | None = None
    for part, close_once in zip(parts, closing, strict=True):
        inner = evolve(part, close=close_once, inner=inner)
    return inner


def _once(call: Callable[[], None]) -> Callable[[], None]:
    left = [call]
    return lambda: left.pop()() if left else None


def _run(calls: Iterable[Callable[[], None]]) -> None:
    for call in calls:
        attempt(call, where="close")


def close(parts: Sequence[Built]) -> None:
    """Closes a chain, outermost first; what fails to close is forgotten."""
    _run(part.close for part in reversed(parts))


def refused(stage: str, candidate: Candidate, unit: Unit, calls: Calls, caught: Caught) -> Failure:
    """What a plugin raised, as a failure of `stage`."""
    return failure(
        stage, candidate, unit, calls, caught.reason, kind=caught.kind, hint=caught.hint, detail=caught.detail
    )


def failure(
    stage: str,
    candidate: Candidate,
    unit: Unit,
    calls: Calls,
    reason: str,
    *,
    kind: str,
    hint: str = "",
    detail: str = "",
) -> Failure:
    """A failure of one trial."""
    return Failure(
        stage=stage,
        candidate=candidate,
        unit=unit.path,
        key=calls.key,
        kind=kind,
        reason=reason,
        hint=hint,
        detail=detail,
    )
