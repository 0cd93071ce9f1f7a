"""Runs of the original forward that are watched: what a graph cannot do is found before the device is asked to do it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import attrs
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import tt_core as tt
from tt_xpugraph import interface

_READS = frozenset({
    "aten::_local_scalar_dense",
    "aten::is_nonzero",
    "aten::equal",
})  # fmt: skip
_SIZES = frozenset({
    "aten::nonzero",
    "aten::masked_select",
    "aten::_unique",
    "aten::_unique2",
    "aten::unique_dim",
    "aten::unique_consecutive",
    "aten::bincount",
})  # fmt: skip
_COPIES = frozenset({"aten::_to_copy", "aten::copy_"})
_MASKS = (torch.bool, torch.uint8)


@attrs.define(kw_only=True)
class Seen:
    """What a run did.

    Attributes:
        stops: in words, what a capture of the same operators cannot hold, in order.
        outside: tensors that were read and made elsewhere: weights, attributes, caches. A graph has their addresses.
        host: in words, tensors among them that are not on the device: a graph would hold their values.
    """

    stops: list[str] = attrs.field(factory=list)
    outside: list[torch.Tensor] = attrs.field(factory=list)
    host: list[str] = attrs.field(factory=list)


def preflight(run: Callable[[], Any], device: torch.device, inputs: tuple[torch.Tensor, ...]) -> Seen:
    """Watches one run.

    Args:
        run: the forward on `inputs`.
        device: where the graph will run.
        inputs: the tensors it is given.
    """
    watcher = _Watcher(device, inputs)
    with watcher:
        run()
    return watcher.seen


def strict(device: torch.device) -> AbstractContextManager[Any]:
    """Around a run that is captured: raises before an operator that a capture cannot hold.

    The device would call the whole capture invalid, and torch does not recover from that by itself. A forward may do
    without such an operator while it is captured, so what an earlier run showed does not decide.
    """
    return _Watcher(device, (), strict=True)


class _Watcher(TorchDispatchMode):
    """Sees every operator below autograd."""

    def __init__(self, device: torch.device, inputs: tuple[torch.Tensor, ...], *, strict: bool = False) -> None:
        super().__init__()
        self._strict = strict
        self.seen = Seen()
        self._device = device
        self._known: dict[Any, torch.Tensor] = {}
        for tensor in inputs:
            self._learn(tensor)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Notes what an operator reads and needs, and runs it."""
        kwargs = dict(kwargs or {})
        given = [*_tensors((args, kwargs))]
        stop = self._stop(func, args, kwargs, given)
        if stop and self._strict:
            raise tt.BuildRefusedError(f"it cannot be captured: {stop}")
        if stop:
            self.seen.stops.append(stop)
        for tensor in given:
            self._read(tensor)
        result = func(*args, **kwargs)
        for tensor in _tensors(result):
            self._learn(tensor)
        return result

    def _read(self, tensor: torch.Tensor) -> None:
        if _place(tensor) in self._known:
            return
        self._learn(tensor)
        self.seen.outside.append(tensor)
        if not interface.is_on(tensor.device, self._device):
            self.seen.host.append(f"it reads a tensor on {tensor.device} that it did not make")

    def _learn(self, tensor: torch.Tensor) -> None:
        self._known[_place(tensor)] = tensor  # held, so that no other can take its place

    def _stop(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], given: list[torch.Tensor]) -> str:
        name = func._schema.name
        there = any(interface.is_on(tensor.device, self._device) for tensor in given)
        if name in _READS and there:
            return f"it reads a value on the host ({name.removeprefix('aten::')})"
        if (name in _SIZES and there) or _masked(name, args):
            return f"the size of a tensor depends on values ({name.removeprefix('aten::')})"
        if name in _COPIES and self._crosses(given, kwargs):
            return "it copies a tensor between the host and the device"
        if isinstance(kwargs.get("generator"), torch.Generator):
            return "it draws from a random generator of its own, which is not registered with the graph"
        return ""

    def _crosses(self, given: list[torch.Tensor], kwargs: Mapping[str, Any]) -> bool:
        here = [interface.is_on(tensor.device, self._device) for tensor in given]
        target = kwargs.get("device")
        if target is not None:
            here.append(torch.device(target).type == self._device.type)
        return any(here) and not all(here)


def _masked(name: str, args: tuple[Any, ...]) -> bool:
    """Whether it is an index by a mask, whose number of hits is not known beforehand."""
    if name != "aten::index" or len(args) < 2:  # noqa: PLR2004  the tensor and its indices
        return False
    return any(isinstance(index, torch.Tensor) and index.dtype in _MASKS for index in args[1])


def _tensors(tree: Any) -> Iterator[torch.Tensor]:
    """The tensors among an operator's arguments or results."""
    return (leaf for leaf in tt.flatten(tree)[0] if isinstance(leaf, torch.Tensor))


def _place(tensor: torch.Tensor) -> Any:
    """Equal for tensors of one memory."""
    try:
        storage = tensor.untyped_storage()
    except NotImplementedError:  # sparse and other tensors without memory of their own
        return id(tensor)
    return (storage._cdata, str(tensor.device))
