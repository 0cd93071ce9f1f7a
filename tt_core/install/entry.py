"""What is installed on one unit for one call key, and the callable that serves it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from tt_core import trees
from tt_core.guards import Claim, Why, compile_guard
from tt_core.guards.around import forks
from tt_core.install.counts import Count
from tt_core.values import Built, CallKey, Calls, Candidate, Facts, Shapes, Tolerance, Unit, Verdict, frozen

ERRORS_KEPT = 3
"""A built that raised this often is taken out of service."""


@frozen
class Entry:
    """One built on one unit.

    Attributes:
        unit: the unit.
        key: the call key it was built for.
        built: what serves the calls.
        covers: the sizes it may serve; None: any under its key.
        facts: what eager runs of the unit showed.
        candidate: what `built` was built by.
        calls: recorded calls to build from again, without results; None for what never goes stale.
        tolerance: what it was checked with.
        verdict: how far it was from the truth, where that is known; kept for the file that it may be saved in.
    """

    unit: Unit
    key: CallKey
    built: Built
    covers: Shapes | None
    facts: Facts
    candidate: Candidate
    calls: Calls | None = None
    tolerance: Tolerance = Tolerance()
    verdict: Verdict | None = None

    @property
    def claim(self) -> Claim:
        """What a guard holds the built to."""
        return Claim(
            key=self.key,
            covers=self.covers,
            weights=self.built.weights,
            facts=self.facts,
            needs_strides=self.built.needs_strides,
            fork_safe=self.built.fork_safe,
        )


class MovedError(Exception):
    """The weights are not those that the built was made from, as was seen while it ran: the original is to answer."""


class Route:
    """An entry in service: its guard, the callable that serves, its counts. `guard` and `serve` are swapped as it goes.

    On a device `serve` asks, once the work is launched, whether the weights are those that the built was made from: inside of
    a built that gives the host time meanwhile, else behind it. If not it raises `MovedError`, and the original runs.

    Where `again`, the guard is asked once more behind that question, while the device computes: a large model's weights
    drive the guard's records out of the nearest cache, and the next call is to find them near.

    Where `packs`, the guard's yes is the tuple of the call's tensors, and `serve` takes that instead of the arguments.
    """

    __slots__ = ("again", "entry", "errors", "explain", "guard", "hits", "packs", "retired", "serve", "watch")

    guard: Callable[..., Any]
    serve: Callable[..., Any]
    hits: Count | None

    def __init__(self, entry: Entry) -> None:
        built = entry.built
        packed, overlapped = (built.packed, built.overlapped) if entry.key.tensors else (None, None)
        self.packs = packed is not None or overlapped is not None
        compiled = compile_guard(entry.unit, entry.claim, pack=self.packs)
        self.entry = entry
        self.guard = compiled.accepts
        self.again = compiled.again
        self.watch = compiled.watch
        self.explain: Callable[[tuple[Any, ...], dict[str, Any]], tuple[Why, ...]] = compiled.explain
        self.errors = Count()
        self.retired = False
        self.hits = None
        ask = _asking(compiled.after)
        if overlapped is not None:
            packed = partial(overlapped, ask or _nothing)
        call = built.call if packed is None else packed
        call = call if built.concurrent else _one_at_a_time(call)
        if ask is not None and overlapped is None:
            call = _asked(call, ask)
        self.serve = call if entry.facts.aliases else self._first(call)

    def retire(self) -> None:
        """Serves nothing any more."""
        self.guard = _refuse
        self.retired = True

    def count(self, on: bool) -> None:
        """Starts to count hits from 0, or stops."""
        self.hits = Count() if on else None

    def _first(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Looks at the first result: a built that runs in inference mode must not hand inference tensors to others."""

        def look(*args: Any, **kwargs: Any) -> Any:
            result = call(*args, **kwargs)
            if torch.is_inference_mode_enabled() or _has_inference((args, kwargs)):
                return result
            foreign = _has_inference(result)
            self.serve = _normal(call) if foreign else call
            return _cloned(result) if foreign else result

        return look


def _asking(after: Callable[[], bool] | None) -> Callable[[], None] | None:
    """The question about the weights as one that raises; None where the guard asked all."""
    if after is None:
        return None

    def ask() -> None:
        if not after():
            raise MovedError

    return ask


def _asked(call: Callable[..., Any], ask: Callable[[], None]) -> Callable[..., Any]:
    """Asks behind a built that leaves no time for it."""

    def serve(*args: Any, **kwargs: Any) -> Any:
        result = call(*args, **kwargs)
        ask()
        return result

    return serve


def _nothing() -> None:
    """What is left to ask on a CPU, where the guard asked all."""


def _refuse(*_: Any, **__: Any) -> bool:
    """The guard of a route out of service."""
    return False


def _one_at_a_time(call: Callable[..., Any]) -> Callable[..., Any]:
    """Serialises threads; a forked child starts with a free lock, whoever held it in the parent."""
    held: list[Any] = [threading.RLock(), forks[0]]

    def serve(*args: Any, **kwargs: Any) -> Any:
        if held[1] != forks[0]:
            held[:] = [threading.RLock(), forks[0]]
        with held[0]:
            return call(*args, **kwargs)

    return serve


def _normal(call: Callable[..., Any]) -> Callable[..., Any]:
    def serve(*args: Any, **kwargs: Any) -> Any:
        result = call(*args, **kwargs)
        return result if torch.is_inference_mode_enabled() else _cloned(result)

    return serve


def _has_inference(tree: Any) -> bool:
    return any(tensor.is_inference() for tensor in trees.tensors(tree))


def _cloned(tree: Any) -> Any:
    return trees.mapped(lambda tensor: tensor.clone() if tensor.is_inference() else tensor, tree)
