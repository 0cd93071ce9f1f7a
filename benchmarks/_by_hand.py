"""What one would write by hand for one model and one size."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tt_core.contain import Caught, attempt

AUTOTUNE = "max-autotune-no-cudagraphs"
FUNCTION = " (function)"
"""Marks a graph that is called as a bare function, without a module's `__call__`."""


def graphed(run: Callable[..., Any], sample: dict[str, torch.Tensor]) -> Callable[..., Any]:
    """A graph made by hand over `run`, as PyTorch's documentation shows, with results that the caller owns."""
    static = {name: x.clone() for name, x in sample.items()}
    runtime: Any = torch.cuda
    side = runtime.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run(**static)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = run(**static)

    def call(**given: torch.Tensor) -> Any:
        for name, x in given.items():
            static[name].copy_(x)
        graph.replay()
        return torch.utils._pytree.tree_map(lambda x: x.clone() if isinstance(x, torch.Tensor) else x, result)

    return call


def variants(
    module: nn.Module, sample: dict[str, torch.Tensor], *, autotuned: bool
) -> dict[str, Callable[..., Any] | Caught]:
    """What one would write by hand, each warm; one that fails says why."""
    found: dict[str, Any] = {"eager": module, "graph": attempt(lambda: graphed(module, sample), where="graph")}
    modes = {"inductor": None, "max-autotune": AUTOTUNE} if autotuned else {"inductor": None}
    for name, mode in modes.items():
        compiled = torch.compile(copy.deepcopy(module), dynamic=False, mode=mode)
        found[name] = attempt(functools.partial(_called, compiled, sample), where=name)
        found[f"{name}+graph"] = attempt(functools.partial(graphed, compiled, sample), where=f"graph over {name}")
    return found


def _called(compiled: Callable[..., Any], sample: dict[str, torch.Tensor]) -> Callable[..., Any]:
    compiled(**sample)
    return compiled


def as_module(module: nn.Module, call: Callable[..., Any]) -> nn.Module:
    """The model with a callable in its forward's place, as `torch.cuda.make_graphed_callables` leaves it."""
    made = copy.deepcopy(module)
    made.forward = call
    return made


def called_both_ways(module: nn.Module, by_hand: dict[str, Any]) -> dict[str, Callable[..., Any]]:
    """What could be made, each called as a module, and graphs as bare functions too."""
    able = {name: call for name, call in by_hand.items() if not isinstance(call, Caught)}
    graphs = {name: call for name, call in able.items() if name.endswith("graph")}
    modules = {name: as_module(module, call) for name, call in graphs.items()}
    return able | modules | {f"{name}{FUNCTION}": call for name, call in graphs.items()}
