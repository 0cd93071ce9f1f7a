"""Builts from files: models are parsed and checked, weights compared with the unit's; nothing is exported or converted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import tt_core as tt
from tt_openvino.build import State, built_of
from tt_openvino.convert import Compiled, loaded
from tt_openvino.dump import FORMAT
from tt_openvino.files import read
from tt_openvino.forms import read_program
from tt_openvino.options import Settings, settings_of
from tt_openvino.ports import check_inputs
from tt_openvino.run import Runner
from tt_openvino.weights import rebased

_PROGRAMS = 8


def restore(
    backend: str,
    unit: tt.Unit,
    key: tt.CallKey,
    covers: tt.Shapes | None,
    dumped: Mapping[str, Any],
    folder: Path,
    device: torch.device,
) -> tt.Built:
    """Compiles what `dump` wrote. The unit runs once, on zeros, to learn its result's form.

    Args:
        backend: the declared name.
        unit: the unit that was dumped, with the same weights; its own memory is used for them.
        key: of the calls.
        covers: the sizes that the dumped built covered.
        dumped: what `dump` returned.
        folder: where it wrote; may be deleted afterwards.
        device: where the unit is.

    Raises:
        BuildRefusedError: another format, damage, operators that are not OpenVINO's own, other weights than the unit's.
    """
    with tt.flat.restoring(dumped, FORMAT, covers) as sizes:
        settings = settings_of(backend, device, {str(name): value for name, value in dumped["options"].items()})
        return _restored(unit, key, sizes, dumped, folder, device, settings)


def _restored(
    unit: tt.Unit,
    key: tt.CallKey,
    covers: tt.Shapes,
    dumped: Mapping[str, Any],
    folder: Path,
    device: torch.device,
    settings: Settings,
) -> tt.Built:
    weights = tt.flat.Versions.of(unit.module)
    if tt.flat.weights_print(weights.tensors.items()) != dumped["weights"]:
        raise tt.BuildRefusedError("the unit's weights are not those that were dumped", "tune again")
    sizes = tuple(tuple(int(n) for n in size) for size in dumped["sizes"])
    if not covers.admit(sizes):
        raise tt.BuildRefusedError("its sizes are not those that it covers")
    constants = tuple(tt.flat.read_constant(form) for form in dumped["constants"])
    with torch.no_grad():
        flat = tt.flatten_unit(unit, tt.flat.synthetic(unit.forward, key, covers, sizes, constants))
    entries = list(dumped["programs"])
    if not 0 < len(entries) <= _PROGRAMS:
        raise tt.BuildRefusedError(f"it has {len(entries)} programs")
    dtypes = [leaf.dtype for leaf in key.tensors]
    programs = [_compiled(entry, folder / str(i), weights.tensors, dtypes, settings) for i, entry in enumerate(entries)]
    if any(len(program.dtypes) != len(flat.outputs) for program in programs):
        raise tt.BuildRefusedError("it returns other results than the unit")
    state = State(
        runner=Runner(programs, dtypes),
        settings=settings,
        covers=covers,
        sizes=sizes,
        constants=constants,
        weights=weights,
    )
    return built_of(state, flat, device)


def _compiled(
    entry: Mapping[str, Any],
    folder: Path,
    tensors: Mapping[str, torch.Tensor],
    dtypes: Sequence[torch.dtype],
    settings: Settings,
) -> Compiled:
    program = read_program(entry)
    if len(program.inputs) != len(dtypes) or any(not 0 <= index < len(dtypes) for index in program.limits):
        raise tt.BuildRefusedError("it takes other inputs than the unit")
    if not settings.allows(program.precision, {*dtypes, *(tensor.dtype for tensor in tensors.values())}):
        raise tt.BuildRefusedError(f"it computes in {program.precision}, which is not this unit's on this device")
    model = read(folder)
    rebased(model, {str(name): str(source) for name, source in entry["sources"].items()}, tensors)
    traces = program.traces
    made = loaded(program, model, tensors, settings, lambda sizes: any(trace.admit(sizes) for trace in traces))
    check_inputs(made.loaded, made.ports, dtypes)
    return made
