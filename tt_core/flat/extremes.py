"""The least and the greatest value of an integer input, which programs of 32 bits and tables bound."""

from __future__ import annotations

import torch

_FEW = 256
"""Elements up to which Python is faster than torch's kernel, whose code no cache holds beside a model's run."""


def extremes(tensor: torch.Tensor) -> tuple[int, int]:
    """The least and the greatest element of an integer tensor of any sizes but empty ones.

    Raises:
        ValueError: it is empty.
    """
    if tensor.numel() <= _FEW:
        values = tensor.reshape(-1).tolist()
        return min(values), max(values)
    least, greatest = torch.aminmax(tensor)
    return int(least), int(greatest)
