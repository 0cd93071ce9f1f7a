"""Plans taken up again: `tt.apply`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tt_core import session
from tt_core.arguments import as_plan, as_tolerance, check_numbers, device_of, plan_problem
from tt_core.errors import UsageError
from tt_core.result import AutoTuneResult, Listener
from tt_core.running import Check, PlanLike, running
from tt_core.session import Options
from tt_core.settings import Settings
from tt_core.values import Tolerance

__all__ = ["apply"]


def apply(
    obj: Any,
    plan: PlanLike,
    dataset: Any,
    *,
    device: torch.device | str | None = None,
    inference_function: Callable[[Any, Any], Any] | None = None,
    tie_tolerance: float = 0.02,
    tolerance: Tolerance | float | None = None,
    check: Check | None = None,
    max_samples: int = 32,
    progress: bool | Listener | None = None,
    settings: Settings | None = None,
) -> AutoTuneResult:
    """Takes up a plan without a search: builds and checks what it chose, and installs it where it still is faster.

    For each unit and call key of the plan's cut only the chosen candidate is built. It has to be correct; whether the cut
    is installed is decided end to end, as in `auto_tune`, by a race against the untuned object. Calls of the dataset that
    the plan does not know stay eager, and a note says which.

    Args:
        obj: as in `auto_tune`; so are all arguments that are not named here.
        plan: a `tt.Plan`, what its `to_json` made, or the path of a JSON file with it.
        dataset: as in `auto_tune`.

    Returns:
        What was found; the headline says why nothing was installed where that is so.

    Raises:
        StoreError: `plan` is no plan, or its file cannot be read.
        UsageError: the object does not have, or the dataset does not run, a unit of the plan; a backend of the plan is
            not ready here. Before anything is built.
        KindError, UnknownBackendError, SampleError, BusyError: as `auto_tune`.
    """
    check_numbers(tie_tolerance, None, max_samples)
    given = as_plan(plan)
    if given is None:
        raise UsageError("plan=None: a tt.Plan, what plan.to_json() made, or the path of a JSON file is needed")
    options = Options(
        device=device_of(obj, device),
        tie_tolerance=tie_tolerance,
        tolerance=as_tolerance(tolerance),
        check=check,
        plan=given,
        settings=settings or Settings(),
    )
    with running(obj, dataset, options, inference_function, max_samples, None, None, progress) as run:
        problem = plan_problem(run, given, None, None)
        if problem:
            raise UsageError(f"the plan cannot be applied: {problem}")
        return session.apply(run, given)
