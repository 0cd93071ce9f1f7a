"""Running compiled models: requests, the memory that they see, and the choice of a program by sizes."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch

import tt_core as tt
from tt_openvino.convert import Compiled
from tt_openvino.ports import SHARED, shared

Tensors = Sequence[torch.Tensor]
Sizes = tuple[tuple[int, ...], ...]

_PLANS = 1024
"""Combinations of sizes that are remembered."""
_COPIED = 256 * 1024
"""Bytes of results up to which a copy costs less than to bind new memory for one run: some 60 us beside a model of 7 ms."""
_OWN = 16
"""Combinations of sizes that have requests of their own; later ones share some, which are bound anew for each."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """How one combination of input sizes is run.

    Attributes:
        program: the compiled program that is right for them.
        requests: idle requests of that program; bound to these sizes alone where sizes are few.
        inputs: per input its port, sizes, type, and whether it is small enough to be copied.
        outputs: sizes and type per result; the port is the position.
        copied: whether OpenVINO copies the results into arrays, which is faster where all are small.
        limits: what int64 inputs may hold.
    """

    program: Compiled
    requests: deque[Request]
    inputs: tuple[tuple[int, tuple[int, ...], torch.dtype, bool], ...]
    outputs: tuple[tuple[tuple[int, ...], torch.dtype], ...]
    copied: bool
    limits: tuple[tuple[int, int, int], ...]

    def admits(self, inputs: Tensors) -> bool:
        """Whether int64 inputs hold what 32 bits and the unit's tables can."""
        for index, low, high in self.limits:
            least, greatest = tt.flat.extremes(inputs[index])
            if least < low or greatest >= high:
                return False
        return True

    def run(self, inputs: Tensors) -> list[torch.Tensor]:
        """Runs the program on a request of its own; the results are the caller's.

        A request whose run raises is dropped, since it may still point at the caller's memory.
        """
        try:
            request = self.requests.pop()
        except IndexError:
            request = Request(self.program.loaded.create_infer_request())
        results = request.run(self, inputs)
        self.requests.append(request)
        return results

    def prime(self, inputs: Tensors) -> None:
        """Makes a request for each stream and runs them all at once: each stream chooses its kernels when it first runs."""
        made = [Request(self.program.loaded.create_infer_request()) for _ in range(self.program.streams)]
        dense = [tensor.to("cpu") for tensor in inputs]
        if len(made) == 1:
            made[0].run(self, dense)
        else:
            with ThreadPoolExecutor(len(made)) as pool:
                list(pool.map(lambda request: request.run(self, dense), made))
        self.requests.extend(made)


class Request:
    """An infer request and the memory that its ports point at.

    Small tensors are copied through buffers that stay bound. Large ones are bound for one run by their address; after it
    the port points at a placeholder of this request again, so that no port ever points at memory that may be freed.
    Placeholders are never written, and so take address space only.
    """

    def __init__(self, request: Any) -> None:
        self._request = request
        self._infer = request.infer
        self._plan: Plan | None = None
        self._held: list[tuple[torch.Tensor, Any]] = []
        self._copied_in: list[tuple[torch.Tensor, int]] = []
        self._shared_in: list[tuple[int, int, Any]] = []
        self._shared_out: list[tuple[int, tuple[int, ...], torch.dtype, Any]] = []

    def run(self, plan: Plan, inputs: Tensors) -> list[torch.Tensor]:
        """One inference; `inputs` are CPU tensors of the plan's sizes and types, of any strides."""
        if self._plan is not plan:
            self._bind(plan)
        for buffer, index in self._copied_in:
            buffer.copy_(inputs[index])
        if not self._shared_in:
            return self._results()
        alive = [inputs[index].contiguous() for index, _, _ in self._shared_in]
        for dense, (_, port, _) in zip(alive, self._shared_in, strict=True):
            self._request.set_input_tensor(port, shared(dense))
        results = self._results()
        for _, port, parked in self._shared_in:
            self._request.set_input_tensor(port, parked)
        return results

    def _results(self) -> list[torch.Tensor]:
        if not self._shared_out:
            return [torch.from_numpy(array) for array in self._infer().values()]
        results = [torch.empty(sizes, dtype=dtype) for _, sizes, dtype, _ in self._shared_out]
        for result, (port, _, _, _) in zip(results, self._shared_out, strict=True):
            self._request.set_output_tensor(port, shared(result))
        self._infer(share_outputs=True)
        for port, _, _, parked in self._shared_out:
            self._request.set_output_tensor(port, parked)
        return results

    def _bind(self, plan: Plan) -> None:
        """Gives every port memory of the plan's sizes."""
        self._plan = None
        held: list[tuple[torch.Tensor, Any]] = []
        self._copied_in, self._shared_in, self._shared_out = [], [], []
        for index, (port, sizes, dtype, small) in enumerate(plan.inputs):
            buffer, view = _memory(sizes, dtype, held)
            self._request.set_input_tensor(port, view)
            if small:
                self._copied_in.append((buffer, index))
            else:
                self._shared_in.append((index, port, view))
        for port, (sizes, dtype) in enumerate(plan.outputs):
            _, view = _memory(sizes, dtype, held)
            self._request.set_output_tensor(port, view)
            if not plan.copied:
                self._shared_out.append((port, sizes, dtype, view))
        self._held = held  # the former plan's memory goes only now that no port points at it
        self._plan = plan


def _memory(
    sizes: tuple[int, ...], dtype: torch.dtype, held: list[tuple[torch.Tensor, Any]]
) -> tuple[torch.Tensor, Any]:
    with torch.inference_mode(False):
        buffer = torch.empty(sizes, dtype=dtype)
    view = shared(buffer)
    held.append((buffer, view))
    return buffer, view


class Runner:
    """Chooses a program by the sizes of the inputs, and runs it.

    Args:
        programs: compiled programs, the first that fits is taken.
        dtypes: of the inputs.
    """

    def __init__(self, programs: Sequence[Compiled], dtypes: Sequence[torch.dtype]) -> None:
        self._programs = [(program, deque[Request]()) for program in programs]
        self._dtypes = tuple(dtypes)
        self._plans: dict[Sizes, Plan | None] = {}
        self.get = self._plans.get

    @property
    def programs(self) -> tuple[Compiled, ...]:
        """The programs; none after `close`."""
        return tuple(program for program, _ in self._programs)

    def find(self, sizes: Sizes, inputs: Tensors) -> Plan | None:
        """The plan for these sizes; None: no program is right for them. `inputs` may be run to learn the results' sizes."""
        if sizes in self._plans:
            return self._plans.get(sizes)
        plan = self._planned(sizes, inputs)
        if len(self._plans) >= _PLANS:
            self._plans.clear()
        self._plans[sizes] = plan
        return plan

    def _planned(self, sizes: Sizes, inputs: Tensors) -> Plan | None:
        for program, requests in self._programs:
            if program.fits(sizes):
                idle = deque[Request]() if len(self._plans) < _OWN else requests
                return _plan(program, idle, sizes, program.result_sizes(sizes, inputs), self._dtypes)
        return None

    def close(self) -> None:
        """Gives requests and compiled models back; sizes met later find no program."""
        for plan in self._plans.values():
            if plan is not None:
                plan.requests.clear()
        self._plans.clear()
        for _, requests in self._programs:
            requests.clear()
        self._programs.clear()


def _plan(
    program: Compiled, requests: deque[Request], sizes: Sizes, results: Sizes, dtypes: tuple[torch.dtype, ...]
) -> Plan:
    numbers = [(i, limit.low, limit.high) for i, limit in program.program.limits.items() if 0 not in sizes[i]]
    outputs = tuple(zip(map(tuple, results), program.dtypes, strict=True))
    return Plan(
        program=program,
        requests=requests,
        inputs=tuple(
            (port, tuple(size), dtype, _bytes(size, dtype) < SHARED)
            for port, size, dtype in zip(program.ports, sizes, dtypes, strict=True)
        ),
        outputs=outputs,
        copied=_copied(outputs),
        limits=tuple(numbers),
    )


def _copied(outputs: Sequence[tuple[Sequence[int], torch.dtype]]) -> bool:
    as_arrays = all(dtype != torch.bfloat16 for _, dtype in outputs)  # which numpy has not
    return as_arrays and sum(_bytes(*each) for each in outputs) <= _COPIED


def _bytes(sizes: Sequence[int], dtype: torch.dtype) -> int:
    return math.prod(sizes) * dtype.itemsize
