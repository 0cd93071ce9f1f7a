"""The kit in somebody's run of pytest: failing promises show what they compared; runs without the kit do not pay for it."""

from __future__ import annotations

import subprocess
import sys

import pytest

FAILING = """
from types import SimpleNamespace

import pytest
{spelled}


class TestMine(BackendContract):
    @pytest.fixture
    def plugin(self):
        return SimpleNamespace(tt_backends=list)
"""
PLAIN = """
import sys


def test_it():
    assert {"torch", "tt_core"}.isdisjoint(sys.modules)
"""


@pytest.fixture
def pytest_of(tmp_path):
    """Runs pytest on a test module, alone in its folder; what it printed, and its exit status."""

    def run(text, *options):
        (tmp_path / "test_mine.py").write_text(text, "utf-8")
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
        return done.stdout + done.stderr, done.returncode

    return run


@pytest.mark.parametrize(
    "spelled",
    ["from tt_core.testing import BackendContract", "from tt_core.testing.contract import BackendContract"],
)
def test_failing_promises_show_what_they_compared(pytest_of, spelled):
    """Whichever way the contract is imported: its asserts are rewritten, though no plugin of pytest is installed."""
    said, status = pytest_of(FAILING.format(spelled=spelled), "-k", "test_hooks_have_no_defaults")
    assert status == 1, said
    assert "1 failed" in said
    assert "assert 'tt_build' in ['tt_backends']" in said, "the assertion was not rewritten"


def test_a_run_without_the_kit_does_not_import_the_core(pytest_of):
    """Whoever has the core installed pays nothing for it in their other tests, of which most need no torch."""
    said, status = pytest_of(PLAIN)
    assert status == 0, said
    assert "1 passed" in said
