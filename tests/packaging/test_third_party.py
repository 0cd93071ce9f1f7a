"""A stranger's plugin lives without one line in the core: installed, tested by the kit, listed, tried, uninstalled, gone."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import pytest

pytestmark = [pytest.mark.packaging, pytest.mark.timeout(1200)]


def load():
    """The other packaging tests: how environments are made here."""
    path = Path(__file__).with_name("test_install.py")
    spec = importlib.util.spec_from_file_location("tt_packaging_install", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


install = load()
third_party = install.third_party
EXAMPLE = install.ROOT / "examples" / "third_party_plugin"
POINTS = "import json, importlib.metadata as m; print(json.dumps([e.name for e in m.entry_points(group={!r})]))"


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """Wheels of the core and of the example."""
    folder = tmp_path_factory.mktemp("wheels")
    options = ("--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", str(folder))
    install.pip("wheel", *options, str(install.ROOT), str(EXAMPLE))
    return folder


@pytest.fixture
def environment(wheels, third_party, tmp_path):
    """A fresh environment with the core from its wheel."""
    made = install.fresh(tmp_path / "env", third_party, ())
    made.install("--find-links", str(wheels), "tt-core")
    return made


def test_a_strangers_plugin(environment, wheels, tmp_path):
    """Install: kit green, doctor lists it, auto_tune tries it. Uninstall: gone, and the core goes on."""
    assert "torchscript" not in environment.run("python", "-m", "tt_core", "doctor", check=False).stdout

    environment.install("--find-links", str(wheels), "tt-torchscript[test]")
    shutil.copytree(EXAMPLE / "tests", tmp_path / "project" / "tests")
    shutil.copy(EXAMPLE / "pyproject.toml", tmp_path / "project")
    kit = environment.run("python", "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path / "project"))
    assert " passed" in kit.stdout
    assert "test_auto_tune_tries_it" in (tmp_path / "project" / "tests" / "test_tuning.py").read_text("utf-8")
    assert not any(word in kit.stdout for word in ("failed", "error", "not installed as a package"))

    doctor = environment.run("python", "-m", "tt_core", "doctor")
    assert "torchscript" in doctor.stdout

    python = str(environment.folder / "bin" / "python")
    install.pip("--python", python, "uninstall", "--quiet", "--yes", "tt-torchscript")
    assert environment.evaluate(POINTS.format("tt_core")) == []
    assert "torchscript" not in environment.run("python", "-m", "tt_core", "doctor", check=False).stdout


def test_the_kit_registers_with_pytest(environment):
    """The wheel of the core brings no pytest plugin, and the kit's failing promises show their values all the same."""
    assert "tt_core" not in environment.evaluate(POINTS.format("pytest11"))
    failing = environment.folder / "test_failing.py"
    failing.write_text(
        "from tt_core.testing.contract.lifecycle import _well_formed\n"
        "from types import SimpleNamespace\n\n"
        "def test_it():\n"
        "    _well_formed(SimpleNamespace(call=print, close=print, bytes_held=-3, notes=()))\n",
        "utf-8",
    )
    done = environment.run("python", "-m", "pytest", "-q", "-p", "no:cacheprovider", str(failing), check=False)
    assert done.returncode == 1
    assert "where -3 = " in done.stdout, "the assertion was not rewritten"
