"""The contents of a module's weights as hashes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from torch import nn

_DIGEST = 16  # bytes


def contents(module: nn.Module) -> Mapping[str, bytes]:
    """A hash of the values of every parameter and buffer by dotted name; tied ones once per name.

    Tensors whose bytes cannot be read (sparse ones, wrappers) are left out. Reads every byte once, on the CPU.
    """
    named = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    known: dict[int, bytes | None] = {}
    for _, tensor in named:
        if id(tensor) not in known:
            known[id(tensor)] = _hashed(tensor)
    return {name: digest for name, tensor in named if (digest := known[id(tensor)]) is not None}


def _hashed(tensor: torch.Tensor) -> bytes | None:
    form = f"{tensor.dtype} {tuple(tensor.shape)}".encode()
    try:
        flat = tensor.detach().contiguous().view(-1).view(torch.uint8).cpu()
        data = flat.numpy().tobytes()
    except (RuntimeError, TypeError, NotImplementedError):
        return None
    return hashlib.blake2b(data, digest_size=_DIGEST, key=form[:64]).digest()
