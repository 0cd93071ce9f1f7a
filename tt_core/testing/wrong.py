"""The wrong-backend matrix: right callables broken in one named way each, and what has to notice.

    for wrong in WRONG.values():
        plugin = to_backend(wrong)      # eager, broken: installing it must be refused

A check that lets one of these through lets a real backend through that is wrong in the same way.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from tt_core import trees
from tt_core.hookspecs import hookimpl
from tt_core.state import identical
from tt_core.values import Axis, Backend, Built, Call, Calls, Fidelity, Keeps, Shapes, Unit, Weights, frozen

Forward = Callable[..., Any]
_BATCH = 3
_SCALE = 1.01
_NOISE = 1e-2
_PADDED = 8


@frozen
class WrongBackend:
    """One way to be wrong.

    Attributes:
        name: a word for tables and test ids, usable in a backend's name.
        says: the sentence of what is wrong.
        caught_by: the promise that has to notice: "values" (`tt_core.check.compare`), "weights" (`stale_after_write`)
            or "covers" (`covers_probe`).
        breaks: from a right callable, and the recorded calls (for the one that looks at them), to the wrong one.
        covers: what a built of it claims to cover.
    """

    name: str
    says: str
    caught_by: str
    breaks: Callable[..., Forward]
    covers: Callable[[Calls], Shapes | None] = lambda _calls: None


def to_backend(wrong: WrongBackend) -> object:
    """A plugin object that declares the backend `wrong_<name>`: eager, broken, with claims as good as eager's."""
    return _Plugin(wrong=wrong)


@frozen
class _Plugin:
    wrong: WrongBackend

    @property
    def __name__(self) -> str:
        return f"wrong_{self.wrong.name}"

    @hookimpl
    def tt_backends(self) -> Backend:
        """Claims to keep everything, on every device."""
        return Backend(
            name=f"wrong_{self.wrong.name}",
            devices=frozenset({"*"}),
            fidelity=Fidelity.CLOSE,
            weights=Weights.LIVE,
            keeps=frozenset(Keeps),
        )

    @hookimpl
    def tt_build(self, unit: Unit, calls: Calls) -> Built:
        """The unit's original forward, broken."""
        broken = self.wrong.breaks(unit.forward, [sample.call for sample in calls.samples])
        return Built(call=broken, weights=Weights.LIVE, covers=self.wrong.covers(calls))


def _on_results(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., Forward]:
    """Breaks a callable by changing each tensor that it returns."""

    def breaks(call: Forward, calls: Sequence[Call] = ()) -> Forward:  # noqa: ARG001  one signature for all
        return lambda *args, **kwargs: trees.mapped(change, call(*args, **kwargs))

    return breaks


def _on_floats(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., Forward]:
    return _on_results(lambda tensor: change(tensor) if tensor.is_floating_point() else tensor)


def _other_dtype(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.float32 if tensor.dtype == torch.float64 else torch.float64)


def _through_half(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.bfloat16 if tensor.dtype == torch.float16 else torch.float16).to(tensor.dtype)


def _transposed(tensor: torch.Tensor) -> torch.Tensor:
    """The right shape and the right numbers, written in the other order of the last two axes."""
    return tensor.mT.reshape(tensor.shape) if tensor.dim() > 1 else tensor.flip(0) if tensor.dim() else tensor


def _off_row(tensor: torch.Tensor) -> torch.Tensor:
    """At batch 3 the last row is the one before it."""
    if tensor.dim() < 1 or tensor.shape[0] != _BATCH:
        return tensor
    wrong = tensor.clone()
    wrong[-1] = tensor[-2]
    return wrong


def _padded(tensor: torch.Tensor) -> torch.Tensor:
    """The batch rounded up to the next multiple of 8, and never cut back."""
    if tensor.dim() < 1:
        return tensor
    extra = _PADDED - tensor.shape[0] % _PADDED
    return torch.cat([tensor, tensor.new_zeros((extra, *tensor.shape[1:]))])


def _noisy(call: Forward, calls: Sequence[Call] = ()) -> Forward:  # noqa: ARG001
    generator = torch.Generator().manual_seed(0)

    def noisy(tensor: torch.Tensor) -> torch.Tensor:
        noise = torch.randn(tensor.shape, generator=generator).to(tensor)
        return tensor + _NOISE * tensor.square().mean().sqrt() * noise

    return _on_floats(noisy)(call)


def _nan_last(call: Forward, calls: Sequence[Call] = ()) -> Forward:
    """One NaN in the result of the last recorded call; without recorded calls, of every third call."""
    last = trees.tensors((calls[-1].args, calls[-1].kwargs)) if calls else None
    count = 0

    def broken(*args: Any, **kwargs: Any) -> Any:
        nonlocal count
        count += 1
        given = trees.tensors((args, kwargs))
        hit = count % 3 == 0 if last is None else _same(given, last)
        result = call(*args, **kwargs)
        return trees.mapped(_with_nan, result) if hit else result

    return broken


def _same(left: Sequence[torch.Tensor], right: Sequence[torch.Tensor]) -> bool:
    return len(left) == len(right) and all(identical(a, b) for a, b in zip(left, right, strict=True))


def _with_nan(tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.is_floating_point() or not tensor.numel():
        return tensor
    wrong = tensor.clone(memory_format=torch.contiguous_format)
    wrong.view(-1)[-1] = torch.nan
    return wrong


def _overwritten(call: Forward, calls: Sequence[Call] = ()) -> Forward:  # noqa: ARG001
    """Results live in memory that the next call of their size writes to, as a captured device graph's do."""
    held: dict[Any, torch.Tensor] = {}

    def broken(*args: Any, **kwargs: Any) -> Any:
        leaves, spec = trees.flatten(call(*args, **kwargs))
        return trees.unflatten(spec, [_stored(held, i, leaf) for i, leaf in enumerate(leaves)])

    return broken


def _stored(held: dict[Any, torch.Tensor], position: int, leaf: Any) -> Any:
    """The leaf, in the front part of one memory per leaf, dtype and device."""
    if not isinstance(leaf, torch.Tensor) or leaf.layout != torch.strided:
        return leaf
    place = (position, leaf.dtype, leaf.device)
    if place not in held or held[place].numel() < leaf.numel():
        held[place] = torch.empty(max(leaf.numel(), 1 << 16), dtype=leaf.dtype, device=leaf.device)
    return held[place][: leaf.numel()].view(leaf.shape).copy_(leaf)


def _stale(call: Forward, calls: Sequence[Call] = ()) -> Forward:  # noqa: ARG001
    """Runs a copy of the module, as it was."""
    module = getattr(call, "__self__", None)
    if not isinstance(module, nn.Module):
        raise TypeError(f"{call!r} is no method of a module: it has no weights that could be stale")
    forward: Forward = copy.deepcopy(call)  # a bound method is copied with what it is bound to
    return forward


def _writes_input(call: Forward, calls: Sequence[Call] = ()) -> Forward:  # noqa: ARG001
    """The first tensor is scratch space once the result is there."""

    def broken(*args: Any, **kwargs: Any) -> Any:
        result = trees.replica(call(*args, **kwargs))
        for tensor in trees.tensors((args, kwargs))[:1]:
            tensor.logical_not_() if tensor.dtype == torch.bool else tensor.add_(1)
        return result

    return broken


def _plain_containers(call: Forward, calls: Sequence[Call] = ()) -> Forward:  # noqa: ARG001
    return lambda *args, **kwargs: _demoted(call(*args, **kwargs))


def _demoted(result: Any) -> Any:
    """The same values in a simpler container: a dict for `ModelOutput`, a tuple for one tensor."""
    if isinstance(result, Mapping):
        return dict(result) if type(result) is not dict else tuple(result.values())
    if dataclasses.is_dataclass(result) and not isinstance(result, type):
        return {field.name: getattr(result, field.name) for field in dataclasses.fields(result)}
    if isinstance(result, tuple):
        return list(result)
    return tuple(result) if isinstance(result, list) else (result,)


def _unequal_axes(call: Forward, calls: Sequence[Call] = ()) -> Forward:  # noqa: ARG001
    """Where eager refuses or broadcasts tensors of unequal first axes, computes with what they have in common."""

    def broken(*args: Any, **kwargs: Any) -> Any:
        sizes = [tensor.shape[0] for tensor in trees.tensors((args, kwargs)) if tensor.dim()]
        cut = lambda tensor: tensor[: min(sizes)] if tensor.dim() else tensor  # noqa: E731
        args, kwargs = trees.mapped(cut, (args, kwargs)) if len(set(sizes)) > 1 else (args, kwargs)
        return call(*args, **kwargs)

    return broken


def _own_symbols(calls: Calls) -> Shapes:
    """The recorded sizes, with every moving axis free of every other."""
    return Shapes(
        leaves=tuple(
            tuple(
                Axis(lo=size.lo, hi=size.hi, symbol=f"leaf{i}_axis{j}") if isinstance(size, Axis) else size
                for j, size in enumerate(leaf)
            )
            for i, leaf in enumerate(calls.shapes.leaves)
        )
    )


def _wrong(name: str, says: str, breaks: Callable[..., Forward], caught_by: str = "values") -> WrongBackend:
    return WrongBackend(name=name, says=says, caught_by=caught_by, breaks=breaks)


_MATRIX = (
    _wrong("scaled", "results are 1.01 times too large", _on_floats(lambda tensor: tensor * _SCALE)),
    _wrong("row", "at batch 3 the last row is a copy of the one before it", _on_results(_off_row)),
    _wrong("dtype", "results come in another floating point dtype", _on_floats(_other_dtype)),
    _wrong("half", "results went through half precision", _on_floats(_through_half)),
    _wrong("transposed", "results are written in the other order of their last two axes", _on_results(_transposed)),
    _wrong("nan_last", "there is a NaN in the last sample only", _nan_last),
    _wrong("overwritten", "results are overwritten by the next call", _overwritten),
    _wrong("stale", "weights that were written in place are not seen", _stale, "weights"),
    _wrong("input_written", "an input is changed in place", _writes_input),
    _wrong("noise", "results carry noise of 1e-2 of their size", _noisy),
    _wrong("container", "a dict comes instead of a ModelOutput, a tuple instead of a tensor", _plain_containers),
    _wrong("padded", "the batch comes back padded to a multiple of 8", _on_results(_padded)),
    WrongBackend(
        name="unequal_axes",
        says="axes that must be equal are claimed to be free",
        caught_by="covers",
        breaks=_unequal_axes,
        covers=_own_symbols,
    ),
)
WRONG: Mapping[str, WrongBackend] = {wrong.name: wrong for wrong in _MATRIX}
"""Every way to be wrong, by name. For units in float32: noise and half precision are inside bfloat16's rounding."""
