"""What every tuning call needs around it: its parts made and checked, one tuning at a time, the object's own forwards."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tt_core import clock, install, report, samples, state
from tt_core.arguments import candidates, declared_feed
from tt_core.plugins import Plugins
from tt_core.result import Listener
from tt_core.session import Options, Run
from tt_core.values import Plan

Check = Callable[[Any, Any], Any]
PlanLike = Plan | Mapping[str, Any] | str | os.PathLike[str]
"""A plan, what its `to_json` made, or the path of a JSON file with it."""


@contextlib.contextmanager
def running(
    obj: Any,
    dataset: Any,
    options: Options,
    inference_function: Callable[[Any, Any], Any] | None,
    max_samples: int,
    backends: Sequence[str] | None,
    exclude: Sequence[str] | None,
    progress: bool | Listener | None,
) -> Iterator[Run]:
    """Everything that a session needs, checked before any work; one tuning at a time in the process."""
    plugins = Plugins.load(extra=options.settings.plugins)
    asked = [one for one in (options.strategy, *options.strategies.values()) if one is not None]
    timer = plugins.timer(options.device)  # first: what it refuses must be among the refusals
    default, offered = candidates(plugins, options.device, asked, backends, exclude)
    feed = samples.read(dataset, obj, inference_function=inference_function, max_samples=max_samples)
    if options.declared is not None:
        feed = declared_feed(feed, options.declared)
    with alone(obj), report.listening(progress) as listener, install.suspended(obj) as earlier:
        yield Run(
            obj=obj,
            feed=feed,
            options=options,
            plugins=plugins,
            timer=timer,
            offered=offered,
            default=default,
            listeners=() if listener is None else (listener,),
        )
        if not options.dry_run:
            earlier.end()


def alone(obj: Any) -> contextlib.AbstractContextManager[None]:
    """One tuning at a time in the process, one thread at a time on an object."""
    return clock.tuning(obj, *(found.module for found in state.find(obj)))
