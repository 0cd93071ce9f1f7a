"""Models on a fake machine, and a run with nothing but fake backends."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn

import tt_core as tt
from tt_core import state
from tt_core.testing.fakes import Bench, FakeLayer


class Stack(nn.Module):
    """Two blocks of two layers each, `blocks.0` and `blocks.1`, after a stem: depths 0, 1, 2; state that a call could change."""

    def __init__(self, bench, seconds=0.010):
        super().__init__()
        self.stem = FakeLayer(bench, seconds, seed=1)
        self.blocks = nn.ModuleList(Block(bench, seconds, seed) for seed in (2, 4))
        self.register_buffer("shift", torch.zeros(4), persistent=False)
        self.note = {"kept": [1, 2]}

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return x + self.shift


class Block(nn.Module):
    def __init__(self, bench, seconds, seed):
        super().__init__()
        self.first, self.second = FakeLayer(bench, seconds, seed=seed), FakeLayer(bench, seconds, seed=seed + 1)

    def forward(self, x):
        return torch.tanh(self.second(self.first(x)))


def portrait(obj):
    """All that tuning must leave alone, by identity and by value."""
    found = []
    for each in state.find(obj):
        own = vars(each.module)
        found.append((each.path, list(own), [id(value) for value in own.values()]))
        parts = ("_parameters", "_buffers", "_modules", "_forward_hooks", "_forward_pre_hooks")
        found += [(part, [(name, id(value)) for name, value in own[part].items()]) for part in parts]
        tensors = [*own["_parameters"].values(), *own["_buffers"].values()]
        found += [(t.data_ptr(), t._version, t.tolist(), t.requires_grad, t.grad is None) for t in tensors]
    return found


def process():
    """What belongs to the whole process."""
    return (
        torch.random.get_rng_state().tolist(),
        random.getstate(),
        np.random.get_state()[1].tolist(),  # noqa: NPY002  the generator that user code draws from
        torch.get_default_dtype(),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_num_threads(),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_float32_matmul_precision(),
    )


@pytest.fixture
def bench(monkeypatch):
    """A fake machine; no installed plugin is loaded."""
    monkeypatch.setenv("TT_DISABLE_AUTOLOAD", "1")
    return Bench()


@pytest.fixture
def stack(bench):
    return Stack(bench).eval()


@pytest.fixture
def make(bench):
    """Other models of the same bench: `make(Stack)`, `make(Block, 0.01, 3)`."""
    return lambda kind=Stack, *args, **kwargs: kind(bench, *args, **kwargs).eval()


@pytest.fixture
def data():
    """Batches of 2, 3 and 8 rows."""
    drawn = torch.Generator().manual_seed(7)
    return [torch.randn(rows, 4, generator=drawn) for rows in (2, 3, 8)]


@pytest.fixture
def auto(bench):
    return _with(bench, tt.auto_tune)


@pytest.fixture
def tune(bench):
    return _with(bench, tt.tune)


def _with(bench, call):
    """`call` with plugins as positional arguments, and `set_` for settings."""

    def run(obj, dataset, *plugins, set_=None, **fields):
        settings = tt.Settings(plugins=(bench, *plugins), **(set_ or {}))
        return call(obj, dataset, settings=settings, **{"progress": False, **fields})

    return run


@pytest.fixture
def same():
    """`same(obj)` notes an object and the process; calling what it returns fails unless both are as they were."""

    def note(obj):
        before = portrait(obj), process()

        def check():
            assert portrait(obj) == before[0]
            assert process() == before[1]

        return check

    return note
