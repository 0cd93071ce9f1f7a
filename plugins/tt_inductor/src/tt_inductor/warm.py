"""The calls that a build runs, so that every program is there before the first call in service."""

from __future__ import annotations

import contextlib
import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

import tt_core as tt

Case = tuple[int, Mapping[str, int]]
"""A sample's number, and the sizes that some symbols are narrowed to."""
_MOST_COMBINATIONS = 8  # of axes at size 1: each costs a compile


class Arguments:
    """The recorded calls of a unit in canonical form, copied anew for each run."""

    def __init__(self, signature: inspect.Signature, calls: tt.Calls) -> None:
        """See the class.

        Args:
            signature: the unit's own.
            calls: the samples, and the sizes to cover.
        """
        self._signature = signature
        self._samples = [_bound(signature, sample.call) for sample in calls.samples]
        self._shapes = calls.shapes

    def cases(self) -> list[Case]:
        """What to run: (sample, sizes to narrow symbols to), largest first; axes of size 1 in every combination.

        PyTorch compiles sizes 0 and 1 apart from all others.
        """
        order = sorted(range(len(self._samples)), key=self._elements, reverse=True)
        found: list[Case] = [(index, {}) for index in order]
        small = [name for name, axis in self._symbols().items() if axis.lo <= 1 < axis.hi]
        for choice in itertools.product((False, True), repeat=len(small)):
            ones = {name: 1 for name, one in zip(small, choice, strict=True) if one}
            if ones and len(found) < len(order) + _MOST_COMBINATIONS:
                found.append((order[0], ones))
        return found

    def copy(self, case: Case, *, inference: bool, mark: Callable[[Any, int], None] | None = None) -> tuple[Any, Any]:
        """Positional and keyword arguments of one case, in memory of their own.

        Args:
            case: from `cases`.
            inference: make them inference tensors.
            mark: tells Dynamo that an axis of a tensor moves.
        """
        index, sizes = case
        leaves, spec = tt.flatten(tt.replica(dict(self._samples[index].arguments)))
        places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        for place, axes in zip(places, self._shapes.leaves, strict=True):
            leaves[place] = _narrowed(leaves[place], axes, sizes)
        if inference:
            with torch.inference_mode():
                memo: dict[int, torch.Tensor] = {}
                for place in places:
                    leaves[place] = memo.setdefault(id(leaves[place]), leaves[place].clone())
        if mark is not None:
            for place, axes in zip(places, self._shapes.leaves, strict=True):
                for dim in _moving(leaves[place], axes):
                    mark(leaves[place], dim)
        bound = inspect.BoundArguments(self._signature, tt.unflatten(spec, leaves))
        return bound.args, bound.kwargs

    def _elements(self, index: int) -> int:
        return sum(
            t.numel() for t in tt.flatten(dict(self._samples[index].arguments))[0] if isinstance(t, torch.Tensor)
        )

    def _symbols(self) -> dict[str, tt.Axis]:
        axes = [axis for leaf in self._shapes.leaves for axis in leaf if isinstance(axis, tt.Axis)]
        return {axis.symbol: axis for axis in axes}


@contextlib.contextmanager
def ambient(key: tt.CallKey, *, inference: bool) -> Iterator[None]:
    """The modes under which calls of `key` arrive: its autocast, and no gradients or inference mode."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.inference_mode() if inference else torch.no_grad())
        for kind, dtype in key.ambient.autocast:
            stack.enter_context(torch.autocast(kind, dtype))
        yield


def _bound(signature: inspect.Signature, call: tt.Call) -> inspect.BoundArguments:
    bound = signature.bind(*call.args, **call.kwargs)
    bound.apply_defaults()
    return bound


def _narrowed(tensor: torch.Tensor, axes: Sequence[int | tt.Axis], sizes: Mapping[str, int]) -> torch.Tensor:
    narrowed = tensor
    for dim, axis in enumerate(axes):
        if isinstance(axis, tt.Axis) and axis.symbol in sizes:
            narrowed = narrowed.narrow(dim, 0, sizes[axis.symbol])
    return tensor if narrowed is tensor else torch.empty_like(narrowed).copy_(narrowed)


def _moving(tensor: torch.Tensor, axes: Sequence[int | tt.Axis]) -> list[int]:
    return [dim for dim, axis in enumerate(axes) if isinstance(axis, tt.Axis) and tensor.size(dim) > 1]
