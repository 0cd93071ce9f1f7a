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
from tt_onnxruntime.refuse import indices_of, refuse_doubles
from tt_onnxruntime.run import Runner, admits
from tt_onnxruntime.session import TYPES, Compiled, Sizes, Tensors, session_of


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
    too, and get a program of their own where the trace is another program. A call of sizes inside the covered ranges that
    no trace is right for is handed back: the original forward answers it.

    Raises:
        BuildRefusedError: with the reason.
    """
    settings = settings_of(device, options, whole=not unit.path)
    tt.flat.refuse_calls(calls)
    flat = tt.flatten_unit(unit, calls)
    if not flat.inputs:
        raise tt.BuildRefusedError("it takes no tensors")
    if not flat.outputs:
        raise tt.BuildRefusedError("it returns no tensor that it computed")
    programs = _programs(flat, unit, calls, settings)
    runner = Runner(programs, [leaf.dtype for leaf in calls.key.tensors], device)
    _try(flat, calls, runner)
    state = State(
        runner=runner,
        covers=tt.flat.hull([trace for program in programs for trace in program.traces]),
        sizes=max((flat.sizes(sample) for sample in calls.samples), key=tt.flat.elements),
        constants=flat.arguments.constants,
    )
    return built_of(state, flat)


def built_of(state: State, flat: tt.Flat) -> tt.Built:
    """The programs of `state` as a built of a unit."""
    programs = state.runner.programs
    call, packed = _calls(flat, state.runner)
    call.__dict__["tt_state"] = state
    return tt.Built(
        call=call,
        packed=packed,
        covers=state.covers,
        weights=tt.Weights.VALUES,
        concurrent=True,
        fork_safe=False,  # a session's threads do not survive a fork
        needs_strides=bool(flat.returned),  # a forward may return an input itself or, for other strides, a copy
        bytes_held=sum(program.model.folded_bytes + program.model.packed_bytes for program in programs),
        notes=_notes(programs),
        close=state.runner.close,
    )


def _programs(flat: tt.Flat, unit: tt.Unit, calls: tt.Calls, settings: Settings) -> list[Compiled]:
    """Enough programs for every recorded call without a moving axis at 0."""
    groups = tt.flat.traces(flat, calls)
    made = []
    while groups:  # an exported program goes before the next session is made
        made.append(_compiled(groups.pop(0), unit, calls, settings))
    return made


def _compiled(exports: Sequence[tt.Exported], unit: tt.Unit, calls: tt.Calls, settings: Settings) -> Compiled:
    program = exports[0].program
    tt.flat.refuse_graph(program)
    refuse_doubles(program)
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


def _notes(programs: Sequence[Compiled]) -> tuple[str, ...]:
    import onnxruntime as ort

    first = f"ONNX Runtime {ort.__version__} on {programs[0].settings.device.type}"
    return (first,) if len(programs) == 1 else (first, f"{len(programs)} programs, chosen by size")


def _calls(flat: tt.Flat, runner: Runner) -> tuple[Callable[..., Any], Callable[[Tensors], Any]]:
    """What takes a call in any spelling, and what takes its tensors."""
    pack, unpack, get, find = flat.pack, flat.unpack, runner.get, runner.find

    def packed(inputs: Tensors) -> Any:
        sizes = tuple([tensor.shape for tensor in inputs])  # a list comprehension: a generator takes twice the time
        plan = get(sizes) or find(sizes, inputs)
        if plan is None:
            raise tt.DeclinedError(f"no program for the sizes {_text(sizes)}" if runner.programs else "it was closed")
        if plan.indices and not admits(plan, inputs):
            raise tt.DeclinedError("an index into a table is negative")
        return unpack(plan.run(inputs), inputs)

    def call(*args: Any, **kwargs: Any) -> Any:
        return packed(pack(*args, **kwargs))

    return call, packed


def _text(sizes: Sizes) -> str:
    return ", ".join(str(tuple(size)) for size in sizes)
