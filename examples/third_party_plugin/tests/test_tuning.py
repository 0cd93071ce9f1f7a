"""What a user sees of it."""

from __future__ import annotations

import torch
from torch import nn

import tt_core as tt


def test_auto_tune_tries_it() -> None:
    """`auto_tune` builds, checks and races it, and the results are eager's, whoever wins."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()).eval()
    samples = [torch.randn(n, 3, 16, 16) for n in (1, 2, 4)]
    with torch.no_grad():
        expected = model(samples[0])
    search = tt.Settings(cache="off")  # what an earlier run found proves nothing about today's plugin
    named = ["eager", "torchscript"]
    result = tt.auto_tune(model, samples, backends=named, max_depth=0, progress=False, settings=search)
    trials = [trial for trial in result.trials if trial.candidate.name == "torchscript"]

    assert trials
    assert not [trial.outcome for trial in trials if trial.failed]
    with torch.no_grad():
        torch.testing.assert_close(model(samples[0]), expected)


def test_a_branch_on_values_is_refused() -> None:
    """A unit that a trace would get wrong is refused with a sentence, and stays eager."""

    class Branch(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.relu() if bool(x.sum() > 0) else -x

    result = tt.tune(Branch().eval(), [torch.ones(2, 3)], backends=["eager", "torchscript"], progress=False)
    reasons = [trial.outcome.reason for trial in result.trials if isinstance(trial.outcome, tt.Failure)]

    assert reasons == ["a trace would keep one side of a branch, or a size, of it"]
