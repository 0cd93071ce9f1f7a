"""The kit asks openvino every promise that it makes; the other tests here ask what only openvino does."""

from __future__ import annotations

import pytest

import tt_core as tt
from tt_core.testing import BackendContract
from tt_core.testing.ladder import ALL, AXES, ROWS


@pytest.mark.real
class TestOpenVINO(BackendContract):
    @pytest.fixture
    def plugin(self):
        import tt_openvino

        return tt_openvino


@pytest.mark.long
class TestOpenVINOEverywhere(TestOpenVINO):
    rungs = ALL


@pytest.mark.long
class TestBfloat16(TestOpenVINO):
    backend = "openvino_bf16"
    rungs = (ROWS, AXES)
    tolerance = tt.Tolerance(relative=3e-2)


@pytest.mark.long
class TestFloat16(TestBfloat16):
    backend = "openvino_f16"
