"""The contract fails every backend that is wrong, by the promise that it breaks; and the one that is right passes."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

FILE = Path(__file__).with_name("wrong_contract.py")


def load():
    spec = importlib.util.spec_from_file_location("tt_wrong_contract", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


WRONG = load()


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """By class and promise, how its tests ended and what they said: one run of all wrong backends."""
    report = tmp_path_factory.mktemp("wrong") / "report.xml"
    command = [sys.executable, "-m", "pytest", str(FILE), "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert report.exists(), done.stdout + done.stderr
    found = defaultdict(lambda: defaultdict(list))
    for case in ET.parse(report).iter("testcase"):
        ended = {child.tag: child.get("message", "") for child in case} or {"passed": ""}
        name = case.get("classname").rpartition(".")[2]
        found[name][re.sub(r"\[.*", "", case.get("name"))].append(ended)
    return found


@pytest.mark.parametrize("name", WRONG.CAUGHT)
def test_wrong_backends_fail(outcomes, name):
    """Each promise that a backend breaks fails, on every rung and with a message."""
    assert set(outcomes[name]) == WRONG.CAUGHT[name]
    for promise, ended in outcomes[name].items():
        assert [one for one in ended if not one.get("failure")] == [], f"{promise} did not fail"


def test_the_right_backend_passes(outcomes):
    """The plugin that the wrong ones are made from fails nothing, and is skipped for what it does not declare only."""
    ended = {tag for ends in outcomes["TestRight"].values() for one in ends for tag in one}
    skipped = {promise for promise, ends in outcomes["TestRight"].items() if any("skipped" in one for one in ends)}

    assert ended == {"passed", "skipped"}
    assert set(outcomes["TestRight"]) == set(WRONG.PROMISES)
    assert skipped == {
        "test_files_hold_what_they_may",
        "test_imports_nothing_heavy",
        "test_named_as_installed",
        "test_payload_has_hooks",
        "test_probe_answers",
        "test_probe_is_quick",
        "test_rebind",
        "test_refusals_are_sentences",
        "test_restored_is_as_built",
    }


def test_every_promise_is_broken_by_somebody():
    """No promise of the kit is one that nothing can fail."""
    broken = set().union(*WRONG.CAUGHT.values())

    assert set(WRONG.PROMISES) - broken == {"test_named_as_installed", "test_every_backend_is_tested"}
