"""A unit and its calls as a `Built` on ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import tt_core as tt
from tt_onnxruntime.model import model_of
from tt_onnxruntime.options import Settings, settings_of
from tt_onnxruntime.probe import failures, one_line
from tt_onnxruntime.refuse import indices_of, refuse_calls, refuse_program
from tt_onnxruntime.run import Runner
from tt_onnxruntime.session import TYPES, Compiled, Sizes, Tensors, session_of

_PROGRAMS = 3
"""Programs that one built may hold: one for sizes from 2 on, others where a size of 1 or a branch makes another."""
_EXPORTS = 6
"""Traces that are made to find them."""


@dataclass(frozen=True, kw_only=True, eq=False)
class State:
    """What a built is made of: `tt_dump` finds it at the built's call.

    Attributes:
        runner: holds the programs.
        covers: the sizes claimed.
        sizes: of a recorded call, the largest.
        constants: the arguments that are no tensors, in the key's order.
    """

    runner: Runner
    covers: tt.Shapes
    sizes: Sizes
    constants: tuple[Any, ...]


def build(unit: tt.Unit, calls: tt.Calls, device: torch.device, options: Mapping[str, Any]) -> tt.Built:
    """Answers the hook `tt_build`.

    The unit is exported around its largest recorded call; recorded calls that this trace is not right for are traced
    too, and get a program of their own where the trace is another program. Sizes inside the covered ranges that no
    trace is right for run the original forward.

    Raises:
        BuildRefusedError: with the reason.
    """
    settings = settings_of(device, options)
    refuse_calls(calls)
    flat = tt.flatten_unit(unit, calls)
    if not flat.inputs:
        raise tt.BuildRefusedError("it takes no tensors")
    if not flat.outputs:
        raise tt.BuildRefusedError("it returns no tensor that it computed")
    programs = _programs(flat, unit, calls, settings)
    runner = Runner(programs, [leaf.dtype for leaf in calls.key.tensors], device)
    _try(flat, calls, runner)
    recorded = [flat.sizes(sample) for sample in calls.samples]
    state = State(
        runner=runner,
        covers=_covers(programs, calls.shapes, recorded),
        sizes=max(recorded, key=_elements),
        constants=_constants(flat),
    )
    return built_of(state, flat, unit.forward)


def built_of(state: State, flat: tt.Flat, forward: Callable[..., Any]) -> tt.Built:
    """The programs of `state` as a built of a unit."""
    programs = state.runner.programs
    call = _call(flat, forward, state.runner)
    call.__dict__["tt_state"] = state
    return tt.Built(
        call=call,
        covers=state.covers,
        weights=tt.Weights.VALUES,
        concurrent=True,
        fork_safe=False,  # a session's threads do not survive a fork
        needs_strides=bool(flat.returned),  # a forward may return an input itself or, for other strides, a copy
        bytes_held=sum(program.model.folded_bytes + program.model.packed_bytes for program in programs),
        notes=_notes(programs),
        close=state.runner.close,
    )


def _constants(flat: tt.Flat) -> tuple[Any, ...]:
    places = set(flat.arguments.places)
    return tuple(leaf for i, leaf in enumerate(flat.arguments.leaves) if i not in places)


def _programs(flat: tt.Flat, unit: tt.Unit, calls: tt.Calls, settings: Settings) -> list[Compiled]:
    """Enough programs for every recorded call without a moving axis at 0."""
    groups = _groups(flat, calls)
    if not groups:
        raise tt.BuildRefusedError("all recorded inputs are empty")
    made = []
    while groups:  # an exported program goes before the next session is made
        made.append(_compiled(groups.pop(0), unit, calls, settings))
    return made


def _groups(flat: tt.Flat, calls: tt.Calls) -> list[list[tt.Exported]]:
    """Exports for all recorded sizes; those of one group are one program, the first the most general."""
    groups: list[list[tt.Exported]] = []
    for sample in sorted(calls.samples, key=lambda sample: -_elements(flat.sizes(sample))):
        sizes = flat.sizes(sample)
        if _void(sizes, calls.shapes) or any(exported.fits(sizes) for group in groups for exported in group):
            continue
        if sum(map(len, groups)) == _EXPORTS:
            raise tt.BuildRefusedError(f"its recorded sizes need more than {_EXPORTS} exports")
        exported = flat.export(sample, calls.shapes)
        if not exported.fits(sizes):
            raise tt.BuildRefusedError("the exported program does not admit the sizes it was exported with")
        _join(groups, exported)
    return groups


def _join(groups: list[list[tt.Exported]], exported: tt.Exported) -> None:
    """Adds a trace to the program that serves it, or as one of its own."""
    for group in groups:
        if group[0].serves(exported):
            group.append(exported)
            return
    if len(groups) == _PROGRAMS:
        raise tt.BuildRefusedError(f"its recorded sizes need more than {_PROGRAMS} programs")
    groups.append([exported])


def _compiled(exports: Sequence[tt.Exported], unit: tt.Unit, calls: tt.Calls, settings: Settings) -> Compiled:
    program = exports[0].program
    refuse_program(program)
    results = _results(program)
    inputs = tuple(str(name) for name in program.graph_signature.user_inputs)
    model = model_of(program, unit.module)
    dtypes = [leaf.dtype for leaf in calls.key.tensors]
    session, outputs = session_of(model, settings, inputs, dtypes, [(value.dtype, value.ndim) for value in results])
    return Compiled(
        model=model,
        session=session,
        inputs=inputs,
        outputs=outputs,
        dtypes=tuple(value.dtype for value in results),
        traces=tuple(exported.covers(calls.shapes) for exported in exports),
        fits=_any_of([exported.fits for exported in exports]),
        result_sizes=_sizes_of([(exported.fits, exported.result_sizes) for exported in exports]),
        indices=indices_of(program),
        settings=settings,
    )


def _results(program: torch.export.ExportedProgram) -> list[torch.Tensor]:
    nodes = {node.name: node for node in program.graph.nodes}
    values = [nodes[str(name)].meta["val"] for name in program.graph_signature.user_outputs]
    for value in values:
        if value.dtype not in TYPES:
            raise tt.BuildRefusedError(f"it returns {value.dtype}")
    return values


def _any_of(fits: Sequence[Callable[[Any], bool]]) -> Callable[[Sizes], bool]:
    return lambda sizes: any(one(sizes) for one in fits)


def _sizes_of(
    traces: Sequence[tuple[Callable[[Any], bool], Callable[[Any], Sizes]]],
) -> Callable[[Sizes, Tensors], Sizes]:
    return lambda sizes, _: next(results(sizes) for fits, results in traces if fits(sizes))


def _try(flat: tt.Flat, calls: tt.Calls, runner: Runner) -> None:
    """Runs each program once: a session may be made of what does not run.

    Raises:
        BuildRefusedError: it does not run.
    """
    tried: list[Compiled] = []
    for sample in calls.samples:
        inputs = flat.example(sample)
        plan = runner.find(flat.sizes(sample), inputs)
        if plan is not None and plan.program not in tried:
            tried.append(plan.program)
            try:
                plan.run(inputs)
            except failures() as error:
                raise tt.BuildRefusedError(f"ONNX Runtime cannot run it: {one_line(error)}") from error


def _elements(sizes: Sizes) -> int:
    return sum(torch.Size(size).numel() for size in sizes)


def _void(sizes: Sizes, shapes: tt.Shapes) -> bool:
    """Whether a moving axis is 0 in this call: the original forward is as fast on nothing."""
    pairs = zip(sizes, shapes.leaves, strict=True)
    return any(n == 0 and isinstance(axis, tt.Axis) for size, leaf in pairs for n, axis in zip(size, leaf, strict=True))


def _covers(programs: Sequence[Compiled], shapes: tt.Shapes, recorded: Sequence[Sizes]) -> tt.Shapes:
    """What is claimed: one program's sizes, or all wanted where several programs and the original share them."""
    covered = programs[0].traces[0]
    if len(programs) == 1 and all(covered.admit(sizes) for sizes in recorded):
        return covered
    return shapes


def _notes(programs: Sequence[Compiled]) -> tuple[str, ...]:
    import onnxruntime as ort

    first = f"ONNX Runtime {ort.__version__} on {programs[0].settings.device.type}"
    return (first,) if len(programs) == 1 else (first, f"{len(programs)} programs, chosen by size")


def _call(flat: tt.Flat, forward: Callable[..., Any], runner: Runner) -> Callable[..., Any]:
    pack, unpack, get, find = flat.pack, flat.unpack, runner.get, runner.find

    def call(*args: Any, **kwargs: Any) -> Any:
        inputs = pack(*args, **kwargs)
        sizes = tuple([tensor.shape for tensor in inputs])  # a list comprehension: a generator takes twice the time
        plan = get(sizes) or find(sizes, inputs)
        if plan is None or (plan.indices and not plan.admits(inputs)):
            return forward(*args, **kwargs)
        return unpack(plan.run(inputs), inputs)

    return call
