"""What all parts of one tuning run share: the object, its dataset, the plugins, the clock, and what is open."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import torch

from tt_core.hookspecs import Timer
from tt_core.install import Installed
from tt_core.plugins import Plugins
from tt_core.result import Listener, Progress
from tt_core.samples import Feed
from tt_core.session.declared import Declared
from tt_core.session.planned import Planned
from tt_core.settings import Settings
from tt_core.strategy import Strategy, matching
from tt_core.values import Built, Candidate, DepthResult, Plan, Tolerance, Trial, Unit, evolve, frozen


@frozen
class Options:
    """The arguments of one run, checked. See `api.auto_tune` for their meaning."""

    device: torch.device
    strategy: Strategy | None = None
    strategies: Mapping[str, Strategy] = attrs.field(factory=dict)
    min_depth: int = 0
    max_depth: int = 2
    tie_tolerance: float = 0.02
    time_budget: float | None = None
    tolerance: Tolerance = Tolerance()
    check: Callable[[Any, Any], Any] | None = None
    select: Sequence[str] | None = None
    skip: Sequence[str] = ()
    declared: Declared | None = None
    dry_run: bool = False
    plan: Plan | None = None
    settings: Settings = Settings()


@attrs.define(kw_only=True, eq=False)
class Run:
    """One tuning run: the only mutable thing, owned by the session."""

    obj: Any
    feed: Feed
    options: Options
    plugins: Plugins
    timer: Timer
    offered: tuple[Candidate, ...]
    default: Strategy
    listeners: tuple[Listener, ...] = ()
    began: float = 0.0
    trials: list[Trial] = attrs.field(factory=list)
    notes: list[str] = attrs.field(factory=list)
    depths: list[DepthResult] = attrs.field(factory=list)
    """What is known about each cut so far: what a run that breaks off can still tell."""
    feed_writes: bool = True
    """Whether a pass changes the object's state, so that it must be put back before every pass."""
    planned: Planned | None = None
    """The plan whose cut is being tuned: its candidates are tried instead of the strategies'."""
    strange: tuple[str, ...] = ()
    """Calls that this plan does not know."""
    switched: list[Installed] = attrs.field(factory=list)
    """What was installed, written down before each change: all of it is switched off when the run breaks off."""
    _opened: dict[int, Built] = attrs.field(factory=dict)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the run began."""
        return self.timer.now() - self.began

    def tell(self, stage: str, **fields: Any) -> None:
        """Sends a progress event to every listener."""
        if self.listeners:
            event = Progress(stage=stage, elapsed_s=self.elapsed_s, **fields)
            for listener in self.listeners:
                listener(event)

    def strategy_for(self, unit: Unit) -> Strategy:
        """The strategy of one unit: the plan's, by pattern, the run's, or the default one, fresh each time it is asked for."""
        return self.own_strategy(unit) or self.options.strategy or evolve(self.default)

    def own_strategy(self, unit: Unit) -> Strategy | None:
        """The strategy that the plan in work or the caller's `strategies` give a unit by its path or class."""
        if self.planned is not None:
            return self.planned.strategies[unit.path]
        found: Strategy | None = matching(unit.path, type(unit.module).__name__, self.options.strategies)
        return found

    def own_threads(self, candidate: Candidate) -> bool:
        """Whether some step of a chain computes in a thread pool of its own."""
        return any(self.plugins.named(name).own_threads for name, _ in candidate.steps)

    def wants(self, unit: Unit) -> bool:
        """Whether the caller's `select` and `skip` leave a unit to tune."""
        kind = type(unit.module).__name__
        select, skip = self.options.select, self.options.skip
        chosen = select is None or matching(unit.path, kind, dict.fromkeys(select, True))
        return bool(chosen) and not matching(unit.path, kind, dict.fromkeys(skip, True))

    def done(self, trial: Trial) -> None:
        """Notes a trial and tells the plugins."""
        self.trials.append(trial)
        self.plugins.trial_done(trial)

    def opened(self, built: Built) -> None:
        """Remembers a built that must be closed unless it is installed in the end."""
        self._opened[id(built)] = built

    def close_all_but(self, kept: Sequence[Built]) -> None:
        """Closes every built of the run that is not in `kept`."""
        from tt_core.build import close

        keep = {id(built) for built in kept}
        for key in [key for key in self._opened if key not in keep]:
            close([self._opened.pop(key)])
