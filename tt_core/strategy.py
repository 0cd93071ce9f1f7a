"""Strategies: which candidates are tried, in which order, and how a trial is scored. Pure, but for `default_strategy`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs
import torch

from tt_core.errors import UsageError
from tt_core.plugins import Plugins
from tt_core.values import EAGER, Backend, Calls, Candidate, Refusal, Timing, Unit, frozen

Wanted = str | Candidate


def _as_wanted(wanted: Iterable[Wanted] | None) -> tuple[Wanted, ...] | None:
    return None if wanted is None else tuple(wanted)


def _single(wanted: Wanted) -> tuple[Wanted, ...] | None:
    return (wanted,)


@attrs.frozen(eq=False)
class Strategy:
    """Which candidates are tried, plainer first, and how their timings are scored.

    Attributes:
        wanted: backend names or candidates; None: everything that runs on the device and keeps results.
        refused: what does not take part, where it is known already.
    """

    wanted: tuple[Wanted, ...] | None = attrs.field(default=None, converter=_as_wanted)
    refused: tuple[Refusal, ...] = attrs.field(default=(), kw_only=True)

    must_win = True
    """Whether a candidate must beat eager to be installed."""
    stops_at_first = False
    """Whether the first candidate that wins ends the search."""
    asked = "it was asked for by name"
    """Why a candidate is installed that need not win: for the report."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the wanted candidates in order, option variants under one name."""
        named = [wanted.name if isinstance(wanted, Candidate) else wanted for wanted in self.wanted or ()]
        return tuple(dict.fromkeys(named))

    def candidates(  # a strategy of one's own may look at unit and calls
        self,
        unit: Unit,  # noqa: ARG002
        calls: Calls,  # noqa: ARG002
        offered: Sequence[Candidate],
    ) -> Sequence[Candidate]:
        """What to try on one unit and key, eager first.

        Args:
            unit: the unit.
            calls: what is known about its calls.
            offered: everything that runs on the device, in the order of preference.
        """
        if self.wanted is None:
            return offered
        picked = [one for wanted in self.wanted for one in _matching(wanted, offered)]
        return tuple(dict.fromkeys([EAGER, *picked]))

    def score(self, timing: Timing) -> float:
        """What is compared between candidates: lower is better. The deciding ratio to eager."""
        return timing.interval.mid


@attrs.frozen(eq=False)
class HighestThroughputStrategy(Strategy):
    """Tries every candidate; the fastest that is correct and beats eager is chosen, the plainer one in a tie."""


@attrs.frozen(eq=False)
class FirstWinsStrategy(Strategy):
    """Tries candidates in the order given; the first that is correct and beats eager is chosen."""

    stops_at_first = True


@attrs.frozen(eq=False)
class OneBackendStrategy(Strategy):
    """Installs one backend wherever it is correct, also where it is not faster; the report says so.

    Args:
        backend: a backend name, or a `Candidate` with options or layers.
    """

    wanted: tuple[Wanted, ...] | None = attrs.field(converter=_single)

    must_win = False
    stops_at_first = True


def _matching(wanted: Wanted, offered: Sequence[Candidate]) -> list[Candidate]:
    """The offered variants of a name; a candidate with options is taken as it is."""
    if isinstance(wanted, Candidate):
        return [wanted]
    return [candidate for candidate in offered if candidate.name == wanted]


def assemble(backends: Sequence[Backend]) -> tuple[Candidate, ...]:
    """Every candidate that `backends` make: eager, then by (length of chain, -priority, name).

    Option variants stand in their declared order; layers are put over every capturable candidate. A layer over eager
    has the layer's own name.
    """
    plain = [backend for backend in backends if not backend.layer]
    layers = [backend for backend in backends if backend.layer]
    singles = [
        (-b.priority, b.name, Candidate.of(b.name, **dict(o))) for b in plain if b.name != "eager" for o in b.options
    ]
    singles += [(-b.priority, b.name, Candidate.of(b.name, **dict(o))) for b in layers for o in b.options]
    singles.sort(key=lambda one: one[:2])
    inner = [(p, c) for p, n, c in singles if _backend(backends, n).capturable and not _backend(backends, n).layer]
    chains = [
        (priority, layer.name, candidate.over(layer.name, **dict(options)))
        for priority, candidate in inner
        for layer in sorted(layers, key=lambda b: (-b.priority, b.name))
        for options in layer.options
    ]
    return (EAGER, *(c for _, _, c in singles), *(c for _, _, c in sorted(chains, key=lambda one: one[:2])))


def _backend(backends: Sequence[Backend], name: str) -> Backend:
    return next(backend for backend in backends if backend.name == name)


def default_strategy(
    device: torch.device | str,
    *,
    backends: Sequence[str] | None = None,
    exclude: Sequence[str] | None = None,
    plugins: Plugins | None = None,
) -> HighestThroughputStrategy:
    """Highest throughput over every backend that runs on `device` and keeps the results.

    Args:
        device: the tuning device: `"cpu"`, `"cuda:0"`, ...
        backends: only these names. LOSSY backends take part only when they are named here.
        exclude: names to leave out.
        plugins: an already loaded set of plugins.

    Returns:
        A strategy whose `names` are in order of preference and whose `refused` tells why the others do not take part.

    Raises:
        UnknownBackendError: a name that nobody declared; the message lists the known ones.
    """
    plugins = plugins or Plugins.load()
    ready, refused = plugins.ready(as_device(device), only=backends, exclude=tuple(exclude or ()))
    return HighestThroughputStrategy(assemble(ready), refused=refused)


@frozen
class BackendList:
    """What `tt.backends(device)` returns: what runs there, and why the rest does not."""

    device: torch.device
    ready: tuple[Backend, ...]
    refused: tuple[Refusal, ...]

    def __str__(self) -> str:
        """One line a backend, one sentence a refusal."""
        lines = [f"{b.name}: ready on {self.device}" for b in self.ready]
        lines += [f"{r.name}: {r.reason}" + (f" ({r.hint})" if r.hint else "") for r in self.refused]
        return "\n".join(lines)


def backends(device: torch.device | str = "cpu") -> BackendList:
    """The backends that run on `device`, and why the others do not."""
    where = as_device(device)
    ready, refused = Plugins.load().ready(where)
    ordered = tuple(sorted(ready, key=lambda b: (b.name != "eager", -b.priority, b.name)))
    return BackendList(device=where, ready=ordered, refused=refused)


def as_device(device: torch.device | str) -> torch.device:
    """`device` as torch.device.

    Raises:
        UsageError: torch does not know such a device.
    """
    try:
        return torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise UsageError(f"device {device!r}: {str(error).splitlines()[0]}") from error


def matching(path: str, kind: str, table: Mapping[str, Any]) -> Any:
    """The first entry of `table` whose pattern (shell style) matches a unit's path or class name; None: none does."""
    import fnmatch

    for pattern, value in table.items():
        if fnmatch.fnmatchcase(path, pattern) or fnmatch.fnmatchcase(kind, pattern):
            return value
    return None
