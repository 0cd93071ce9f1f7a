"""A unit and its calls as a `Built` on OpenVINO."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

import tt_core as tt
from tt_openvino.convert import Compiled, compiled
from tt_openvino.options import Settings, settings_of
from tt_openvino.refuse import refuse_calls
from tt_openvino.run import Plan, Runner

Sizes = tuple[tuple[int, ...], ...]

_PROGRAMS = 3
"""Programs that one built may hold: one for sizes from 2 on, others where a size of 1 or a branch needs its own."""


def build(backend: str, unit: tt.Unit, calls: tt.Calls, device: torch.device, options: Mapping[str, Any]) -> tt.Built:
    """Answers the hook `tt_build`.

    The unit is exported around its largest recorded call; recorded calls that this program is not right for get their
    own. Sizes inside the covered ranges that no program is right for run the original forward.

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
    made: list[tuple[tt.Shapes, Compiled]] = []
    for sample in sorted(calls.samples, key=lambda sample: -_elements(flat.sizes(sample))):
        sizes = flat.sizes(sample)
        if _void(sizes, calls.shapes) or any(program.fits(sizes) for _, program in made):
            continue
        if len(made) == _PROGRAMS:
            raise tt.BuildRefusedError(f"its recorded sizes need more than {_PROGRAMS} programs")
        exported = flat.export(sample, calls.shapes)
        if not exported.fits(sizes):
            raise tt.BuildRefusedError("the exported program does not admit the sizes it was exported with")
        made.append((exported.covers(calls.shapes), compiled(exported, settings)))
    if not made:
        raise tt.BuildRefusedError("all recorded inputs are empty")
    return made


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
    run = Plan.run if device.type == "cpu" else _across(device)

    def call(*args: Any, **kwargs: Any) -> Any:
        inputs = pack(*args, **kwargs)
        sizes = tuple([tensor.shape for tensor in inputs])  # a list comprehension: a generator takes twice the time
        plan = get(sizes) or find(sizes)
        if plan is None or (plan.limits and not plan.admits(inputs)):
            return forward(*args, **kwargs)
        return unpack(run(plan, inputs), inputs)

    return call


def _across(device: torch.device) -> Callable[[Plan, Sequence[torch.Tensor]], list[torch.Tensor]]:
    """Runs a plan for tensors on another device: one copy each way."""

    def run(plan: Plan, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        results = plan.run([tensor.to("cpu") for tensor in inputs])
        return [result.to(device) for result in results]

    return run
