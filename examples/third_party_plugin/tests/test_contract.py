"""TorchScript keeps what it promises: tt-core's kit asks."""

from __future__ import annotations

from types import ModuleType

import pytest

from tt_core.testing import BackendContract
from tt_core.testing.ladder import ALL


class TestTorchScript(BackendContract):
    """Every promise, on the whole ladder: tracing takes no time."""

    rungs = ALL

    @pytest.fixture
    def plugin(self) -> ModuleType:
        """The plugin."""
        import tt_torchscript

        return tt_torchscript
