"""Tests of this folder import `install_units.py` by its name, and call as in service: without gradients."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).parent))
from install_units import Net


@pytest.fixture(autouse=True)
def _no_grad():
    with torch.no_grad():
        yield


@pytest.fixture
def net() -> Net:
    return Net().eval()
