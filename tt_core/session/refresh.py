"""Stale units built again, for the weights that they have now, from the calls that stayed with them."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import nn

from tt_core import install, samples, state
from tt_core.contain import Caught, attempt
from tt_core.errors import FallbackWarning
from tt_core.install import Dispatcher, Entry
from tt_core.plugins import Plugins
from tt_core.samples.facts import watched
from tt_core.session.group import again
from tt_core.session.run import Options, Run
from tt_core.strategy import Strategy
from tt_core.truth import truth_of
from tt_core.values import Calls, Failure, Unit, evolve

_AGAIN = "tune again"


def refresh(obj: Any, options: Options, plugins: Plugins) -> tuple[str, ...]:
    """See `api.refresh`."""
    run = Run(
        obj=obj,
        feed=samples.Feed(samples=()),
        options=options,
        plugins=plugins,
        timer=plugins.timer(options.device),
        offered=(),
        default=Strategy(),
    )
    modules = {found.path: found.module for found in state.find(obj)}
    return tuple(path for path in install.stale(obj) if _renewed(run, path, modules[path]))


def _renewed(run: Run, path: str, module: nn.Module) -> bool:
    """Whether a stale unit has a dispatcher again; a warning tells what is missing."""
    with torch.no_grad(), state.kept(run.obj):
        problems = _refresh(run, vars(module)["forward"])
    if problems:
        title = f"unit {path!r}" if path else f"the tuned {type(module).__name__}"
        warnings.warn(f"{title} was not built again: {'; '.join(problems)}", FallbackWarning, stacklevel=5)
    return isinstance(vars(module).get("forward"), Dispatcher)


def _refresh(run: Run, dispatcher: Dispatcher) -> list[str]:
    """Replaces one dispatcher; what could not be built again, as sentences. As before when it breaks off."""
    dispatcher.off()
    unit = evolve(dispatcher.unit, twin="")  # the program may have changed too: the backend has to look
    try:
        snapshot = state.take(unit.module)
        made = [_entry(run, unit, route.entry, snapshot) for route in dispatcher.routes]
        entries = [one for one in made if isinstance(one, Entry)]
    except BaseException:
        run.close_all_but([])
        dispatcher.on()
        raise
    install.undo(dispatcher)
    run.close_all_but([entry.built for entry in entries])
    if entries:
        install.install(entries)
    return [one for one in made if isinstance(one, str)]


def _entry(run: Run, unit: Unit, old: Entry, snapshot: state.Snapshot) -> Entry | str:
    """The new entry of one call key, or why there is none."""
    why = _why_not(run, unit, old)
    calls = why or _observed(run, unit, old.calls)
    snapshot.restore()
    if isinstance(calls, str):
        return calls
    if isinstance(calls, Caught):
        return f"its original forward does not run the recorded calls: {calls.kind}: {calls.reason}; {_AGAIN}"
    made = again(run, unit, calls, old, snapshot)
    if isinstance(made, Entry):
        return made
    assert isinstance(made.outcome, Failure)
    return f"{made.candidate}: {made.outcome.reason}"


def _why_not(run: Run, unit: Unit, old: Entry) -> str:
    missing = [name for name, _ in old.candidate.steps if name not in run.plugins.backends]
    if missing:
        return f"backend {missing[0]!r} is not there any more"
    if old.calls is None:
        return f"no calls were recorded for it: {_AGAIN}"
    if unit.module.training != old.key.ambient.training:
        return "its training flag is not that of the recorded calls: call .eval() or .train() first"
    return ""


def _observed(run: Run, unit: Unit, calls: Calls | None) -> Calls | Caught:
    """The recorded calls with what the original forward makes of them now."""
    assert calls is not None

    def observed() -> Calls:
        given = [sample.call for sample in calls.samples]
        seen, facts = watched(unit, given, seed=run.options.settings.seed, like=None)
        renewed = tuple(
            evolve(sample, expected=expected, truth=truth_of(unit, sample.call, expected))
            for sample, expected in zip(calls.samples, seen, strict=True)
        )
        return evolve(calls, samples=renewed, facts=facts)

    return attempt(observed, where=f"eager run of {unit.path!r}")
