"""Wrong candidates fail, and the verdict says where."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

from tt_core import trees
from tt_core.check import compare
from tt_core.values import Call, Facts, Observation, Tolerance

WHERE = re.compile(r"^(output|input|state)[^,]*(\[[\d,]+\], row \d+)?, sample \d+$")
KINDS = ("mlp", "normed", "attention", "conv")


def changed(trial, change):
    """The unit's forward with `change` applied to its floating point results."""
    forward = trial.unit.forward
    return lambda x: trees.mapped(lambda t: change(t.clone(memory_format=torch.contiguous_format)), forward(x))


def row_off(t):
    if t.shape[0] == 3:
        t[1] *= 1.001
    return t


def one_off(t):
    t.view(-1)[5] += 0.2 * t.float().square().mean().sqrt().to(t.dtype) + 0.01
    return t


def nan_in_largest(t):
    if t.shape[0] == 5:
        t[4].view(-1)[0] = torch.nan
    return t


CHANGES = {
    "scaled": lambda t: t * 1.01,
    "scaled a little": lambda t: t * 1.0001,
    "row": row_off,
    "half": lambda t: t.half().float(),
    "bfloat16": lambda t: t.bfloat16().float(),
    "noise": lambda t: t + 1e-2 * t.square().mean().sqrt() * torch.randn_like(t),
    "small noise": lambda t: t + 1e-4 * t.square().mean().sqrt() * torch.randn_like(t),
    "nan": nan_in_largest,
    "one element": one_off,
    "zero": torch.zeros_like,
    "negated": lambda t: -t,
    "transposed": lambda t: t.mT.reshape(t.shape),
    "float64": lambda t: t.double(),
    "padded": lambda t: torch.cat([t, t[:1]]),
    "cut": lambda t: t[:-1],
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", CHANGES)
def test_wrong_numbers_fail(unit_trial, unit_kinds, kind, change):
    """Every change to the numbers of a float32 unit is refused, with a sentence and a place."""
    trial = unit_trial(unit_kinds[kind])

    verdict = trial.verdict(changed(trial, CHANGES[change]))

    assert not verdict.ok
    assert verdict.reason
    assert WHERE.match(verdict.where), verdict.where


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("change", ["scaled", "negated", "zero", "nan", "one element", "transposed", "cut"])
def test_wrong_numbers_fail_in_every_precision(unit_trial, unit_kinds, dtype, change):
    """What is outside a precision's rounding is refused in it; 1.01 times too large is outside all but bfloat16's."""
    trial = unit_trial(unit_kinds["mlp"], dtype)
    scaled = 1.05 if dtype == torch.bfloat16 else 1.01
    apply = (lambda t: t * scaled) if change == "scaled" else CHANGES[change]

    assert not trial.verdict(changed(trial, apply)).ok


def test_where_names_row_and_sample(unit_trial, unit_kinds):
    """One row off at batch 3 only: the place is in that row of that sample."""
    trial = unit_trial(unit_kinds["normed"])

    verdict = trial.verdict(changed(trial, row_off))

    assert re.match(r"output\['y'\]\[1,\d+,\d+\], row 1, sample 1$", verdict.where)
    assert verdict.where in verdict.reason
    assert verdict.error > verdict.eager_error


def test_nan_place(unit_trial, unit_kinds):
    """A NaN in the last sample only is found there, and named."""
    trial = unit_trial(unit_kinds["attention"])

    verdict = trial.verdict(changed(trial, nan_in_largest))

    assert verdict.where == "output[0][4,0,0], row 4, sample 2"
    assert verdict.reason.startswith("nan where eager gives")


@pytest.mark.parametrize("other", [torch.nan, torch.inf, 1.0])
def test_non_finite_kinds_are_told_apart(other):
    """NaN, +inf, -inf and finite numbers are four different answers; equal ones in equal places are right."""
    want = observation(torch.tensor([1.0, -torch.inf, 2.0]))

    assert judged(want, observation(torch.tensor([1.0, -torch.inf, 2.0]))).ok
    verdict = judged(want, observation(torch.tensor([1.0, other, 2.0])))
    assert not verdict.ok
    assert verdict.where == "output[1], row 1, sample 0"


def test_results_overwritten_by_the_next_call(unit_trial, unit_kinds):
    """Results that share memory with the next call's are seen, since results are read after all calls ran."""
    trial = unit_trial(unit_kinds["mlp"])
    memory = torch.empty(5, 16)

    def static(x):
        return memory[: x.shape[0]].copy_(trial.unit.forward(x))

    verdict = trial.verdict(static)

    assert not verdict.ok
    assert verdict.where.endswith(("sample 0", "sample 1"))


def test_input_changed_in_place(unit_trial, unit_kinds):
    """A write to an input that eager leaves alone is refused."""
    trial = unit_trial(unit_kinds["mlp"])

    def writes(x):
        y = trial.unit.forward(x)
        x.mul_(2)
        return y

    verdict = trial.verdict(writes)

    assert not verdict.ok
    assert verdict.where == "input['x'], sample 0"
    assert "changed in place" in verdict.reason


class Writes(nn.Module):
    """Writes to its input and to its state."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(6, 6)
        self.register_buffer("seen", torch.zeros(6))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        y = self.lin(x)
        x.add_(y)
        self.seen += x.mean(0)
        self.count += 1
        return y


def test_writes_that_eager_does_too(trial_of):
    """Writes to inputs and state are compared like results: the same pass, missing, other and further ones fail."""
    torch.manual_seed(1)
    module = Writes()
    trial = trial_of(module, Call(torch.randn(9, 6)), Call(torch.randn(4, 6)))

    def candidate(write=1.0, state=1.0, count=1):
        def run(x):
            y = module.lin(x)
            module.seen += (x + y).mean(0) * state
            x.add_(y * write)
            module.count += count
            return y

        return run

    assert set(trial.expected[0].state_after) == {"seen", "count"}
    assert trial.truth[0].inputs_after["x"].dtype == torch.float64
    assert trial.truth[0].state_after["seen"].dtype == torch.float64
    assert trial.verdict(candidate()).ok
    assert trial.verdict(candidate(write=1.01)).where.startswith("input['x'][")
    assert trial.verdict(candidate(state=1.01)).where.startswith("state.seen[")
    assert trial.verdict(candidate(count=2)).where == "state.count, sample 0"
    assert trial.verdict(candidate(write=0.0)).reason == "input['x'] was not changed, eager writes to it"
    assert trial.verdict(candidate(state=0.0)).reason == "state.seen is not changed, eager changes it"


def test_state_that_eager_leaves_alone(unit_trial, unit_kinds):
    """A write to a parameter or buffer that eager leaves alone is refused by name."""
    trial = unit_trial(unit_kinds["conv"])

    def writes(x):
        trial.unit.module.norm.running_mean.add_(1)
        return trial.expected[(2, 3, 5).index(x.shape[0])].result

    verdict = trial.verdict(writes)

    assert verdict.where == "state.norm.running_mean, sample 0"


def test_one_missing_sample():
    """Fewer results than calls is no answer."""
    want = observation(torch.ones(3))

    assert not compare(Facts(), [want, want], [want], [None, None], Tolerance()).ok


def observation(result):
    return Observation(result=result)


def judged(want, got):
    return compare(Facts(), [want], [got], [None], Tolerance())
