"""Which tensors share memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

_EXACT = 1 << 26
"""Up to this many elements apart, overlap is decided element by element; above, by address range."""
Source = tuple[str, Any]


def aliases(
    results: Sequence[Any], inputs: Sequence[torch.Tensor], state: Mapping[str, Any]
) -> frozenset[tuple[int, Source]]:
    """Which results share memory, and with what.

    Args:
        results: the leaves of a result; others than tensors share nothing.
        inputs: the tensors of the call, in key order.
        state: tensors of the module's state by name.

    Returns:
        Pairs (index of the result leaf, source): `("input", i)`, `("state", name)`, or `("result", j)` with a smaller j.
    """
    places: dict[Any, list[tuple[Source, torch.Tensor]]] = {}
    for index, tensor in enumerate(inputs):
        _place(places, ("input", index), tensor)
    for name, tensor in state.items():
        _place(places, ("state", name), tensor)
    found: set[tuple[int, Source]] = set()
    for index, leaf in enumerate(results):
        if isinstance(leaf, torch.Tensor):
            near = places.get(_storage(leaf), [])
            found |= {(index, source) for source, other in near if _overlap(leaf, other)}
            _place(places, ("result", index), leaf)
    return frozenset(found)


def _place(places: dict[Any, list[tuple[Source, torch.Tensor]]], source: Source, tensor: torch.Tensor) -> None:
    storage = _storage(tensor)
    if storage is not None:
        places.setdefault(storage, []).append((source, tensor))


def _storage(tensor: torch.Tensor) -> Any:
    """What two tensors of one memory have in common, None for tensors without memory of their own."""
    if tensor.layout != torch.strided or tensor.is_nested or not tensor.numel() or tensor.device.type == "meta":
        return None
    return str(tensor.device), tensor.untyped_storage().data_ptr()


def _overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors of one storage have an element in common: parts of a chunked tensor have none."""
    first, last = _range(a)
    other_first, other_last = _range(b)
    if last <= other_first or other_last <= first:
        return False
    span = max(last, other_last) - min(first, other_first)
    if a.element_size() != b.element_size() or span > _EXACT * a.element_size():
        return True
    size, start = a.element_size(), min(first, other_first)
    mask = torch.zeros(span // size, dtype=torch.bool)
    mask.as_strided(a.shape, a.stride(), (first - start) // size).fill_(True)
    return bool(mask.as_strided(b.shape, b.stride(), (other_first - start) // size).any())


def _range(tensor: torch.Tensor) -> tuple[int, int]:
    """The addresses that a tensor spans, from the first byte to behind the last one."""
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    first = tensor.data_ptr()
    return first, first + (reach + 1) * tensor.element_size()
