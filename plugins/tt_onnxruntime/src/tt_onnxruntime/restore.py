"""Builts from files: models are parsed and checked, weights compared with the unit's; nothing is exported or run as code."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

import tt_core as tt
from tt_onnxruntime.build import State, built_of
from tt_onnxruntime.check import checked
from tt_onnxruntime.dump import FORMAT, MODEL
from tt_onnxruntime.model import WEIGHTS, Model, Weight
from tt_onnxruntime.options import Settings, settings_of
from tt_onnxruntime.run import Runner, new_binding, place_of
from tt_onnxruntime.session import TYPES, Compiled, Sizes, Tensors, session_of

_PROGRAMS = 8


def restore(
    unit: tt.Unit,
    key: tt.CallKey,
    covers: tt.Shapes | None,
    dumped: Mapping[str, Any],
    folder: Path,
    device: torch.device,
) -> tt.Built:
    """Makes sessions of what `dump` wrote. The unit runs once, on zeros, to learn its result's form.

    Args:
        unit: the unit that was dumped, with the same weights; its own memory is used for them.
        key: of the calls.
        covers: the sizes that the dumped built covered.
        dumped: what `dump` returned.
        folder: where it wrote; may be deleted afterwards.
        device: where the unit is.

    Raises:
        BuildRefusedError: another format, damage, operators that are not ONNX's own, or other weights than the unit's.
    """
    with tt.flat.restoring(dumped, FORMAT, covers) as sizes:
        return _restored(unit, key, sizes, dumped, folder, device)


def _restored(
    unit: tt.Unit, key: tt.CallKey, covers: tt.Shapes, dumped: Mapping[str, Any], folder: Path, device: torch.device
) -> tt.Built:
    settings = settings_of(device, {"spinning": dumped["spinning"]})
    sizes = tuple(tuple(int(n) for n in size) for size in dumped["sizes"])
    if not covers.admit(sizes):
        raise tt.BuildRefusedError("its sizes are not those that it covers")
    constants = tuple(tt.flat.read_constant(value) for value in dumped["constants"])
    with torch.no_grad():
        flat = tt.flatten_unit(unit, tt.flat.synthetic(unit.forward, key, covers, sizes, constants))
    entries = list(dumped["programs"])
    if not 0 < len(entries) <= _PROGRAMS:
        raise tt.BuildRefusedError(f"it has {len(entries)} programs")
    programs = [_program(entry, folder / str(i), key, unit.module, settings) for i, entry in enumerate(entries)]
    if any(len(program.dtypes) != len(flat.outputs) for program in programs):
        raise tt.BuildRefusedError("it returns other results than the unit")
    runner = Runner(programs, [leaf.dtype for leaf in key.tensors], device)
    return built_of(State(runner=runner, covers=covers, sizes=sizes, constants=constants), flat)


def _program(
    entry: Mapping[str, Any], folder: Path, key: tt.CallKey, module: nn.Module, settings: Settings
) -> Compiled:
    weights = _weights(entry["weights"], folder / WEIGHTS, module)
    skeleton, packed = checked(folder / MODEL, {name: weight.array.shape for name, weight in weights.items()})
    model = Model(skeleton=skeleton, weights=weights, packed_bytes=packed)
    inputs = tuple(str(name) for name in entry["inputs"])
    results = [(tt.flat.read_dtype(name), int(rank)) for name, rank in entry["results"]]
    session, outputs = session_of(model, settings, inputs, [leaf.dtype for leaf in key.tensors], results)
    traces = tuple(map(tt.flat.read_sizes, entry["traces"]))
    indices = tuple(int(index) for index in entry["indices"])
    if any(not 0 <= index < len(inputs) for index in indices):
        raise tt.BuildRefusedError("it names an input that it does not have")
    dtypes = tuple(dtype for dtype, _ in results)
    return Compiled(
        model=model,
        session=session,
        inputs=inputs,
        outputs=outputs,
        dtypes=dtypes,
        traces=traces,
        fits=lambda given: any(trace.admit(given) for trace in traces),
        result_sizes=_learned(session, inputs, outputs, settings.device),
        indices=indices,
        settings=settings,
    )


def _learned(
    session: Any, inputs: Sequence[str], outputs: Sequence[str], device: torch.device
) -> Callable[[Sizes, Tensors], Sizes]:
    """Sizes of the results, found by running once with results that ONNX Runtime allocates."""

    def sizes_of(sizes: Sizes, tensors: Tensors) -> Sizes:
        binding, place = new_binding(session), place_of(device)
        dense = [tensor.resolve_neg().contiguous() for tensor in tensors]
        for name, tensor, size in zip(inputs, dense, sizes, strict=True):
            binding.bind_input(name, place, TYPES[tensor.dtype][0], tuple(size), tensor.data_ptr())
        for name in outputs:
            binding.bind_output(name, place)
        session.run_with_iobinding(binding, None)
        return tuple(tuple(value.shape()) for value in binding.get_outputs())

    return sizes_of


def _weights(places: Sequence[Any], path: Path, module: nn.Module) -> dict[str, Weight]:
    """The weights of a file, each in its place; what is the unit's own is the unit's memory.

    Raises:
        BuildRefusedError: the file has another length than its weights, or the unit has other values.
    """
    import numpy as np

    kinds = [np.dtype(kind) for _, kind, _, _ in places]
    shapes = [tuple(int(n) for n in shape) for _, _, shape, _ in places]
    if any(kind.kind not in "fiub" for kind in kinds) or any(n < 0 for shape in shapes for n in shape):
        raise tt.BuildRefusedError("it holds weights of an unknown kind")
    lengths = [kind.itemsize * math.prod(shape) for kind, shape in zip(kinds, shapes, strict=True)]
    if path.stat().st_size != sum(lengths):
        raise tt.BuildRefusedError("its file of weights has another length than its weights")
    content = np.fromfile(path, dtype=np.uint8)
    found: dict[str, Weight] = {}
    offset = 0
    for (name, _, _, source), kind, shape, length in zip(places, kinds, shapes, lengths, strict=True):
        array = content[offset : offset + length].copy().view(kind).reshape(shape)
        found[str(name)] = Weight(array=array) if source is None else _own(str(source), array, module)
        offset += length
    return found


def _own(source: str, array: Any, module: nn.Module) -> Weight:
    """A weight that is a tensor of the unit."""
    import numpy as np

    tensor = tt.flat.named_tensors(module).get(source)
    if tensor is None:
        raise tt.BuildRefusedError(f"the unit has no {source!r}")
    own = np.ascontiguousarray(tensor.detach().cpu().numpy())
    if own.shape != array.shape or own.dtype != array.dtype or own.tobytes() != array.tobytes():
        raise tt.BuildRefusedError(f"the unit's {source!r} is not the one that was dumped", "tune again")
    return Weight(array=own, source=source, tensor=tensor, version=tt.flat.version_of(tensor))
