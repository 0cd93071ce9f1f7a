"""Running sessions on torch's memory, and the choice of a program by sizes."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tt_onnxruntime.session import TYPES, Compiled, Sizes, Tensors

_PLANS = 1024
"""Combinations of sizes that are remembered."""

SHARED = 4096
"""Bytes from which a tensor is bound by its address."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """How one combination of input sizes is run.

    Attributes:
        program: the program that is right for them.
        bindings: idle bindings for these sizes.
        inputs: per input its port, torch type and sizes.
        outputs: the same per result.
        indices: inputs that may not hold negative values.
        device: of inputs and results.
    """

    program: Compiled
    bindings: deque[Binding]
    inputs: tuple[tuple[str, torch.dtype, tuple[int, ...]], ...]
    outputs: tuple[tuple[str, torch.dtype, tuple[int, ...]], ...]
    indices: tuple[int, ...]
    device: torch.device

    def admits(self, inputs: Tensors) -> bool:
        """Whether indices are such that eager takes them; ONNX Runtime itself refuses too large ones."""
        return all(int(inputs[index].min()) >= 0 for index in self.indices)

    def run(self, inputs: Tensors) -> list[torch.Tensor]:
        """Runs the program with a binding of its own; the results are the caller's. One whose run raises is dropped."""
        try:
            binding = self.bindings.pop()
        except IndexError:
            binding = Binding(self)
        results = binding.run(inputs)
        self.bindings.append(binding)
        return results


class Binding:
    """What a session reads and writes in one run.

    Small tensors are copied through buffers that stay bound: faster than binding an address. Large ones are bound by
    their address, anew before each run, so no run reads memory that is gone; results are written into new tensors.
    """

    def __init__(self, plan: Plan) -> None:
        session = plan.program.session
        self._native = new_binding(session)
        self._run = session.run_with_iobinding
        self._place = place_of(plan.device)
        self._device = plan.device
        self._copied_in: list[tuple[torch.Tensor, int]] = []
        self._shared_in: list[tuple[int, str, int, tuple[int, ...]]] = []
        self._copied_out: list[tuple[torch.Tensor, int]] = []
        self._shared_out: list[tuple[int, str, torch.dtype, tuple[int, ...]]] = []
        with torch.inference_mode(False):
            for i, (port, dtype, sizes) in enumerate(plan.inputs):
                if self._small(dtype, sizes):
                    self._copied_in.append((self._buffer(self._native.bind_input, port, dtype, sizes), i))
                else:
                    self._shared_in.append((i, port, TYPES[dtype][0], sizes))
            for i, (port, dtype, sizes) in enumerate(plan.outputs):
                if self._small(dtype, sizes):
                    self._copied_out.append((self._buffer(self._native.bind_output, port, dtype, sizes), i))
                else:
                    self._shared_out.append((i, port, dtype, sizes))
        self._shared = bool(self._shared_in or self._shared_out)

    def _small(self, dtype: torch.dtype, sizes: tuple[int, ...]) -> bool:
        return self._device.type == "cpu" and dtype.itemsize * torch.Size(sizes).numel() < SHARED

    def _buffer(self, bind: Any, port: str, dtype: torch.dtype, sizes: tuple[int, ...]) -> torch.Tensor:
        buffer = torch.empty(sizes, dtype=dtype)
        bind(port, self._place, TYPES[dtype][0], sizes, buffer.data_ptr())
        return buffer

    def run(self, inputs: Tensors) -> list[torch.Tensor]:
        """One run; `inputs` are tensors of the plan's sizes and types, of any strides."""
        for buffer, i in self._copied_in:
            buffer.copy_(inputs[i])
        if self._shared:
            return self._run_shared(inputs)
        self._run(self._native, None)
        return [buffer.clone() for buffer, _ in self._copied_out]

    def _run_shared(self, inputs: Tensors) -> list[torch.Tensor]:
        native, place = self._native, self._place
        alive = []  # what is bound must outlive the run
        for i, port, kind, sizes in self._shared_in:
            tensor = inputs[i]
            if not tensor.is_contiguous() or tensor.is_neg():
                tensor = tensor.resolve_neg().contiguous()
                alive.append(tensor)
            native.bind_input(port, place, kind, sizes, tensor.data_ptr())
        results: dict[int, torch.Tensor] = {}
        for i, port, dtype, sizes in self._shared_out:
            results[i] = torch.empty(sizes, dtype=dtype, device=self._device)
            native.bind_output(port, place, TYPES[dtype][0], sizes, results[i].data_ptr())
        if self._device.type == "cuda":
            torch.cuda.current_stream(
                self._device
            ).synchronize()  # the session has a stream of its own, and ends with it
        self._run(native, None)
        for buffer, i in self._copied_out:
            results[i] = buffer.clone()
        return [results[i] for i in range(len(results))]


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
                return _plan(program, sizes, program.result_sizes(sizes, inputs), self._dtypes, self._device)
        return None

    def close(self) -> None:
        """Gives sessions and weights back; calls after it run the original."""
        self.programs = ()
        self._plans.clear()


def _plan(program: Compiled, sizes: Sizes, results: Sizes, dtypes: Sequence[torch.dtype], device: torch.device) -> Plan:
    return Plan(
        program=program,
        bindings=deque(),
        inputs=tuple(zip(program.inputs, dtypes, map(tuple, sizes), strict=True)),
        outputs=tuple(zip(program.outputs, program.dtypes, map(tuple, results), strict=True)),
        indices=tuple(index for index in program.indices if 0 not in sizes[index]),
        device=device,
    )
