"""The kit asks onnxruntime every promise that it makes; the other tests here ask what only onnxruntime does."""

from __future__ import annotations

import pytest

from tt_core.testing import BackendContract
from tt_core.testing.ladder import ALL


@pytest.mark.real
class TestONNXRuntime(BackendContract):
    @pytest.fixture
    def plugin(self):
        import tt_onnxruntime

        return tt_onnxruntime


@pytest.mark.long
class TestONNXRuntimeEverywhere(TestONNXRuntime):
    rungs = ALL
