"""Running sessions on torch's memory, and the choice of a program by sizes."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

import tt_core as tt
from tt_onnxruntime.session import TYPES, Compiled, Sizes, Tensors

_PLANS = 1024
"""Combinations of sizes that are remembered."""

_ARRAYS = frozenset(TYPES) - {torch.bfloat16}
"""Types that numpy has too."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ByArray:
    """Through numpy arrays, which share their memory with the tensors: the fewest steps of all, beside a call of 1 ms a
    thirtieth less than to bind addresses. Results live in memory of ONNX Runtime's, and give it back when they go.

    Attributes:
        program: the program that is right for the sizes.
        indices: inputs that may not hold negative values.
    """

    program: Compiled
    indices: tuple[int, ...]

    def run(self, inputs: Tensors) -> list[torch.Tensor]:
        """Runs the program on tensors of any strides; the results are the caller's. Any number of threads may."""
        try:
            arrays = [tensor.numpy() for tensor in inputs]
        except RuntimeError:  # it requires gradients, which nobody wants now, or is negated lazily
            arrays = [tensor.numpy(force=True) for tensor in inputs]
        program = self.program
        results = program.session.run(program.outputs, dict(zip(program.inputs, arrays, strict=True)), None)
        return [torch.from_numpy(result) for result in results]


@dataclass(frozen=True, kw_only=True, eq=False)
class ByAddress:
    """On a device, or of a type that numpy has not: tensors are bound by their address, results into new tensors.

    Attributes:
        program: the program that is right for the sizes.
        indices: inputs that may not hold negative values.
        inputs: per input its port, torch type and sizes.
        outputs: the same per result.
        device: of inputs and results.
        idle: native bindings that no run has now.
    """

    program: Compiled
    indices: tuple[int, ...]
    inputs: tuple[tuple[str, torch.dtype, tuple[int, ...]], ...]
    outputs: tuple[tuple[str, torch.dtype, tuple[int, ...]], ...]
    device: torch.device
    idle: deque[Any] = field(default_factory=deque)

    def run(self, inputs: Tensors) -> list[torch.Tensor]:
        """As of `ByArray`; a binding whose run raises is dropped."""
        try:
            native = self.idle.pop()
        except IndexError:
            native = new_binding(self.program.session)
        results = self._run(native, [self._plain(tensor) for tensor in inputs])
        self.idle.append(native)
        return results

    @staticmethod
    def _plain(tensor: torch.Tensor) -> torch.Tensor:
        return tensor if tensor.is_contiguous() and not tensor.is_neg() else tensor.resolve_neg().contiguous()

    def _run(self, native: Any, inputs: Tensors) -> list[torch.Tensor]:
        """Bound anew before each run, so that no run reads memory that is gone."""
        place = place_of(self.device)
        for tensor, (port, dtype, sizes) in zip(inputs, self.inputs, strict=True):
            native.bind_input(port, place, TYPES[dtype][0], sizes, tensor.data_ptr())
        results = [torch.empty(sizes, dtype=dtype, device=self.device) for _, dtype, sizes in self.outputs]
        for result, (port, dtype, sizes) in zip(results, self.outputs, strict=True):
            native.bind_output(port, place, TYPES[dtype][0], sizes, result.data_ptr())
        if self.device.type == "cuda":  # the session has a stream of its own, and ends with it
            torch.cuda.current_stream(self.device).synchronize()
        self.program.session.run_with_iobinding(native, None)
        return results


Plan = ByArray | ByAddress
"""How one combination of input sizes is run."""


def admits(plan: Plan, inputs: Tensors) -> bool:
    """Whether indices are such that eager takes them; ONNX Runtime itself refuses too large ones."""
    return all(tt.flat.extremes(inputs[index])[0] >= 0 for index in plan.indices)


def new_binding(session: Any) -> Any:
    """A native binding of a native session."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    return state.SessionIOBinding(session)


def place_of(device: torch.device) -> Any:
    """A torch device as ONNX Runtime names it."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    kind = state.OrtDevice.cpu() if device.type == "cpu" else state.OrtDevice.cuda()
    return state.OrtDevice(kind, state.OrtDevice.default_memory(), device.index or 0)


class Runner:
    """Chooses a program by the sizes of the inputs.

    Args:
        programs: the first that fits is taken.
        dtypes: of the inputs.
        device: of inputs and results.
    """

    def __init__(self, programs: Sequence[Compiled], dtypes: Sequence[torch.dtype], device: torch.device) -> None:
        self.programs = tuple(programs)
        self._dtypes = tuple(dtypes)
        self._device = device
        self._plans: dict[Sizes, Plan | None] = {}
        self.get = self._plans.get

    def find(self, sizes: Sizes, inputs: Tensors) -> Plan | None:
        """The plan for these sizes; None: no program is right for them."""
        if sizes in self._plans:
            return self._plans.get(sizes)
        plan = self._planned(sizes, inputs)
        if len(self._plans) >= _PLANS:
            self._plans.clear()
        self._plans[sizes] = plan
        return plan

    def _planned(self, sizes: Sizes, inputs: Tensors) -> Plan | None:
        for program in self.programs:
            if program.fits(sizes):
                return _plan(program, sizes, inputs, self._dtypes, self._device)
        return None

    def close(self) -> None:
        """Gives sessions and weights back; calls after it run the original."""
        self.programs = ()
        self._plans.clear()


def _plan(
    program: Compiled, sizes: Sizes, inputs: Tensors, dtypes: Sequence[torch.dtype], device: torch.device
) -> Plan:
    indices = tuple(index for index in program.indices if 0 not in sizes[index])
    if device.type == "cpu" and _ARRAYS.issuperset((*dtypes, *program.dtypes)):
        return ByArray(program=program, indices=indices)
    results = program.result_sizes(sizes, inputs)
    return ByAddress(
        program=program,
        indices=indices,
        inputs=tuple(zip(program.inputs, dtypes, map(tuple, sizes), strict=True)),
        outputs=tuple(zip(program.outputs, program.dtypes, map(tuple, results), strict=True)),
        device=device,
    )
