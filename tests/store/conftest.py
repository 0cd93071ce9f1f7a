"""Tuned objects on a fake machine, and a user of its own for each test."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import tt_core as tt
from tt_core.testing.fakes import Bench, FakeLayer
from tt_core.testing.stored import StoredBackend


class Block(nn.Module):
    def __init__(self, bench, seed):
        super().__init__()
        self.first, self.second = FakeLayer(bench, seed=seed), FakeLayer(bench, seed=seed + 1)
        self.gain = 1.0

    def forward(self, x, scale=2, mask=None):
        return torch.tanh(self.second(self.first(x))) * scale * self.gain


class Stack(nn.Module):
    def __init__(self, bench):
        super().__init__()
        self.blocks = nn.ModuleList(Block(bench, seed) for seed in (2, 4))
        self.blocks[1].register_buffer("mark", torch.zeros(1))  # no twins: nothing has to be exported to tell
        self.register_buffer("shift", torch.full((4,), 0.5), persistent=False)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x + self.shift


@pytest.fixture
def bench(monkeypatch, tmp_path):
    """A fake machine, no installed plugin, and a home that holds nothing yet."""
    monkeypatch.setenv("TT_DISABLE_AUTOLOAD", "1")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home" / "data"))
    return Bench()


@pytest.fixture
def data(bench):
    return StoredBackend(bench)


@pytest.fixture
def fresh(bench):
    """Another object of the same program with the same weights."""
    return lambda kind=Stack: kind(bench).eval()


@pytest.fixture
def samples():
    drawn = torch.Generator().manual_seed(7)
    return [torch.randn(rows, 4, generator=drawn) for rows in (2, 3, 8)]


@pytest.fixture
def plugged(bench):
    """Settings with these plugins."""
    return lambda *plugins: tt.Settings(plugins=(bench, *plugins), unit_race_s=0.1, pass_race_s=0.1)


@pytest.fixture
def tuned(fresh, samples, plugged):
    """An object tuned with one backend: `tuned(plugin, units=1)`."""

    def make(plugin, *others, units=1, name=None, kind=Stack, data=None):
        obj = fresh(kind)
        settings = plugged(plugin, *others)
        chosen = tt.OneBackendStrategy(name or plugin.name)
        result = tt.tune(obj, data or samples, units=units, strategy=chosen, settings=settings, progress=False)
        assert result.changed, str(result)
        return obj

    return make


@pytest.fixture
def same(samples):
    """Whether two objects give the same results, the tuned one by its built alone."""

    def check(tuned, plain):
        tt.stats(tuned, hits=True)
        with torch.no_grad():
            for sample in samples:
                torch.testing.assert_close(tuned(sample), plain(sample))
        found = tt.stats(tuned)
        assert all(unit.falls == {} for unit in found.values()), found
        return sum(unit.hits for unit in found.values())

    return check
