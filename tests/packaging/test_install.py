"""What is published installs and runs: wheels of every distribution, in fresh environments, by extras.

The environments are fresh `venv`s. To be spared a download of torch for each, they see the third-party packages of the
interpreter that runs the tests through a folder of links. The checkout's own editable installs are left out of that
folder, distributions (`*.dist-info`, where entry points are read) as well as modules: what is ours can only come from
our wheels. pip itself resolves the extras, with `--no-index`, from the folder of wheels and what is already there.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from email import message_from_string
from pathlib import Path

import attrs
import pytest

pytestmark = [pytest.mark.packaging, pytest.mark.timeout(1200)]

ROOT = Path(__file__).resolve().parents[2]
PLUGINS = sorted(path.parent for path in ROOT.glob("plugins/*/pyproject.toml"))
NAMES = sorted(["tt_core", *(path.name for path in PLUGINS)])
OURS = re.compile(r"(__editable__|_editable_impl_|_)?_*tt[_-]|tt\.pth", re.IGNORECASE)


def entry_points(plugin: Path) -> list[str]:
    """The entry-point names of a plugin's folder: each is an extra of tt-core too."""
    return list(tomllib.loads((plugin / "pyproject.toml").read_text("utf-8"))["project"]["entry-points"]["tt_core"])


EXTRAS = tuple(name for plugin in PLUGINS for name in entry_points(plugin))
ON_CPU = {"inductor", "openvino", "onnxruntime"}
"""Plugins with a backend for the CPU, which every machine that runs these tests has."""
MATRIX = {"bare": (), **{extra: (extra,) for extra in EXTRAS}, "all": EXTRAS}


@attrs.frozen
class Environment:
    """A fresh environment and what it is expected to hold."""

    folder: Path
    plugins: tuple[str, ...]

    def run(self, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Runs a program of the environment, outside of the checkout and without the caller's PYTHON* variables."""
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "TT_"))}
        program = str(self.folder / "bin" / command[0])
        done = subprocess.run(
            [program, *command[1:]], capture_output=True, text=True, check=False, cwd=self.folder, env=clean
        )
        assert not check or done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done

    def evaluate(self, code: str) -> object:
        """What `code` prints as JSON."""
        return json.loads(self.run("python", "-I", "-c", code).stdout)

    def install(self, *arguments: str) -> None:
        """Installs with the pip of the tests' own interpreter, from nowhere but what `arguments` name."""
        python = str(self.folder / "bin" / "python")
        pip("--python", python, "install", "--quiet", "--no-index", "--no-build-isolation", *arguments)


def pip(*arguments: str) -> None:
    """Runs pip in the checkout; its output is the message when it fails."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, f"{arguments}\n{done.stdout}\n{done.stderr}"


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheels of all distributions of the checkout, built by the hatchling that is installed: no network."""
    folder = tmp_path_factory.mktemp("wheels")
    sources = [str(path) for path in (ROOT, *PLUGINS)]
    pip("wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", str(folder), *sources)
    return folder


@pytest.fixture(scope="session")
def third_party(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of links to what the tests' interpreter has installed, without anything of ours."""
    folder = tmp_path_factory.mktemp("third-party")
    for source in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for entry in Path(source).iterdir():
            if not OURS.match(entry.name) and entry.suffix != ".pth":
                (folder / entry.name).symlink_to(entry)
    return folder


def fresh(folder: Path, third_party: Path, plugins: tuple[str, ...]) -> Environment:
    """Makes an environment that sees `third_party` and nothing else of this machine's packages."""
    venv.create(folder, with_pip=False, symlinks=True)
    purelib = sysconfig.get_path("purelib", "venv", vars={"base": str(folder), "platbase": str(folder)})
    (Path(purelib) / "third_party.pth").write_text(f"{third_party}\n", "utf-8")
    return Environment(folder=folder, plugins=plugins)


@pytest.fixture(scope="session", params=MATRIX)
def environment(
    request: pytest.FixtureRequest, wheels: Path, third_party: Path, tmp_path_factory: pytest.TempPathFactory
) -> Environment:
    """One environment a row of the matrix: the core from its wheel, with the extra of that name."""
    made = fresh(tmp_path_factory.mktemp(request.param), third_party, MATRIX[request.param])
    extra = "" if request.param == "bare" else f"[{request.param}]"
    made.install("--find-links", str(wheels), f"tt-core{extra}")
    return made


def test_a_wheel_of_each_distribution(wheels: Path):
    """Each distribution builds, with its version, its type marker and its text for the index."""
    built = {path.name.split("-")[0]: path for path in wheels.glob("*.whl")}
    assert sorted(built) == NAMES
    for name, path in built.items():
        with zipfile.ZipFile(path) as wheel:
            files = wheel.namelist()
            metadata = message_from_string(
                wheel.read(next(file for file in files if file.endswith("/METADATA"))).decode()
            )
        assert f"{name}/py.typed" in files
        assert metadata["Version"] == path.name.split("-")[1]
        assert metadata.get_payload().strip()
        assert not [file for file in files if not file.startswith((f"{name}/", f"{name}-"))]


def test_the_core_carries_its_license(wheels: Path):
    """The text of the license is in the wheel of the core."""
    with zipfile.ZipFile(next(wheels.glob("tt_core-*.whl"))) as wheel:
        assert [file for file in wheel.namelist() if file.endswith("/licenses/LICENSE")]


def test_only_wheels_are_imported(environment: Environment):
    """What runs here is what was built, and not the checkout."""
    where = environment.evaluate("import json, tt_core; print(json.dumps(tt_core.__file__))")
    assert Path(str(where)).is_relative_to(environment.folder)


def test_the_extra_brings_its_plugins(environment: Environment):
    """Exactly the entry points of the extra's plugins are there."""
    code = "import json, importlib.metadata as m; print(json.dumps(sorted(e.name for e in m.entry_points(group='tt_core'))))"
    assert environment.evaluate(code) == sorted(environment.plugins)


def test_the_doctor_knows(environment: Environment):
    """`doctor` lists the plugins that are there, says how to install the missing ones, and fails if none runs here."""
    done = environment.run("python", "-m", "tt_core", "doctor", check=False)
    assert done.returncode == (0 if ON_CPU & set(environment.plugins) else 1), done.stdout + done.stderr
    for name in EXTRAS:
        assert name in done.stdout
        assert (f"tt-core[{name}]" in done.stdout or f"tt-{name}" in done.stdout) or name in environment.plugins


def test_the_doctor_speaks_json(environment: Environment):
    """`doctor --json` is JSON that names every plugin of the extras."""
    done = environment.run("python", "-m", "tt_core", "doctor", "--json", check=False)
    text = json.dumps(json.loads(done.stdout))
    assert [name for name in EXTRAS if name not in text] == []


def test_the_console_script(environment: Environment):
    """`tt` is `python -m tt_core`."""
    same = [environment.run(*start, "backends", check=False) for start in (("tt",), ("python", "-m", "tt_core"))]
    assert same[0].stdout == same[1].stdout
    assert same[0].stdout.strip()


def test_the_example_runs_with_what_is_there(environment: Environment):
    """`examples/minimal.py` runs in each, also where only eager is there."""
    done = environment.run("python", "-I", str(ROOT / "examples" / "minimal.py"))
    winner = done.stdout.splitlines()[-1]
    assert winner.startswith("winner: ")
    assert any(name in winner for name in ("eager", *environment.plugins))


def test_a_plugin_that_is_uninstalled_is_gone(wheels: Path, third_party: Path, tmp_path: Path):
    """After `pip uninstall` the core goes on without the plugin, as if it had never been there."""
    made = fresh(tmp_path / "env", third_party, ())
    made.install("--find-links", str(wheels), "tt-core[inductor]")
    pip("--python", str(made.folder / "bin" / "python"), "uninstall", "--quiet", "--yes", "tt-inductor")
    assert made.run("python", "-m", "tt_core", "doctor", check=False).returncode == 1


def test_the_editable_install(third_party: Path, tmp_path: Path):
    """One command, the core first, everything editable: what `make` runs."""
    made = fresh(tmp_path / "env", third_party, ())
    made.install("-e", ".[dev]", *(argument for path in PLUGINS for argument in ("-e", str(path))))
    where = made.evaluate("import json, tt_core; print(json.dumps(tt_core.__file__))")
    assert Path(str(where)).is_relative_to(ROOT)
    code = "import json, importlib.metadata as m; print(json.dumps(len(m.entry_points(group='tt_core'))))"
    assert made.evaluate(code) == len(PLUGINS)


def test_the_compiled_guards_install(wheels: Path, third_party: Path, tmp_path: Path):
    """tt-native is compiled against the torch that is there, and taken by the core, which says so."""
    pip("wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", str(tmp_path), "./native")
    made = fresh(tmp_path / "env", third_party, ())
    made.install("--find-links", str(wheels), "--find-links", str(tmp_path), "tt-core[native]")
    code = (
        "import json, tt_native; from tt_core.guards import native; print(json.dumps([tt_native.__file__, native.why]))"
    )
    where, why = made.evaluate(code)
    assert Path(str(where)).is_relative_to(made.folder)
    assert not why
    assert "tt-native  0.1.0" in re.sub(" +", "  ", made.run("python", "-m", "tt_core", "doctor", check=False).stdout)
