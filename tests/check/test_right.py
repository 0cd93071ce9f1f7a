"""Right candidates pass: the same mathematics in another order."""

from __future__ import annotations

import pytest
import torch

from tt_core.check import whole
from tt_core.values import Call, Tolerance

KINDS = ("mlp", "normed", "attention", "conv")
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_other_order_passes(unit_trial, unit_kinds, kind, dtype):
    """A candidate that sums in another order passes in every precision, with a truth to judge it by."""
    trial = unit_trial(unit_kinds[kind], dtype)

    verdict = trial.verdict(trial.unit.module.other)

    assert all(trial.truth)
    assert verdict.ok, verdict
    assert verdict.error is not None
    assert verdict.error < 0.02
    assert verdict.eager_error is not None
    assert (verdict.max_abs > 0) == (verdict.rel_l2 > 0)
    assert verdict.max_abs > 0 or dtype.itemsize == 2  # half precision may round both orders to the same numbers
    assert verdict.compared >= 3


@pytest.mark.parametrize("kind", KINDS)
def test_eager_itself_is_right(unit_trial, unit_kinds, kind):
    """Eager's own second run passes with eager's own error and no distance to eager."""
    trial = unit_trial(unit_kinds[kind])

    verdict = trial.verdict(trial.unit.forward)

    assert verdict.ok
    assert verdict.error == verdict.eager_error
    assert verdict.max_abs == 0
    assert verdict.rel_l2 == 0
    assert not verdict.reason


@pytest.mark.parametrize("kind", KINDS)
def test_float64_candidate_is_right(unit_trial, unit_kinds, kind):
    """A candidate that is nearer to the truth than eager is right."""
    trial = unit_trial(unit_kinds[kind])
    truths = iter(trial.truth)

    def exact(x):
        t = next(truths).result
        eager = trial.unit.forward(x)
        if isinstance(eager, dict):
            return {"y": t["y"].float(), "n": eager["n"]}
        return tuple(part.float() for part in t) if isinstance(eager, tuple) else t.float()

    verdict = trial.verdict(exact)

    assert verdict.ok
    assert verdict.error < verdict.eager_error


def test_permuted_sum(trial_of):
    """A long reduction that is done in any order passes."""

    class Total(torch.nn.Module):
        def forward(self, x):
            return x.sum(-1)

    torch.manual_seed(3)
    trial = trial_of(Total(), *(Call(torch.randn(rows, 4000) + 0.5) for rows in (9, 16)))
    for seed in range(5):
        order = torch.randperm(4000, generator=torch.Generator().manual_seed(seed))
        assert trial.verdict(lambda x, order=order: x[:, order].sum(-1)).ok
        assert trial.verdict(lambda x, order=order: x[:, order].cumsum(-1)[:, -1]).ok


def test_tightened_tolerance_can_refuse_rounding(unit_trial, unit_kinds):
    """A factor far below 1 leaves no room, not even for another order."""
    trial = unit_trial(unit_kinds["mlp"])

    assert not trial.verdict(trial.unit.module.other, Tolerance(factor=1e-3)).ok


def test_last_bits_of_large_half_precision_numbers_pass_without_a_truth():
    """Where there is no float64 run, one large bfloat16 number a few last bits off is rounding; one far off is not."""
    torch.manual_seed(0)
    eager = torch.randn(4, 256).to(torch.bfloat16)
    eager[0, 0] = 8.0
    bits, far = eager.clone(), eager.clone()
    bits[0, 0] = 8.0625  # one last bit is 1/32 here; the tensor's rms is 1
    far[0, 0] = 8.5

    assert whole([eager], [bits], Tolerance()).ok
    assert not whole([eager], [far], Tolerance()).ok
