"""A four-layer transformer encoder: what would be tuned, tuned, checked, saved, and loaded by another process."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from torch import nn

import tt_core as tt

LARGEST_ERROR = 1e-4
"""Relative to the untuned output, by the L2 norm; backends reorder sums, which moves f32 results by about 1e-6."""


def make_encoder(layers: int = 4, width: int = 256, heads: int = 4) -> nn.Module:
    """Makes an encoder over `f32[batch, tokens, width]`, with the same weights in every process."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(width, heads, dim_feedforward=4 * width, batch_first=True)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).eval()


def make_samples() -> list[torch.Tensor]:
    """Three sentences' worth of tokens."""
    return [torch.randn(1, tokens, 256) for tokens in (32, 48, 64)]


def main() -> int:
    """Shows the cuts of a dry run, tunes, prints the table, compares, and hands the tuned model to a new process."""
    model, samples = make_encoder(), make_samples()
    expected = outputs(model, samples)

    for depth in tt.auto_tune(model, samples, dry_run=True).depths:
        depths = ", ".join(map(str, depth.cut.depths))
        print(f"depth {depths}: modules that would be tuned: {depth.wrapped}")

    # the search is what this shows: with the cache on, a second run starts from what the first one found;
    # what is to be saved is best built by ways that can be written down
    result = tt.auto_tune(model, samples, progress=True, settings=tt.Settings(cache="off", saveable=True))
    print(result)
    error = worst(expected, outputs(model, samples))
    print(f"relative error to the untuned output: {error:.1e}")
    if error > LARGEST_ERROR:
        return 1

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "encoder.tt"
        print(tt.save(model, path))
        return subprocess.run([sys.executable, __file__, str(path)], check=False).returncode  # noqa: S603  this file


def load(path: Path) -> int:
    """What tomorrow's process does: the model as it is made, and the file; nothing is tuned."""
    model, samples = make_encoder(), make_samples()
    expected = outputs(model, samples)
    print(tt.load(model, path))
    error = worst(expected, outputs(model, samples))
    print(f"loaded by another process, relative error to the untuned output: {error:.1e}")
    return 0 if error <= LARGEST_ERROR else 1


def outputs(model: nn.Module, samples: list[torch.Tensor]) -> list[torch.Tensor]:
    """What the model returns for each sample."""
    with torch.no_grad():
        return [model(sample) for sample in samples]


def worst(expected: list[torch.Tensor], actual: list[torch.Tensor]) -> float:
    """The largest L2 distance to what was expected, as a share of its norm."""
    pairs = zip(expected, actual, strict=True)
    return max(float((after - before).norm() / before.norm()) for before, after in pairs)


if __name__ == "__main__":
    sys.exit(load(Path(sys.argv[1])) if len(sys.argv) > 1 else main())
