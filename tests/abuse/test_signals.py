"""Ctrl-C at any moment of a run, by a real signal: the object is as it was."""

from __future__ import annotations

import random
import signal

import pytest
import torch
from torch import nn

import tt_core as tt
from tt_core.testing.fakes import Renamed

pytestmark = [pytest.mark.abuse, pytest.mark.filterwarnings("ignore")]


def held(model: nn.Module) -> list:
    return [{name: id(value) for name, value in vars(module).items()} for module in model.modules()]


def test_interrupts_at_random_moments(monkeypatch):
    """100 runs, each broken off after a random time: attributes, weights and RNG are as before."""
    monkeypatch.setenv("TT_DISABLE_AUTOLOAD", "1")
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).eval()
    before, weights = held(model), [p.detach().clone() for p in model.parameters()]
    settings = tt.Settings(plugins=(Renamed(),), unit_race_s=0.02, pass_race_s=0.02)
    moments, stopped = random.Random(0), 0

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    old = signal.signal(signal.SIGALRM, stop)
    try:
        for _ in range(100):
            rng = torch.random.get_rng_state()
            signal.setitimer(signal.ITIMER_REAL, moments.uniform(0.001, 0.4))
            try:
                tt.auto_tune(model, [torch.ones(2, 8)], strategy=tt.OneBackendStrategy("fast"), settings=settings)
            except KeyboardInterrupt:
                stopped += 1
                assert held(model) == before
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            tt.untune(model)
            assert held(model) == before
            assert torch.equal(rng, torch.random.get_rng_state())
            assert all(torch.equal(p, w) for p, w in zip(model.parameters(), weights, strict=True))
    finally:
        signal.signal(signal.SIGALRM, old)
    assert stopped > 10
