"""Copies of a CPU's memory that wake no threads.

Torch copies some 30,000 elements and more with all its threads, which spin on for milliseconds afterwards, on cores that a
runtime with threads of its own then lacks: a call of 19 ms took 23 right after the copy of its input (docs/measuring.md).
"""

from __future__ import annotations

import ctypes

import torch


def storage_copy(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    """A copy on the same device."""
    if storage.device.type != "cpu":
        return storage.clone()
    made = torch.UntypedStorage(storage.nbytes(), device="cpu")
    ctypes.memmove(made.data_ptr(), storage.data_ptr(), storage.nbytes())
    return made


def dense_copy(source: torch.Tensor) -> torch.Tensor:
    """A copy with a storage no larger than its values; strides are kept where they leave no gaps."""
    made = torch.empty_like(source, memory_format=torch.preserve_format)
    plain = source.device.type == "cpu" and made.stride() == source.stride()
    if not plain or source.is_conj() or source.is_neg():
        return made.copy_(source)
    ctypes.memmove(made.data_ptr(), source.data_ptr(), source.numel() * source.element_size())
    return made
