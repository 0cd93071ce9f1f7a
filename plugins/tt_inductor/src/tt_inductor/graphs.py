"""The compiler that Dynamo calls for each graph: Inductor, counted."""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class Thread(threading.local):
    """What is counted in each thread.

    Attributes:
        operators: how many operators compiled programs have run.
        before: the same when the latest call began, where a call is more than one program.
        tries: how often the call at hand was looked up again.
    """

    operators = 0
    before = 0
    tries = 0


Late = Callable[[Callable[..., Any]], Callable[..., Any]]


class Graphs:
    """Compiles graphs with Inductor while a build is open, and counts them; what happens to later ones is said by `late`.

    Dynamo remembers every compiler it ever met, so this holds nothing of a unit once the build is closed.
    """

    def __init__(self, patches: Mapping[str, Any], late: Late, thread: Thread) -> None:
        """See the class.

        Args:
            patches: Inductor's configuration, for these graphs only.
            late: makes what runs a graph that appears after the build was closed, of what runs it as in eager.
            thread: where programs count their operators as they run.
        """
        self.compiled = 0
        self._patches = dict(patches)
        self._late: Late | None = late
        self._thread = thread
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

            operators = max(operators_of(graph), 1)  # a program that runs is seen to run
            compiled: Any = compile_fx(graph, list(inputs), config_patches=self._patches)
            program = _counted(compiled, operators, self._thread)
            self._made.append((identity, program))
            self.compiled += 1  # only now: a graph that Inductor could not compile runs as in eager
            return program
        return graph.forward if self._late is None else self._late(graph.forward)

    def close_build(self) -> None:
        """From now on nothing is compiled."""
        self._open = False

    def drop(self) -> None:
        """Lets go of the programs, and of the unit's reporter."""
        self._made, self._late = [], None


def operators_of(graph: torch.fx.GraphModule) -> int:
    """Calls of torch in a graph that return tensors: what `counting` counts in Python."""
    return sum(node.op.startswith("call_") and _makes_tensors(node) for node in graph.graph.nodes)


class counting(TorchFunctionMode):  # noqa: N801  a context manager
    """Counts calls of torch that return tensors, as Dynamo sees them: one for each call, whatever it calls inside."""

    def __init__(self) -> None:
        super().__init__()
        self.operators = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.operators += _holds_tensor(result)
        return result


def _makes_tensors(node: torch.fx.Node) -> bool:
    taken_apart = node.target is operator.getitem and isinstance(_value(node.args[0]), (tuple, list))
    return not taken_apart and _holds_tensor(_value(node))


def _value(node: Any) -> Any:
    return node.meta.get("example_value") if isinstance(node, torch.fx.Node) else node


def _holds_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor) or (
        isinstance(value, (tuple, list)) and any(isinstance(item, torch.Tensor) for item in value)
    )


def _counted(compiled: Callable[..., Any], operators: int, thread: Thread) -> Callable[..., Any]:
    def program(*inputs: Any) -> Any:
        thread.operators += operators
        return compiled(*inputs)

    return program


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
