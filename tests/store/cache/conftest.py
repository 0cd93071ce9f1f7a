"""A fake machine with a cache of each test's own; tests of this folder import `remembered.py` by its name."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import tt_core as tt
from tt_core.store import cache
from tt_core.testing.fakes import Bench, FakeBackend

sys.path.append(str(Path(__file__).parent))
from remembered import Net


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.setenv("TT_DISABLE_AUTOLOAD", "1")
    return Bench()


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """An empty cache of this test's own; where its plans go."""
    monkeypatch.setenv("TT_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "plans"


@pytest.fixture
def net(bench):
    return lambda **fields: Net(bench, **fields).eval()


@pytest.fixture
def data():
    return [torch.randn(rows, 4, generator=torch.Generator().manual_seed(rows)) for rows in (2, 8)]


@pytest.fixture
def auto(bench, folder):
    """`auto(obj, data, plugin, ...)`; `mode` is settings.cache."""

    def run(obj, dataset, *plugins, mode="use", expected_calls=None, **fields):
        settings = tt.Settings(plugins=(bench, *plugins), cache=mode, expected_calls=expected_calls)
        return tt.auto_tune(obj, dataset, **{"settings": settings, "progress": False, "max_depth": 0, **fields})

    return run


@pytest.fixture
def fast(bench):
    return FakeBackend(bench)


@pytest.fixture
def slow(bench):
    return FakeBackend(bench, "slow", 0.9)


@pytest.fixture
def opened(folder):
    found, why = cache.open_cache()
    assert why == ""
    return found
