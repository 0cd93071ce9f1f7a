"""Facts about a unit, derived by value from what its eager runs did."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as torch_module

from tt_core import trees
from tt_core.samples.observe import observe
from tt_core.samples.same import same_observation
from tt_core.state import Snapshot, find, states
from tt_core.state.rng import moved
from tt_core.values import Call, Facts, Observation, Unit

_OTHER_SEED = 0x5EED
_APPLY = torch.autograd.Function.apply.__func__.__code__  # type: ignore[attr-defined]


def watched(
    unit: Unit, calls: Sequence[Call], *, seed: int, like: Snapshot | None
) -> tuple[tuple[Observation, ...], Facts]:
    """Runs the unit's forward on its recorded calls: what it did, and the facts that follow."""
    watch = Watch(unit.forward)
    observed = observe(watch, unit, calls, seed=seed, like=like)
    random = watch.drew and _differs(unit, calls, observed, seed + _OTHER_SEED, like)
    results = [leaf for one in observed for leaf in trees.flatten(one.result)[0]]
    return observed, Facts(
        writes_inputs=any(one.inputs_after is not None for one in observed),
        writes_state=tuple(sorted({name for one in observed for name in one.state_after})),
        aliases=any(one.aliases for one in observed),
        random=random,
        non_tensors=any(leaf is not None and not isinstance(leaf, torch.Tensor) for leaf in results),
        hooks_inside=hooks_inside(unit.module),
        tied=tied(unit.module),
        custom_autograd=watch.custom_autograd,
        tensor_kinds=tensor_kinds(_all_tensors(unit, calls, results)),
    )


def _differs(
    unit: Unit, calls: Sequence[Call], observed: Sequence[Observation], seed: int, like: Snapshot | None
) -> bool:
    """Whether other random numbers give other results, inputs or state."""
    again = observe(unit.forward, unit, calls, seed=seed, like=like)
    return not all(same_observation(a, b) for a, b in zip(observed, again, strict=True))


class Watch:
    """A forward that notes whether random numbers were drawn and whether a custom autograd function ran.

    Python's own profile hook of this thread sees every `torch.autograd.Function.apply`, with grad off too; nothing in
    torch is patched. While the caller's own profiler has that hook, it keeps it, and custom functions go unnoticed.
    """

    def __init__(self, forward: Callable[..., Any]) -> None:
        self.forward = forward
        self.drew = False
        self.custom_autograd = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the forward."""
        before, free = states(), sys.getprofile() is None  # a C profiler that is taken out cannot be put back
        if free:
            sys.setprofile(self._event)
        try:
            return self.forward(*args, **kwargs)
        finally:
            if free:
                sys.setprofile(None)
            self.drew = self.drew or moved(before)

    def _event(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code is _APPLY:
            self.custom_autograd = True


def hooks_inside(module: nn.Module) -> bool:
    """Whether hooks run inside the unit: on inner modules, or on all modules of the process.

    Hooks on the unit itself run outside its forward, in `nn.Module.__call__`.
    """
    inner = (found.module for found in find(module) if found.module is not module)
    everywhere = torch_module._global_forward_hooks or torch_module._global_forward_pre_hooks
    return bool(everywhere) or any(one._forward_hooks or one._forward_pre_hooks for one in inner)


def tied(module: nn.Module) -> bool:
    """Whether a parameter or buffer has two names, or two of them share memory."""
    named = [t for f in find(module) for t in (*_own(f.module._parameters), *_own(f.module._buffers))]
    places = [(str(t.device), t.data_ptr()) for t in named if t.layout == torch.strided and t.numel() and not _bare(t)]
    return len({id(t) for t in named}) < len(named) or len(set(places)) < len(places)


def _own(entries: Any) -> list[torch.Tensor]:
    return [tensor for tensor in entries.values() if tensor is not None]


def _bare(tensor: torch.Tensor) -> bool:
    """Whether a tensor has no address: meta tensors and wrappers around others."""
    return tensor.device.type == "meta" or hasattr(tensor, "__tensor_flatten__")


def tensor_kinds(tensors: Iterable[torch.Tensor]) -> frozenset[str]:
    """The unusual kinds among tensors: sparse, complex, quantized, subclass, nested, mkldnn."""
    return frozenset(kind for tensor in tensors for kind in _kinds(tensor))


def _kinds(tensor: torch.Tensor) -> Iterator[str]:
    if tensor.is_sparse or tensor.layout in {torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc}:
        yield "sparse"
    if tensor.is_complex():
        yield "complex"
    if tensor.is_quantized:
        yield "quantized"
    if tensor.is_nested:
        yield "nested"
    if tensor.is_mkldnn:
        yield "mkldnn"
    if type(tensor) not in {torch.Tensor, nn.Parameter, nn.Buffer}:
        yield "subclass"


def _all_tensors(unit: Unit, calls: Sequence[Call], results: Sequence[Any]) -> Iterator[torch.Tensor]:
    for call in calls:
        yield from trees.tensors((call.args, call.kwargs))
    yield from (leaf for leaf in results if isinstance(leaf, torch.Tensor))
    yield from (t for f in find(unit.module) for t in (*_own(f.module._parameters), *_own(f.module._buffers)))
