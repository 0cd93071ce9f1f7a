"""The kit asks inductor every promise that it makes; the other tests here ask what only inductor does."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from tt_core.testing import BackendContract
from tt_core.testing.ladder import ALL, AXES, NESTED, ROWS


@pytest.mark.real
class TestInductor(BackendContract):
    @pytest.fixture
    def plugin(self, monkeypatch):
        """Mode "auto" without its race, whose outcome is the machine's: `TestAot` asks the other way."""
        import tt_inductor
        from tt_inductor import small

        monkeypatch.setattr(small, "is_small", lambda *_: False)
        return tt_inductor


@pytest.mark.long
class TestInductorEverywhere(TestInductor):
    rungs = ALL


@pytest.mark.long
class TestFreezing(TestInductor):
    options: ClassVar[dict[str, Any]] = {"freezing": True}
    rungs = (ROWS, AXES)


@pytest.mark.long
class TestAot(TestInductor):
    options: ClassVar[dict[str, Any]] = {"mode": "aot"}
    rungs = (ROWS, AXES, NESTED)
