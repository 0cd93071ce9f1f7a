"""A unit and its calls as a `Built` on OpenVINO."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import tt_core as tt
from tt_openvino.cache import Cache
from tt_openvino.convert import Compiled, Sizes, compiled
from tt_openvino.options import Settings, settings_of
from tt_openvino.probe import one_line
from tt_openvino.recall import Recall
from tt_openvino.refuse import attends_once
from tt_openvino.run import Plan, Runner, Tensors


@dataclass(frozen=True, kw_only=True, eq=False)
class State:
    """What a built is made of: `tt_dump` finds it at the built's call.

    Attributes:
        runner: holds the programs.
        settings: how they were compiled.
        covers: the sizes claimed.
        sizes: of a recorded call, the largest.
        constants: the arguments that are no tensors, in the key's order.
        weights: the unit's tensors as they were.
    """

    runner: Runner
    settings: Settings
    covers: tt.Shapes
    sizes: Sizes
    constants: tuple[Any, ...]
    weights: tt.flat.Versions


def build(backend: str, unit: tt.Unit, calls: tt.Calls, device: torch.device, options: Mapping[str, Any]) -> tt.Built:
    """Answers the hook `tt_build`.

    The unit is exported around its largest recorded call; recorded calls that this trace is not right for are traced
    too, and get a program of their own where the trace is another program. A call of sizes inside the covered ranges that
    no trace is right for is handed back: the original forward answers it.

    Raises:
        BuildRefusedError: with the reason.
    """
    settings = settings_of(backend, device, options)
    tt.flat.refuse_calls(calls)
    flat = tt.flatten_unit(unit, calls)
    if not flat.inputs:
        raise tt.BuildRefusedError("it takes no tensors")
    if not flat.outputs:
        raise tt.BuildRefusedError("it returns no tensor that it computed")
    cache = Cache.ours()
    weights = tt.flat.Versions.of(unit.module)
    tensors = weights.tensors
    printed = tt.flat.weights_print(tensors.items()) if cache.used else ""
    recall = Recall(unit, flat, calls, tensors, settings, cache, printed)
    known = _recalled(flat, calls, recall)
    runner = known or _exported(flat, calls, tensors, settings, cache, printed)
    traces = [trace for program in runner.programs for trace in program.program.traces]
    state = State(
        runner=runner,
        settings=settings,
        covers=tt.flat.hull(traces),
        sizes=max((flat.sizes(sample) for sample in calls.samples), key=tt.flat.elements),
        constants=flat.arguments.constants,
        weights=weights,
    )
    if known is None:
        recall.keep(runner.programs, state.covers)
    return built_of(state, flat, device, (cache.note,) if cache.note else ())


def built_of(state: State, flat: tt.Flat, device: torch.device, notes: tuple[str, ...] = ()) -> tt.Built:
    """The programs of `state` as a built of a unit."""
    programs = state.runner.programs
    call, packed = _calls(flat, state.runner, device)
    call.__dict__["tt_state"] = state
    return tt.Built(
        call=call,
        packed=packed,
        covers=state.covers,
        weights=tt.Weights.VALUES,
        concurrent=True,
        fork_safe=False,  # its thread pool does not survive a fork
        needs_strides=bool(flat.returned),  # a forward may return an input itself or, for other strides, a copy
        bytes_held=sum(program.held for program in programs),
        notes=(*_notes(programs, state.settings), *notes),
        close=state.runner.close,
    )


def _recalled(flat: tt.Flat, calls: tt.Calls, recall: Recall) -> Runner | None:
    """The programs that the unit had before, where they are still right; the cache forgets them where they are not."""
    runner = _runner(recall.programs(), calls)
    if not runner.programs:
        return None
    try:
        if any(program.streams > 1 for program in runner.programs):
            _prime(flat, calls, runner)
        if recall.right(runner):
            return runner
    except tt.BuildRefusedError:
        pass
    runner.close()
    recall.forget()
    return None


def _exported(
    flat: tt.Flat,
    calls: tt.Calls,
    tensors: Mapping[str, torch.Tensor],
    settings: Settings,
    cache: Cache,
    printed: str,
) -> Runner:
    """Enough programs for every recorded call without a moving axis at 0."""
    groups = tt.flat.traces(flat, calls, alone=attends_once)
    made = []
    while groups:  # an exported program goes before the next is compiled
        made.append(compiled(groups.pop(0), calls.shapes, tensors, settings, cache, printed))
    runner = _runner(made, calls)
    _prime(flat, calls, runner)
    return runner


def _runner(programs: Sequence[Compiled], calls: tt.Calls) -> Runner:
    return Runner(programs, [leaf.dtype for leaf in calls.key.tensors])


def _prime(flat: tt.Flat, calls: tt.Calls, runner: Runner) -> None:
    """Runs each program on its largest recorded call, so that OpenVINO chooses its kernels for that one.

    Raises:
        BuildRefusedError: it compiled, but does not run.
    """
    primed: list[Compiled] = []
    for sample in sorted(calls.samples, key=lambda sample: -tt.flat.elements(flat.sizes(sample))):
        inputs = flat.example(sample)
        plan = runner.find(flat.sizes(sample), inputs)
        if plan is not None and plan.program not in primed:
            primed.append(plan.program)
            try:
                plan.prime(inputs)
            except RuntimeError as error:
                raise tt.BuildRefusedError(f"OpenVINO cannot run it: {one_line(error)}") from error


def _notes(programs: Sequence[Compiled], settings: Settings) -> tuple[str, ...]:
    first = f"OpenVINO on {settings.target} in {programs[0].program.precision}"
    if len(programs) == 1:
        return (first,)
    return (first, f"{len(programs)} programs, chosen by size")


def _calls(flat: tt.Flat, runner: Runner, device: torch.device) -> tuple[Callable[..., Any], Callable[[Tensors], Any]]:
    """What takes a call in any spelling, and what takes its tensors."""
    pack, unpack, get, find = flat.pack, flat.unpack, runner.get, runner.find
    run = _run_on(device)

    def packed(inputs: Tensors) -> Any:
        sizes = tuple([tensor.shape for tensor in inputs])  # a list comprehension: a generator takes twice the time
        plan = get(sizes) or find(sizes, inputs)
        if plan is None:
            raise tt.DeclinedError(f"no program for the sizes {_text(sizes)}" if runner.programs else "it was closed")
        if plan.limits and not plan.admits(inputs):
            raise tt.DeclinedError("an integer is beyond what OpenVINO computes right, or no index of its table")
        return unpack(run(plan, inputs), inputs)

    def call(*args: Any, **kwargs: Any) -> Any:
        return packed(pack(*args, **kwargs))

    return call, packed


def _text(sizes: Sizes) -> str:
    return ", ".join(str(tuple(size)) for size in sizes)


def _run_on(device: torch.device) -> Callable[[Plan, Tensors], list[torch.Tensor]]:
    """Runs a plan for tensors of a device: on the CPU as they are, elsewhere with one copy each way."""
    if device.type == "cpu":
        return Plan.run

    def run(plan: Plan, inputs: Tensors) -> list[torch.Tensor]:
        results = plan.run([tensor.to("cpu") for tensor in inputs])
        return [result.to(device) for result in results]

    return run
