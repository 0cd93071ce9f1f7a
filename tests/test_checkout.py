"""The checkout keeps its word: one version, a light import, a core without a backend, a README that runs."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tt_core.plugins import Plugins

ROOT = Path(__file__).resolve().parents[1]
PROJECTS = [ROOT / "pyproject.toml", *sorted(ROOT.glob("plugins/*/pyproject.toml"))]
PLUGINS = PROJECTS[1:]
NATIVE = ROOT / "native/pyproject.toml"
BACKENDS = ("openvino", "inductor", "onnxruntime", "torchao", "xpu_graph", "xpugraph", "cuda_graph")
LAZY = (
    "structlog",
    "rich",
    "safetensors",
    "platformdirs",
    "openvino",
    "onnxruntime",
    "torchao",
    "tt_inductor",
    "tt_openvino",
    "tt_onnxruntime",
    "tt_xpugraph",
)
README = (ROOT / "README.md").read_text("utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def project(path: Path) -> dict:
    return tomllib.loads(path.read_text("utf-8"))["project"]


def normal(requirement: str) -> str:
    """The normalised distribution name that a requirement line begins with (PEP 503)."""
    return re.sub(r"[-_.]+", "-", re.match(r"[A-Za-z0-9._-]+", requirement)[0]).lower()


def modules_after(statement: str) -> set[str]:
    """The modules that a fresh interpreter has loaded after `statement`."""
    code = f"import json, sys\n{statement}\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.fixture(scope="module")
def loaded() -> set[str]:
    """What `import tt_core` loads beyond `import torch`."""
    return modules_after("import torch, tt_core") - modules_after("import torch")


def test_all_distributions_have_one_version():
    """Core and plugins are released together, and `tt_core.__version__` says the same."""
    import tt_core

    assert {project(path)["version"] for path in [*PROJECTS, NATIVE]} == {tt_core.__version__}


def test_each_plugin_is_an_extra_of_the_same_name():
    """Entry-point name = plugin name = extra, and `[all]` takes each."""
    extras = project(PROJECTS[0])["optional-dependencies"]
    named = re.search(r"\[(.*)\]", extras["all"][0])[1].split(",")
    for path in PLUGINS:
        for name in project(path)["entry-points"]["tt_core"]:
            assert [normal(line) for line in extras[name]] == [project(path)["name"]]
            assert name in named


def test_the_core_requires_no_backend():
    """What an extra brings is never a requirement of the core."""
    required = {normal(line) for line in project(PROJECTS[0])["dependencies"]}
    assert required == {"torch", "pluggy", "attrs", "structlog", "optree", "rich", "platformdirs", "safetensors"}


def test_nothing_of_the_checkout_is_missing():
    """With the whole checkout installed no extra counts as a backend that is not there."""
    assert [one.name for one in Plugins.load(environ={}).refused if one.stage == "missing"] == []


@pytest.mark.parametrize("path", [*PROJECTS, NATIVE], ids=lambda path: path.parent.name)
def test_everything_installed_is_pinned(path: Path):
    """Each requirement of each distribution, tools included, has its line in the constraints."""
    lines = (ROOT / "requirements/constraints.txt").read_text("utf-8").splitlines()
    pinned = {normal(line) for line in lines if line and not line.startswith("#")}
    extras = project(path).get("optional-dependencies", {})
    wanted = [*project(path).get("dependencies", []), *extras.get("dev", [])]
    assert {name for name in map(normal, wanted) if not name.startswith("tt-")} <= pinned


def test_a_new_plugin_needs_no_line_in_the_makefile():
    """Plugins are found by their folders."""
    makefile = (ROOT / "Makefile").read_text("utf-8")
    assert "plugins/*" in makefile
    assert [path.parent.name for path in PLUGINS if path.parent.name in makefile] == []


def test_import_loads_nothing_heavy(loaded: set[str]):
    """`import tt_core` loads no backend, no plugin, and neither structlog nor rich."""
    assert sorted(name for name in loaded if name.split(".")[0] in LAZY) == []


def test_import_loads_no_compiler(loaded: set[str]):
    """`import tt_core` starts neither Dynamo nor Inductor: nothing of them beyond what `import torch` loads itself."""
    assert sorted(name for name in loaded if name.startswith(("torch._dynamo", "torch._inductor"))) == []


def test_import_reads_no_entry_point(tmp_path: Path):
    """A plugin is not even looked for before the first call: one that breaks on import breaks no `import tt_core`."""
    plugin = tmp_path / "tt_broken-0.1.dist-info"
    plugin.mkdir()
    (plugin / "METADATA").write_text("Metadata-Version: 2.1\nName: tt-broken\nVersion: 0.1\n", "utf-8")
    (plugin / "entry_points.txt").write_text("[tt_core]\nbroken = tt_broken\n", "utf-8")
    (tmp_path / "tt_broken.py").write_text("raise RuntimeError('imported')", "utf-8")
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-c", "import sys, tt_core; sys.exit('tt_broken' in sys.modules)"]
    assert subprocess.run(command, env=environment, cwd=ROOT, check=False).returncode == 0


@pytest.mark.parametrize("path", sorted(ROOT.glob("tt_core/**/*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_the_core_names_no_backend(path: Path):
    """Backends come from plugins alone: no line of the core knows one by name, not even in a comment."""
    lines = path.read_text("utf-8").splitlines()
    named = [line for line in lines if any(name in line.lower() for name in BACKENDS)]
    assert named == []


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_readme_blocks_are_python(block: str):
    """Each Python block of the README parses."""
    ast.parse(block)


@pytest.mark.real
def test_readme_example_runs(tmp_path: Path):
    """The first Python block of the README is ten lines at most, and runs as it stands."""
    example = BLOCKS[0]
    assert len([line for line in example.splitlines() if line.strip()]) <= 10
    done = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_readme_links_lead_somewhere():
    """Each relative link of the README is a file of the checkout."""
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
