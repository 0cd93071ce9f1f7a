"""Hook specs, docs and tests are held together, and what the pages show runs."""

from __future__ import annotations

import importlib.util
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tt_core as tt
from tt_core import hookspecs
from tt_core.testing import BackendContract

ROOT = Path(__file__).resolve().parents[1]
HOOKS = {name: spec for name, spec in vars(hookspecs).items() if name.startswith("tt_") and callable(spec)}
HOOKS_PAGE = (ROOT / "docs" / "hooks.md").read_text("utf-8")
PLUGINS_PAGE = (ROOT / "docs" / "plugins.md").read_text("utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", PLUGINS_PAGE, re.MULTILINE | re.DOTALL)
PROMISES = {name: test for name, test in inspect.getmembers(BackendContract) if name.startswith("test_")}
TESTS = "\n".join(
    path.read_text("utf-8")
    for folder in ("tests", "plugins", "tt_core/testing")
    for path in ROOT.glob(f"{folder}/**/*.py")
)


def section(hook: str) -> str:
    """The text below a hook's heading."""
    return re.search(rf"^### {hook}\(.*?\n(.*?)(?=^##|\Z)", HOOKS_PAGE, re.MULTILINE | re.DOTALL)[1]


def script():
    spec = importlib.util.spec_from_file_location("tt_promise_table", ROOT / "tests" / "testing" / "promise_table.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("hook", HOOKS)
def test_every_hook_has_its_page(hook):
    """A hook has a heading with its signature, says how it is asked, and what an answer means."""
    arguments = ", ".join(inspect.signature(HOOKS[hook]).parameters)

    assert f"### {hook}({arguments})\n" in HOOKS_PAGE
    assert re.match(r"\s*\*(Each|Owner|First)\b", section(hook))
    assert "Returns" in section(hook) or "ignored" in section(hook)


@pytest.mark.parametrize("hook", HOOKS)
def test_every_hook_is_in_the_order_of_calls(hook):
    """The diagram shows each hook, with the way of asking that its section names."""
    diagram = HOOKS_PAGE.split("```text")[1].split("```")[0]
    line = next(line for line in diagram.splitlines() if re.search(rf"\b{hook}\b", line))

    assert re.match(r"\s*\*(\w+)", section(hook))[1].lower() in line


@pytest.mark.parametrize("hook", HOOKS)
def test_every_hook_has_a_contract_and_a_test(hook):
    """A hook's docstring says when it is asked; some test implements it."""
    assert re.match(r"(Asked|Told)\b", inspect.getdoc(HOOKS[hook]))
    assert re.search(rf"def {hook}\(", TESTS)


def test_no_page_names_a_hook_that_is_not_there():
    """What looks like a hook on the pages is one."""
    named = set(re.findall(r"\b(tt_(?!core\b|NAME\b)[a-z]+(?:_[a-z]+)*)\(", HOOKS_PAGE + PLUGINS_PAGE))

    assert named <= set(HOOKS)


def test_what_a_page_cites_of_the_kit_is_there():
    """Each test that the pages name is a promise of the contract."""
    assert set(re.findall(r"`(test_\w+)`", HOOKS_PAGE)) <= set(PROMISES)
    assert all(inspect.getdoc(test) for test in PROMISES.values())


def test_the_table_is_of_these_promises():
    """The table promise x backend has a row for each promise and no other, in the present words, and no broken one."""
    found = dict(re.findall(r"^\| `(test_\w+)` \| (.*?) \| ", PLUGINS_PAGE, re.MULTILINE))

    assert found == script().promises(), "run python tests/testing/promise_table.py"
    assert "**broken**" not in PLUGINS_PAGE
    assert re.search(r"From a run on \d{4}-\d\d-\d\d", PLUGINS_PAGE)


def test_the_api_number_is_the_one_of_the_docs():
    """The page says which API this core speaks."""
    assert f"`tt.API` is {tt.API}." in PLUGINS_PAGE
    assert f"today {hookspecs.OLDEST_API} to {hookspecs.API}" in PLUGINS_PAGE


def test_the_first_plugin_is_short_and_runs(tmp_path):
    """The page's first plugin has at most 20 lines, and is built, checked and raced through TT_PLUGINS as it stands."""
    plugin, program, *_ = BLOCKS
    assert len([line for line in plugin.splitlines() if line.strip()]) <= 20
    (tmp_path / "my_backend.py").write_text(plugin, "utf-8")
    program += "print([t.outcome for t in result.trials if t.failed], {t.candidate.name for t in result.trials})\n"
    environment = os.environ | {"TT_PLUGINS": "my_backend", "TT_DISABLE_AUTOLOAD": "1", "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment)

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("[] ")
    assert "'traced'" in done.stdout.splitlines()[-1]


def test_the_first_plugin_keeps_its_promises(tmp_path):
    """The kit, as the page writes it, finds nothing wrong with the page's first plugin."""
    (tmp_path / "my_backend.py").write_text(BLOCKS[0], "utf-8")
    (tmp_path / "test_contract.py").write_text(BLOCKS[2], "utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", ".", "."]
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "PYTHONWARNINGS": "ignore::DeprecationWarning"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment)

    assert done.returncode == 0, done.stdout
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) > len(PROMISES)
