"""Results copied out of a graph's memory, so that the caller owns them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

Outlet = Callable[[], list[torch.Tensor]]


def outlet(outputs: Sequence[torch.Tensor]) -> Outlet:
    """A function that copies `outputs`: sizes and strides are kept, and so is memory that they share with each other.

    Args:
        outputs: the tensors that the graph writes.
    """
    shared = _shared(outputs)
    if not shared and all(_dense(tensor) for tensor in outputs):
        plain = tuple(outputs)
        return lambda: [tensor.clone() for tensor in plain]
    copies = [
        _storage_copy(outputs, group) if len(group) > 1 else _copy(outputs, group[0]) for group in _groups(outputs)
    ]

    def take() -> list[torch.Tensor]:
        made: dict[int, torch.Tensor] = {}
        for copy in copies:
            made |= copy()
        return [made[index] for index in range(len(outputs))]

    return take


def _groups(outputs: Sequence[torch.Tensor]) -> list[list[int]]:
    """Positions of the outputs by the memory they are in."""
    found: dict[tuple[int, int], list[int]] = {}
    for index, tensor in enumerate(outputs):
        storage = tensor.untyped_storage()
        place = (storage.data_ptr(), 0) if storage.nbytes() else (0, index + 1)
        found.setdefault(place, []).append(index)
    return list(found.values())


def _shared(outputs: Sequence[torch.Tensor]) -> bool:
    return any(len(group) > 1 for group in _groups(outputs))


def _dense(tensor: torch.Tensor) -> bool:
    """Whether its elements fill a range of memory, in some order: `clone` keeps the strides of these."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride != expected:
            return False
        expected *= max(1, size)
    return True


def _copy(outputs: Sequence[torch.Tensor], index: int) -> Callable[[], dict[int, torch.Tensor]]:
    tensor = outputs[index]
    if _dense(tensor):
        return lambda: {index: tensor.clone()}
    if any(stride == 0 < size - 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True)):
        return _storage_copy(outputs, [index])
    size, stride, dtype, device = tensor.shape, tensor.stride(), tensor.dtype, tensor.device
    return lambda: {index: torch.empty_strided(size, stride, dtype=dtype, device=device).copy_(tensor)}


def _storage_copy(outputs: Sequence[torch.Tensor], group: Sequence[int]) -> Callable[[], dict[int, torch.Tensor]]:
    """Copies the whole memory that a group shares, and looks at the copy as the group does."""
    first = outputs[group[0]]
    memory = torch.empty(0, dtype=torch.uint8, device=first.device).set_(first.untyped_storage())
    views = [(i, outputs[i].dtype, outputs[i].storage_offset(), outputs[i].shape, outputs[i].stride()) for i in group]

    def take() -> dict[int, torch.Tensor]:
        storage = memory.clone().untyped_storage()
        return {
            index: torch.empty(0, dtype=dtype, device=memory.device).set_(storage, offset, size, stride)
            for index, dtype, offset, size, stride in views
        }

    return take
