"""The smallest use: one module, `tt.tune`, and which backend won."""

from __future__ import annotations

import torch
from torch import nn

import tt_core as tt


@torch.no_grad()
def main() -> None:
    """Tunes a multilayer perceptron as one unit and prints the winner."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256), nn.GELU(), nn.Linear(256, 10)).eval()
    samples = [torch.randn(batch, 256) for batch in (8, 16, 32)]
    expected = [model(sample) for sample in samples]

    result = tt.tune(model, samples)

    print(result)
    winner = result.plan.choices[0].candidate if result.changed else "eager, the original forward"
    print(f"winner: {winner}, {result.speedup:.2f}x")
    for sample, before in zip(samples, expected, strict=True):
        torch.testing.assert_close(model(sample), before, rtol=1e-4, atol=1e-5)


if __name__ == "__main__":
    main()
