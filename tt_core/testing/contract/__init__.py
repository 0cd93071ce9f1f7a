"""The contract of a backend as tests: subclass it, name the plugin, run pytest.

from tt_core.testing import BackendContract

class TestMine(BackendContract):
    @pytest.fixture
    def plugin(self):
        import tt_mine
        return tt_mine

Each test is one promise, its docstring. What a backend declares that it cannot do, and what it refuses with
`BuildRefusedError`, is skipped with that reason.
"""

from __future__ import annotations

from tt_core.testing.contract.declaration import Declaration
from tt_core.testing.contract.dump import Dump
from tt_core.testing.contract.globals import Surroundings
from tt_core.testing.contract.keeps import Behaviour
from tt_core.testing.contract.lifecycle import Lifecycle
from tt_core.testing.contract.results import Results
from tt_core.testing.contract.shapes import Sizes
from tt_core.testing.contract.signatures import Signatures
from tt_core.testing.contract.threads import Threads
from tt_core.testing.contract.weights import WeightsLevel

__all__ = ["BackendContract"]


class BackendContract(
    Declaration, Lifecycle, Signatures, Results, Sizes, Behaviour, WeightsLevel, Threads, Surroundings, Dump
):
    """Every promise that a backend makes, asked on a ladder of small modules. See `tt_core.testing.ladder`.

    A class tests one backend on one device; it needs a fixture `plugin`, and may have a fixture `device` and the class
    attributes `backend`, `options`, `rungs`, `tolerance` and `light`. Each rung is built once a class.
    """
