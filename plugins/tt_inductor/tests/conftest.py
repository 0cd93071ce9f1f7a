"""What the tests of the plugin share: a unit and its calls without a tuning run around them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import tt_core as tt
from tt_core.values import Ambient, ConstLeaf, TensorLeaf

Make = Callable[..., tuple[tt.Unit, tt.Calls]]


def _leaf(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        place = {"device": value.device, "layout": value.layout}
        return TensorLeaf(dtype=value.dtype, rank=value.ndim, type=type(value), **place)
    return ConstLeaf(type=type(value), value=repr(value))


def _sizes(rows: list[list[tuple[int, ...]]]) -> tt.Shapes:
    """What moved over the rows; axes that were equal in all of them share a symbol."""
    symbols: dict[tuple[int, ...], str] = {}

    def one(values: tuple[int, ...]) -> int | tt.Axis:
        if len(set(values)) == 1:
            return values[0]
        return tt.Axis(lo=min(values), hi=max(values), symbol=symbols.setdefault(values, f"s{len(symbols)}"))

    ranks = [len(shape) for shape in rows[0]]
    return tt.Shapes(
        leaves=tuple(
            tuple(one(tuple(row[leaf][axis] for row in rows)) for axis in range(rank))
            for leaf, rank in enumerate(ranks)
        )
    )


@pytest.fixture
def make() -> Make:
    """`make(module, call, ...)`: the unit and the calls of one key."""

    def unit_and_calls(module: nn.Module, *calls: tt.Call, **facts: Any) -> tuple[tt.Unit, tt.Calls]:
        signature = inspect.signature(module.forward)
        rows: list[list[tuple[int, ...]]] = []
        for call in calls:
            bound = signature.bind(*call.args, **call.kwargs)
            bound.apply_defaults()
            leaves, tree = tt.flatten(dict(bound.arguments))
            rows.append([tuple(leaf.shape) for leaf in leaves if isinstance(leaf, torch.Tensor)])
        key = tt.CallKey(tree=tree, leaves=tuple(_leaf(leaf) for leaf in leaves), ambient=Ambient())
        samples = tuple(
            tt.Sample(call=call, expected=tt.Observation(result=None), index=index) for index, call in enumerate(calls)
        )
        unit = tt.Unit(path="unit", module=module, forward=module.forward)
        made = tt.Calls(key=key, shapes=_sizes(rows), samples=samples, seen=len(calls), facts=tt.Facts(**facts))
        return unit, made

    return unit_and_calls


@pytest.fixture
def compiles(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for every graph that Inductor itself was given."""
    from torch._inductor import compile_fx

    real = compile_fx.compile_fx
    counted: list[int] = []

    def counting(graph: Any, inputs: Any, **kwargs: Any) -> Any:
        if kwargs.get("config_patches"):  # it calls itself without them
            counted.append(len(graph.graph.nodes))
        return real(graph, inputs, **kwargs)

    monkeypatch.setattr(compile_fx, "compile_fx", counting)
    return counted
