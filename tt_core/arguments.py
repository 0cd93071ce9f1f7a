"""The arguments of the public calls, checked before any work."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from tt_core import samples, state
from tt_core.errors import UsageError
from tt_core.plugins import Plugins
from tt_core.session import Declared, Run
from tt_core.store.recipes import read_recipe
from tt_core.strategy import Strategy, as_device, assemble, default_strategy
from tt_core.values import Candidate, Plan, Tolerance, evolve


def as_plan(given: Plan | Mapping[str, Any] | str | os.PathLike[str] | None) -> Plan | None:
    """The caller's plan: a value, what `to_json` made of one, or the path of a JSON file.

    Raises:
        UsageError: something else.
        StoreError: no plan, or a file that cannot be read.
    """
    if given is None or isinstance(given, Plan):
        return given
    if isinstance(given, Mapping):
        return Plan.from_json(given)
    if isinstance(given, str) and given.lstrip().startswith("{"):
        return Plan.from_json(given)
    if isinstance(given, str | os.PathLike):
        return read_recipe(Path(given))
    raise UsageError(f"plan={given!r}: a tt.Plan, what plan.to_json() made, or the path of a JSON file is needed")


def plan_problem(run: Run, plan: Plan, backends: Sequence[str] | None, exclude: Sequence[str] | None) -> str:
    """Why a plan cannot be tried on the object of a run, or here; empty where it can."""
    names = {name for found in state.find(run.obj) for name in (found.path, *found.aliases)}
    missing = [path for path in plan.cut.units if path not in names]
    if missing:
        more = f" and {len(missing) - 1} more of its units" if len(missing) > 1 else ""
        return f"the object has no module {missing[0]!r}{more}: the plan is of another object"
    strategy = Strategy([choice.candidate for choice in plan.choices])
    try:
        candidates(run.plugins, run.options.device, [strategy], backends, exclude)
    except UsageError as error:
        return str(error)
    return ""


def check_depths(min_depth: int, max_depth: int) -> None:
    """Depths are 0 or more, in order.

    Raises:
        UsageError: they are not.
    """
    if min_depth < 0:
        raise UsageError(f"min_depth={min_depth}: a depth is 0 (the whole object) or more")
    if min_depth > max_depth:
        raise UsageError(f"min_depth={min_depth} is deeper than max_depth={max_depth}: swap them")


def check_numbers(tie_tolerance: float, time_budget: float | None, max_samples: int) -> None:
    """Tolerance, budget and number of samples make sense.

    Raises:
        UsageError: one does not.
    """
    if not 0 <= tie_tolerance < 1:
        raise UsageError(f"tie_tolerance={tie_tolerance}: a share from 0 to below 1 is needed, such as 0.02")
    if time_budget is not None and not 0 < time_budget < math.inf:
        raise UsageError(f"time_budget={time_budget}: seconds above 0 are needed; leave it out for no limit")
    if max_samples < 1:
        raise UsageError(f"max_samples={max_samples}: at least one sample is needed")


def as_tolerance(given: Tolerance | float | None) -> Tolerance:
    """The caller's tolerance: a value, a number (limit on the relative L2 distance), or the default.

    Raises:
        UsageError: a number that is not above 0.
    """
    if given is None or isinstance(given, Tolerance):
        return given or Tolerance()
    if not given > 0:
        raise UsageError(f"tolerance={given!r}: a number above 0 (relative L2 distance to eager) or tt.Tolerance(...)")
    return Tolerance(relative=float(given))


def as_patterns(name: str, given: Sequence[str] | None) -> tuple[str, ...] | None:
    """Patterns of paths or class names; one string is one pattern.

    Raises:
        UsageError: something else than strings.
    """
    if given is None:
        return None
    listed = (given,) if isinstance(given, str) else tuple(given)
    wrong = [one for one in listed if not isinstance(one, str)]
    if wrong:
        raise UsageError(f"{name}={wrong[0]!r}: patterns of paths or class names are needed, such as 'encoder.*'")
    return listed


def device_of(obj: Any, given: torch.device | str | None) -> torch.device:
    """Where the object's parameters and buffers are.

    Raises:
        UsageError: several devices, or another one than `given`.
    """
    samples.refuse(obj)
    modules = [found.module for found in state.find(obj)]
    tensors = [t for m in modules for t in (*m.parameters(recurse=False), *m.buffers(recurse=False))]
    devices = sorted({tensor.device for tensor in tensors}, key=str)
    if len(devices) > 1:
        names = ", ".join(map(str, devices))
        raise UsageError(f"the object is on several devices ({names}): move it to one with .to(device), or tune a part")
    wanted = None if given is None else as_device(given)
    here = devices[0] if devices else wanted or torch.device("cpu")
    if wanted is not None and (wanted.type != here.type or wanted.index not in {None, here.index}):
        raise UsageError(f"device={str(wanted)!r}, but the object is on {here}: call obj.to({str(wanted)!r}) first")
    return here


def declared_feed(feed: samples.Feed, declared: Declared) -> samples.Feed:
    """The feed, its samples held to the declared axes; the warning about a single shape is off where axes may move.

    Raises:
        UsageError, KindError: a sample outside, or a declaration that does not fit the samples.
    """
    if feed.inference_function is None:  # else the root's calls are only known once they are recorded
        for index, sample in enumerate(feed.samples):
            declared.check(sample, f"sample {index}")
    return evolve(feed, notes=tuple(note for note in feed.notes if note != samples.ONE_SHAPE))


def candidates(
    plugins: Plugins,
    device: torch.device,
    asked: Sequence[Strategy],
    backends: Sequence[str] | None,
    exclude: Sequence[str] | None,
) -> tuple[Strategy, tuple[Candidate, ...]]:
    """The default strategy, and every candidate that some strategy of the run may name.

    Args:
        plugins: who takes part.
        device: the tuning device.
        asked: the caller's own strategies.
        backends: as in `api.auto_tune`.
        exclude: as in `api.auto_tune`.

    Raises:
        UnknownBackendError: a name that nobody declared.
        UsageError: a strategy names a backend that does not run here.
    """
    default = default_strategy(device, backends=backends, exclude=exclude, plugins=plugins)
    named = [part for strategy in asked for name in strategy.names for part in name.split("+")]
    for name in named:
        plugins.named(name)
    ready, refused = plugins.ready(device, only=backends, exclude=tuple(exclude or ()), lossy=named)
    missing = {refusal.name: refusal for refusal in refused}
    for name in named:
        if name not in {backend.name for backend in ready}:
            raise UsageError(f"backend {name!r} cannot be used: {missing[name].reason}. {missing[name].hint}".rstrip())
    return default, assemble(ready)
