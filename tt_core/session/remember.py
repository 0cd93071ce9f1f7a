"""Plans of earlier runs: when one is taken up, and when one is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from tt_core import state, survey, trees
from tt_core.environment import environment
from tt_core.errors import StoreError
from tt_core.session.depths import LATE
from tt_core.session.run import Run
from tt_core.store.cache import Cache, name_of, open_cache
from tt_core.strategy import Strategy
from tt_core.values import EAGER, Call, DepthResult, Plan, Timing, Trial, frozen

AGAIN = "remembered from an earlier run; settings.cache='refresh' searches again"


@frozen
class Memory:
    """What is remembered about runs like this one.

    Attributes:
        cache: where the plan of this run is kept; None: it is not.
        name: of the entry.
        plan: what an earlier run found; None: nothing, or it is not asked for.
    """

    cache: Cache | None = None
    name: str = ""
    plan: Plan | None = None

    def keep(self, run: Run, plan: Plan | None, depths: Sequence[DepthResult]) -> None:
        """Remembers what a whole search found, unless the next one may well find something else."""
        if self.cache is None or plan is None or _unsure(plan, depths, run.trials):
            return
        try:
            self.cache.write(self.name, plan)
        except StoreError as error:
            run.notes.append(f"the plan is not remembered: {error}")


def recall(run: Run, inspection: survey.Inspection) -> Memory:
    """What is remembered about runs like this one; nothing where such runs cannot be told from others."""
    if run.options.settings.cache == "off" or not _nameable(run):
        return Memory()
    cache, why = open_cache()
    if cache is None:
        run.notes += [why] if why else []
        return Memory()
    name = name_of(_parts(run, inspection))
    plan = None if run.options.settings.cache == "refresh" else cache.read(name)
    return Memory(cache=cache, name=name, plan=plan if plan is not None and _able(run, plan) else None)


def _unsure(plan: Plan, depths: Sequence[DepthResult], trials: Sequence[Trial]) -> bool:
    """Whether time ran out, or nothing won because of noise, or because every candidate failed: what is missing may be
    there tomorrow.
    """
    if any(depth.error == LATE for depth in depths):
        return True
    raced = [trial.outcome for trial in trials if isinstance(trial.outcome, Timing)]
    noisy = any(one.undecided for one in (*raced, *(depth.timing for depth in depths)) if one is not None)
    return plan.eager and (noisy or not raced)


def _nameable(run: Run) -> bool:
    """Whether all that decides is known by name: a check or strategy of the caller's own is code."""
    options = run.options
    asked = [one for one in (options.strategy, *options.strategies.values()) if one is not None]
    own = [one for one in asked if type(one).__module__ != Strategy.__module__]
    return options.check is None and not own and any(one != EAGER for one in run.offered)


def _able(run: Run, plan: Plan) -> bool:
    """Whether every backend of a plan takes part in this run."""
    ready = {name for candidate in run.offered for name, _ in candidate.steps}
    return all(name in ready for choice in plan.choices for name, _ in choice.candidate.steps)


def _parts(run: Run, inspection: survey.Inspection) -> Any:
    """Everything that a plan depends on, as JSON values: no weight, no sample, no text of the caller's as it is."""
    options, settings = run.options, run.options.settings
    return {
        "modules": [[found.path, _class(found.module), _tensors(found.module)] for found in state.find(run.obj)],
        "seen": [[seen.path, seen.depth, seen.calls, list(seen.keys)] for seen in inspection.modules],
        "samples": [_sizes(sample) for sample in run.feed.samples],
        "weights": list(run.feed.weights),
        "offered": [str(candidate) for candidate in run.offered],
        "strategies": [_strategy(options.strategy), _table(options.strategies)],
        "depths": [options.min_depth, options.max_depth],
        "tolerance": [repr(options.tolerance), options.tie_tolerance],
        "select": [options.select if options.select is None else list(options.select), list(options.skip)],
        "declared": None if options.declared is None else _declared(options.declared.given),
        "builds": [settings.expected_calls, settings.saveable, settings.build_timeout, settings.build_bytes],
        "environment": environment(options.device),
    }


def _class(module: nn.Module) -> str:
    return f"{type(module).__module__}:{type(module).__qualname__}"


def _tensors(module: nn.Module) -> list[Any]:
    """A module's own parameters and buffers by name, shape, dtype and device."""
    named = [*module._parameters.items(), *module._buffers.items()]  # the modules inside have entries of their own
    return [[name, str(tuple(t.shape)), str(t.dtype), str(t.device)] for name, t in named if t is not None]


def _sizes(sample: Any) -> list[Any]:
    tree = (sample.args, sample.kwargs) if isinstance(sample, Call) else sample
    return [[str(tuple(tensor.shape)), str(tensor.dtype)] for tensor in trees.tensors(tree)]


def _strategy(strategy: Strategy | None) -> Any:
    return None if strategy is None else [type(strategy).__name__, [str(one) for one in strategy.wanted or ()]]


def _table(strategies: Mapping[str, Strategy]) -> list[Any]:
    return [[pattern, _strategy(one)] for pattern, one in strategies.items()]


def _declared(given: Any) -> Any:
    """`dynamic_shapes=` by what it says: a `Dim` is its name and its bounds."""
    if isinstance(given, Mapping):
        return {str(name): _declared(value) for name, value in given.items()}
    if isinstance(given, list | tuple):
        return [_declared(value) for value in given]
    if given is None or isinstance(given, int | str):
        return given
    kind = type(given).__name__
    return [kind, *(str(getattr(given, name, "")) for name in ("__name__", "min", "max", "type"))]
