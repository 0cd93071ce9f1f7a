"""A four-layer transformer encoder: what would be tuned, tuned, and checked against the untuned output."""

from __future__ import annotations

import sys

import torch
from torch import nn

import tt_core as tt

LARGEST_ERROR = 1e-4
"""Relative to the untuned output, by the L2 norm; backends reorder sums, which moves f32 results by about 1e-6."""


def make_encoder(layers: int = 4, width: int = 256, heads: int = 4) -> nn.Module:
    """Makes an encoder over `f32[batch, tokens, width]`."""
    layer = nn.TransformerEncoderLayer(width, heads, dim_feedforward=4 * width, batch_first=True)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).eval()


def main() -> int:
    """Shows the cuts of a dry run, tunes, prints the table, compares."""
    torch.manual_seed(0)
    model = make_encoder()
    samples = [torch.randn(1, tokens, 256) for tokens in (32, 48, 64)]
    with torch.no_grad():
        expected = [model(sample) for sample in samples]

    for depth in tt.auto_tune(model, samples, dry_run=True).depths:
        depths = ", ".join(map(str, depth.cut.depths))
        print(f"depth {depths}: modules that would be tuned: {depth.wrapped}")

    result = tt.auto_tune(model, samples, progress=True)
    print(result)

    with torch.no_grad():
        error = max(relative_error(model(sample), before) for sample, before in zip(samples, expected, strict=True))
    print(f"relative error to the untuned output: {error:.1e}")
    return 0 if error <= LARGEST_ERROR else 1


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """The L2 distance of `actual` to `expected` as a share of the norm of `expected`."""
    return float((actual - expected).norm() / expected.norm())


if __name__ == "__main__":
    sys.exit(main())
