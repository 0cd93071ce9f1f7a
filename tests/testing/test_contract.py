"""The contract itself: eager and the example of a stranger's plugin pass it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import tt_core.eager
from tt_core.testing import BackendContract
from tt_core.testing.ladder import ALL, QUICK

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "third_party_plugin" / "src"
if str(EXAMPLE) not in sys.path:
    sys.path.append(str(EXAMPLE))  # not installed here: tests/packaging installs its wheel


class TestEager(BackendContract):
    """Eager keeps every promise."""

    @pytest.fixture
    def plugin(self):
        return tt_core.eager


class TestTorchScript(BackendContract):
    """The example keeps every promise that it makes."""

    @pytest.fixture
    def plugin(self):
        import tt_torchscript

        return tt_torchscript


@pytest.mark.long
class TestEagerEverywhere(TestEager):
    """The same on the rest of the ladder."""

    rungs = ALL


@pytest.mark.long
class TestTorchScriptEverywhere(TestTorchScript):
    """The same on the rest of the ladder."""

    rungs = ALL


def test_rungs_have_names_of_their_own():
    """Each rung is one test id, and says what it asks."""
    assert len({rung.name for rung in ALL}) == len(ALL)
    assert all(rung.says for rung in ALL)
    assert set(QUICK) < set(ALL)
    assert len(QUICK) + 1 <= 8, "a compiler takes seconds for each; `close` needs one more build"


@pytest.mark.parametrize("rung", ALL, ids=str)
def test_rungs_are_deterministic(rung):
    """A rung gives the same calls each time, and none of its calls is none."""
    for calls in (rung.calls, rung.spellings, rung.inside, rung.outside):
        texts = [[(str(call.args), str(call.kwargs)) for call in calls()] for _ in range(2)]

        assert texts[0] == texts[1]
    assert len(rung.calls()) >= 2
