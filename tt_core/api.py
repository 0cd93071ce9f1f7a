"""The calls of tt_core: arguments are checked, a session is made and run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from tt_core import clock, install, samples, session, state, survey
from tt_core.arguments import (
    as_patterns,
    as_plan,
    as_tolerance,
    check_depths,
    check_numbers,
    device_of,
    plan_problem,
)
from tt_core.errors import UsageError
from tt_core.plugins import Plugins
from tt_core.result import AutoTuneResult, Listener
from tt_core.running import Check, PlanLike, alone, running
from tt_core.session import Options, Recording, record
from tt_core.settings import Settings
from tt_core.strategy import Strategy
from tt_core.values import Cut, Tolerance, evolve

__all__ = ["Recording", "auto_tune", "inspect", "record", "refresh", "stale", "stats", "tune", "untune"]


def auto_tune(
    obj: Any,
    dataset: Any,
    *,
    device: torch.device | str | None = None,
    strategy: Strategy | None = None,
    strategies: Mapping[str, Strategy] | None = None,
    inference_function: Callable[[Any, Any], Any] | None = None,
    min_depth: int = 0,
    max_depth: int = 2,
    tie_tolerance: float = 0.02,
    time_budget: float | None = None,
    tolerance: Tolerance | float | None = None,
    check: Check | None = None,
    select: Sequence[str] | None = None,
    skip: Sequence[str] | None = None,
    backends: Sequence[str] | None = None,
    exclude: Sequence[str] | None = None,
    max_samples: int = 32,
    dynamic_shapes: Any = None,
    dry_run: bool = False,
    plan: PlanLike | None = None,
    progress: bool | Listener | None = None,
    settings: Settings | None = None,
) -> AutoTuneResult:
    """Makes an object's inference as fast as the installed backends can, keeps its results, and says what it did.

    Every installed backend is tried at every depth from `min_depth` to `max_depth`, each result compared with the
    original's, each cut raced end to end against the untuned object. The fastest correct cut is installed in place.
    When nothing is faster the object is untouched.

    Args:
        obj: an `nn.Module`, or any object that holds some (a pipeline).
        dataset: a Tensor, Mapping or `tt.Call` is one sample; a list, Dataset, DataLoader or iterator holds many. A
            tuple sample is positional arguments, a Mapping keyword arguments, `tt.Call(*args, **kwargs)` both.
        device: the tuning device; only checked, nothing is moved. None: where the object is.
        strategy: which candidates are tried; None: `default_strategy(device)`, fresh for each call key of each unit.
        strategies: strategies by pattern of a unit's path or class name, before `strategy`.
        inference_function: `inference_function(obj, sample)` runs one sample; None: the object is called.
        min_depth: the shallowest depth to try; 0 is the whole object.
        max_depth: the deepest depth to try.
        tie_tolerance: a difference in time of this share or less is none.
        time_budget: seconds after which no new depth is started; the depth in progress finishes.
        tolerance: loosens or tightens the check; a number is a limit on the relative L2 distance to eager.
        check: `check(expected, actual)` on the results of one pass, a list with one entry per sample; returning False
            or a sentence, or raising, is a veto.
        select: patterns of paths or class names of the units to tune; None: all.
        skip: patterns of units that stay eager.
        backends: names of backends to try; None: every one that keeps results.
        exclude: names of backends to leave out.
        max_samples: samples kept of the dataset.
        dynamic_shapes: axes of the object's inputs that may move, in `torch.export`'s own form: by parameter name, a
            dict from axis to `torch.export.Dim`. Widens what the object as a whole is built for; samples must lie inside.
        dry_run: only shows how many modules every depth would wrap and the memory that tuning it needs; nothing is
            built or changed.
        plan: a `tt.Plan`, what its `to_json` made, or the path of a JSON file with it: its cut is tried first, beside those
            of the search. A plan of another object, or with a backend that is not ready, is left out, and a note says so.
        progress: True shows progress on the terminal, a callable receives `tt.Progress` events, None: on a terminal.
        settings: rarer options.

    Returns:
        What was found; `result.model is obj`. `print(result)` shows the table.

    Raises:
        UsageError: an argument that cannot be used, before any work.
        KindError: an object or a sample of a kind that cannot be tuned.
        UnknownBackendError: an unknown backend name; the known ones are listed.
        SampleError: the object cannot run one of the samples.
        BusyError: another thread is tuning the object.
        StoreError: `plan` is no plan.
    """
    check_depths(min_depth, max_depth)
    check_numbers(tie_tolerance, time_budget, max_samples)
    where = device_of(obj, device)
    options = Options(
        device=where,
        strategy=strategy,
        strategies=dict(strategies or {}),
        min_depth=min_depth,
        max_depth=max_depth,
        tie_tolerance=tie_tolerance,
        time_budget=time_budget,
        tolerance=as_tolerance(tolerance),
        check=check,
        select=as_patterns("select", select),
        skip=as_patterns("skip", skip) or (),
        declared=session.declare(dynamic_shapes, obj),
        dry_run=dry_run,
        plan=as_plan(plan),
        settings=settings or Settings(),
    )
    with running(obj, dataset, options, inference_function, max_samples, backends, exclude, progress) as run:
        problem = "" if options.plan is None else plan_problem(run, options.plan, backends, exclude)
        if problem:
            run.notes.append(f"the plan was not tried: {problem}")
            run.options = evolve(options, plan=None)
        return session.auto_tune(run)


def tune(
    obj: Any,
    dataset: Any,
    *,
    units: int | Cut | Sequence[str] = 0,
    device: torch.device | str | None = None,
    strategy: Strategy | None = None,
    strategies: Mapping[str, Strategy] | None = None,
    inference_function: Callable[[Any, Any], Any] | None = None,
    tie_tolerance: float = 0.02,
    tolerance: Tolerance | float | None = None,
    check: Check | None = None,
    select: Sequence[str] | None = None,
    skip: Sequence[str] | None = None,
    backends: Sequence[str] | None = None,
    exclude: Sequence[str] | None = None,
    max_samples: int = 32,
    dynamic_shapes: Any = None,
    progress: bool | Listener | None = None,
    settings: Settings | None = None,
) -> AutoTuneResult:
    """Tunes given units of an object in place, without a search over depths.

    Args:
        obj: as in `auto_tune`; so are all arguments that are not named here.
        dataset: as in `auto_tune`.
        units: a depth, a `Cut` of `tt.inspect(obj, dataset)`, or paths of modules; 0 is the whole object.
        strategy: `OneBackendStrategy(b)` installs b wherever it is correct, also where it is not faster.

    Returns:
        What was found. Units where no candidate was chosen keep their original forward.

    Raises:
        UsageError, KindError, UnknownBackendError, SampleError, BusyError: as `auto_tune`.
    """
    check_numbers(tie_tolerance, None, max_samples)
    if isinstance(units, int) and units < 0:
        raise UsageError(f"units={units}: a depth is 0 (the whole object) or more")
    options = Options(
        device=device_of(obj, device),
        strategy=strategy,
        strategies=dict(strategies or {}),
        tie_tolerance=tie_tolerance,
        tolerance=as_tolerance(tolerance),
        check=check,
        select=as_patterns("select", select),
        skip=as_patterns("skip", skip) or (),
        declared=session.declare(dynamic_shapes, obj),
        settings=settings or Settings(),
    )
    with running(obj, dataset, options, inference_function, max_samples, backends, exclude, progress) as run:
        return session.tune(run, units)


def inspect(
    obj: Any,
    dataset: Any,
    *,
    inference_function: Callable[[Any, Any], Any] | None = None,
    max_samples: int = 32,
) -> survey.Inspection:
    """Which modules run, how often, how long, and with what calls. Leaves no trace on the object.

    A tuned object is looked at as it is without its tuning, which is back afterwards.

    Args:
        obj: as in `auto_tune`.
        dataset: as in `auto_tune`; never consumed twice, never changed.
        inference_function: `inference_function(obj, sample)` runs one sample; None: the object is called.
        max_samples: samples kept of the dataset.

    Returns:
        The inspection: `print(inspection.describe())`, `inspection.cut(depth)`, `inspection.to_json()`.

    Raises:
        UsageError, KindError, SampleError: as `auto_tune`.
    """
    samples.refuse(obj)
    feed = samples.read(dataset, obj, inference_function=inference_function, max_samples=max_samples)
    timer = clock.WallTimer(device_of(obj, None))
    with alone(obj), install.suspended(obj), torch.no_grad(), state.kept(obj):
        return survey.inspect(obj, feed, timer.now)


def untune(obj: Any) -> tuple[str, ...]:
    """Puts everything back, the very objects; returns the paths of the units that were tuned."""
    return install.untune(obj)


def stats(obj: Any, *, hits: bool | None = None) -> Mapping[str, install.UnitStats]:
    """How often each tuned unit ran its built, and how often it fell back to its original forward, by kind.

    Args:
        obj: the tuned object.
        hits: True starts counting hits from zero, False stops; None only reads. Falls are always counted.

    Returns:
        By unit path: `hits` (None while they are not counted) and `falls` by kind.
    """
    return install.stats(obj, hits=hits)


def stale(obj: Any) -> tuple[str, ...]:
    """Paths of tuned units whose weights no longer have the content that they were tuned with; reads all weights."""
    return install.stale(obj)


def refresh(
    obj: Any, *, tolerance: Tolerance | float | None = None, settings: Settings | None = None
) -> tuple[str, ...]:
    """Builds the stale units of a tuned object again, for the weights that they have now, without another search.

    Each is compared with its original forward on the calls that were recorded when it was tuned. A unit that cannot be
    built again, or is not right any more, is left on its original forward, with a `FallbackWarning` that says why.

    Args:
        obj: the tuned object. No call may be running.
        tolerance: as in `auto_tune`.
        settings: as in `auto_tune`; its plugins are asked beside the installed ones.

    Returns:
        Paths of the units that were built again.

    Raises:
        BusyError: another thread is tuning the object.
    """
    options = Options(device=device_of(obj, None), tolerance=as_tolerance(tolerance), settings=settings or Settings())
    plugins = Plugins.load(extra=options.settings.plugins)
    with alone(obj):
        return session.refresh(obj, options, plugins)
