"""The compiler that Dynamo calls for each graph: Inductor, counted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

import torch


class Graphs:
    """Compiles graphs with Inductor while a build is open, and counts them; later graphs run as they are.

    Dynamo remembers every compiler it ever met, so this holds nothing of a unit once the build is closed.
    """

    def __init__(self, patches: Mapping[str, Any], late: Callable[[], None]) -> None:
        """See the class.

        Args:
            patches: Inductor's configuration, for these graphs only.
            late: told about each graph that appears after the build was closed.
        """
        self.compiled = 0
        self._patches = dict(patches)
        self._late: Callable[[], None] | None = late
        self._open = True
        self._made: list[tuple[Any, Callable[..., Any]]] = []

    def __call__(self, graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """The compiled `graph`; what was compiled before for the same program is used again."""
        identity = _identity(graph, inputs)
        for known, made in self._made:
            if identity is not None and known == identity:
                self.compiled += self._open
                return made
        if self._open:
            from torch._inductor.compile_fx import compile_fx

            compiled: Any = compile_fx(graph, list(inputs), config_patches=self._patches)
            self._made.append((identity, compiled))
            self.compiled += 1  # only now: a graph that Inductor could not compile runs as in eager
            return compiled
        if self._late is not None:
            self._late()
        return graph.forward

    def close_build(self) -> None:
        """From now on nothing is compiled."""
        self._open = False

    def drop(self) -> None:
        """Lets go of the programs, and of the unit's reporter."""
        self._made, self._late = [], None


def _identity(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
    """What two graphs must have in common to share a program; None: do not share.

    Inference tensors make Dynamo trace a second time what compiles to the same program. With sizes that move, a
    program also stands on guards that were written down while it was compiled: it is not shared.
    """
    nodes = graph.graph.nodes
    if any(node.op == "call_module" for node in nodes):
        return None
    if not all(isinstance(value, torch.Tensor) and _static(value) for value in inputs):
        return None
    held = [_Same(reduce(getattr, str(node.target).split("."), graph)) for node in nodes if node.op == "get_attr"]
    metas = [(tuple(t.shape), t.stride(), t.storage_offset(), t.dtype, t.device, t.requires_grad) for t in inputs]
    return (graph.code, held, metas)


class _Same:
    """Equal to what holds the very same object; keeps it alive, or another could take its place in memory."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self._value is other._value

    __hash__ = None  # type: ignore[assignment]


def _static(tensor: torch.Tensor) -> bool:
    return all(type(size) is int for size in (*tensor.shape, *tensor.stride()))
