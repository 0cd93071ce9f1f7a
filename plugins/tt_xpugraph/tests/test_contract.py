"""The kit asks device graphs every promise that they make, where there is such a device."""

from __future__ import annotations

import pytest
import torch

from tt_core.testing import BackendContract

if not torch.cuda.is_available() and not torch.xpu.is_available():
    pytest.skip("neither a CUDA device nor an XPU is here", allow_module_level=True)


@pytest.mark.real
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is here")
class TestCudaGraph(BackendContract):
    backend = "cuda_graph"

    @pytest.fixture
    def plugin(self):
        import tt_xpugraph

        return tt_xpugraph

    @pytest.fixture
    def device(self):
        return torch.device("cuda", 0)


@pytest.mark.real
@pytest.mark.skipif(not torch.xpu.is_available(), reason="no XPU is here")
class TestXpuGraph(TestCudaGraph):
    backend = "xpu_graph"

    @pytest.fixture
    def device(self):
        return torch.device("xpu", 0)
