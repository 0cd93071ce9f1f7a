"""A unit and its calls as a `Built` on OpenVINO."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

import tt_core as tt
from tt_openvino.convert import Compiled, compiled
from tt_openvino.options import Settings, settings_of
from tt_openvino.probe import one_line
from tt_openvino.refuse import attends_once, refuse_calls
from tt_openvino.run import Plan, Runner

Sizes = tuple[tuple[int, ...], ...]

_PROGRAMS = 3
"""Programs that one built may hold: one for sizes from 2 on, others where a size of 1 or a branch makes another."""
_EXPORTS = 6
"""Traces that are made to find them."""


def build(backend: str, unit: tt.Unit, calls: tt.Calls, device: torch.device, options: Mapping[str, Any]) -> tt.Built:
    """Answers the hook `tt_build`.

    The unit is exported around its largest recorded call; recorded calls that this trace is not right for are traced
    too, and get a program of their own where the trace is another program. Sizes inside the covered ranges that no
    trace is right for run the original forward.

    Raises:
        BuildRefusedError: with the reason.
    """
    settings = settings_of(backend, device, options)
    refuse_calls(calls)
    flat = tt.flatten_unit(unit, calls)
    if not flat.inputs:
        raise tt.BuildRefusedError("it takes no tensors")
    if not flat.outputs:
        raise tt.BuildRefusedError("it returns no tensor that it computed")
    pairs = _programs(flat, calls, settings)
    programs = [program for _, program in pairs]
    runner = Runner(programs, [leaf.dtype for leaf in calls.key.tensors])
    _prime(flat, calls, runner, device)
    covers = _covers([covered for covered, _ in pairs], calls.shapes, [flat.sizes(sample) for sample in calls.samples])
    return tt.Built(
        call=_call(flat, unit.forward, runner, device),
        covers=covers,
        weights=tt.Weights.VALUES,
        concurrent=True,
        fork_safe=False,  # its thread pool does not survive a fork
        needs_strides=bool(flat.returned),  # a forward may return an input itself or, for other strides, a copy
        bytes_held=sum(program.weight_bytes for program in programs),
        notes=_notes(programs, settings),
        close=runner.close,
    )


def _programs(flat: tt.Flat, calls: tt.Calls, settings: Settings) -> list[tuple[tt.Shapes, Compiled]]:
    """What each program covers, and the program: enough of them for every recorded call without a moving axis at 0."""
    groups = _groups(flat, calls)
    if not groups:
        raise tt.BuildRefusedError("all recorded inputs are empty")
    made = []
    while groups:  # an exported program goes before the next is compiled
        exports = groups.pop(0)
        made.append((exports[0].covers(calls.shapes), compiled(exports, settings)))
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
        if group[0].serves(exported) and not attends_once(exported.program):
            group.append(exported)
            return
    if len(groups) == _PROGRAMS:
        raise tt.BuildRefusedError(f"its recorded sizes need more than {_PROGRAMS} programs")
    groups.append([exported])


def _prime(flat: tt.Flat, calls: tt.Calls, runner: Runner, device: torch.device) -> None:
    """Runs each program once on its largest recorded call, so that OpenVINO chooses its kernels for that one.

    Raises:
        BuildRefusedError: it compiled, but does not run.
    """
    primed: list[Compiled] = []
    for sample in sorted(calls.samples, key=lambda sample: -_elements(flat.sizes(sample))):
        plan = runner.find(flat.sizes(sample))
        if plan is not None and plan.program not in primed:
            primed.append(plan.program)
            try:
                _run_on(device)(plan, flat.example(sample))
            except RuntimeError as error:
                raise tt.BuildRefusedError(f"OpenVINO cannot run it: {one_line(error)}") from error


def _elements(sizes: Sizes) -> int:
    return sum(torch.Size(size).numel() for size in sizes)


def _void(sizes: Sizes, shapes: tt.Shapes) -> bool:
    """Whether a moving axis is 0 in this call: the original forward is as fast on nothing."""
    pairs = zip(sizes, shapes.leaves, strict=True)
    return any(n == 0 and isinstance(axis, tt.Axis) for size, leaf in pairs for n, axis in zip(size, leaf, strict=True))


def _covers(covered: Sequence[tt.Shapes], shapes: tt.Shapes, recorded: Sequence[Sizes]) -> tt.Shapes:
    """What is claimed: one program's sizes, or all wanted where several programs and the original share them."""
    if len(covered) == 1 and all(covered[0].admit(sizes) for sizes in recorded):
        return covered[0]
    return shapes


def _notes(programs: Sequence[Compiled], settings: Settings) -> tuple[str, ...]:
    first = f"OpenVINO on {settings.target} in {programs[0].precision}"
    if len(programs) == 1:
        return (first,)
    return (first, f"{len(programs)} programs, chosen by size")


def _call(flat: tt.Flat, forward: Callable[..., Any], runner: Runner, device: torch.device) -> Callable[..., Any]:
    pack, unpack, get, find = flat.pack, flat.unpack, runner.get, runner.find
    run = _run_on(device)

    def call(*args: Any, **kwargs: Any) -> Any:
        inputs = pack(*args, **kwargs)
        sizes = tuple([tensor.shape for tensor in inputs])  # a list comprehension: a generator takes twice the time
        plan = get(sizes) or find(sizes)
        if plan is None or (plan.limits and not plan.admits(inputs)):
            return forward(*args, **kwargs)
        return unpack(run(plan, inputs), inputs)

    return call


def _run_on(device: torch.device) -> Callable[[Plan, Sequence[torch.Tensor]], list[torch.Tensor]]:
    """Runs a plan for tensors of a device: on the CPU as they are, elsewhere with one copy each way."""
    if device.type == "cpu":
        return Plan.run

    def run(plan: Plan, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        results = plan.run([tensor.to("cpu") for tensor in inputs])
        return [result.to(device) for result in results]

    return run
