"""A line knows its room by the privilege it needs: who may import what, catch broadly, read clocks, write files, print."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import tt_core

ROOT = Path(tt_core.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
BASE = {"values", "errors", "log", "hookspecs", "quiet", "trees", "settings", "callkey", "forms"}
MIDDLE = {"guards", "state", "contain", "flat", "environment", "result", "plugins", "child", "worker"}
STAGES = {
    "survey",
    "cuts",
    "samples",
    "truth",
    "twins",
    "strategy",
    "build",
    "check",
    "clock",
    "choose",
    "install",
    "eager",
    "store",
}
TOP = {
    "session",
    "api",
    "files",
    "recipes",
    "running",
    "arguments",
    "report",
    "doctor",
    "__main__",
    "__init__",
    "testing",
}
ALLOWED = {  # imports between stages, each with its reason
    ("choose", "clock"): "the pure statistics of a race",
    ("samples", "truth"): "a sample is recorded with its truth",
    ("check", "samples"): "the probe of a claim runs the unit once more",
    ("cuts", "survey"): "cuts are made of an inspection",
    ("store", "install"): "what is installed is what is saved, and what is loaded is installed",
    ("store", "build"): "a chain out of a file is composed as a built one",
    ("store", "samples"): "what is loaded is compared with eager as a recorded call is",
    ("store", "truth"): "what is built anew at load is compared with float64",
}


def room(path: Path) -> str:
    part = path.relative_to(ROOT).parts[0]
    return part.removesuffix(".py")


def imports(path: Path) -> Iterator[str]:
    """Every module that a file imports, wherever the import stands; a package's own names are resolved to rooms."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module == "tt_core":
            yield from (f"tt_core.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def users(*modules: str) -> set[str]:
    wanted = tuple(modules)
    return {
        room(path)
        for path in FILES
        if any(name == w or name.startswith(f"{w}.") for name in imports(path) for w in wanted)
    }


def names(path: Path, *attributes: str) -> bool:
    """Whether a file uses one of the dotted names."""
    text = {ast.unparse(n) for n in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(n, ast.Attribute)}
    return bool(text & set(attributes))


def test_every_room_is_known():
    """A new room says where it belongs."""
    assert {room(path) for path in FILES} <= BASE | MIDDLE | STAGES | TOP


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_import_direction(path):
    """Base rooms import base rooms, middle rooms those below, stages never each other."""
    own = room(path)
    used = {name.split(".")[1] for name in imports(path) if name.startswith("tt_core.")} - {own}
    if own in BASE:
        assert used <= BASE
    elif own in MIDDLE - {"result"}:
        assert used <= BASE | MIDDLE
    elif own in STAGES:
        assert {other for other in used & STAGES if (own, other) not in ALLOWED} == set()
        assert not used & {"session", "api", "report"}


def test_one_user_of_pluggy():
    """Only the plugin manager and the hook specs know pluggy."""
    assert users("pluggy") == {"plugins", "hookspecs"}


def test_one_user_of_structlog_and_one_of_rich():
    """Logging and tables are behind one door each."""
    assert users("structlog") == {"log"}
    assert users("rich") <= {"report", "doctor", "__main__"}


def test_one_reader_of_the_clock():
    """Only the clock room reads time."""
    assert users("time", "timeit", "datetime") <= {"clock"}


def test_one_room_catches_broadly():
    """Only containment, and the dispatcher for a built that raises in service, catch every exception."""
    found = set()
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            broad = isinstance(node, ast.ExceptHandler) and (
                node.type is None or ast.unparse(node.type) in {"Exception", "BaseException"}
            )
            if broad and not any(isinstance(n, ast.Raise) and n.exc is None for n in ast.walk(node)):
                found.add(room(path))
    assert found <= {"contain", "install"}


def test_who_prints():
    """Only reports and the command line print."""
    printing = {
        room(path)
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "print"
    }
    assert printing <= {"report", "doctor", "__main__"}


def test_who_reads_the_environment():
    """Variables are read where plugins are found, where logs go, and where the cache is."""
    readers = {room(path) for path in FILES if names(path, "os.environ", "os.getenv")}
    assert readers <= {"plugins", "log", "store"}


def test_one_starter_of_processes():
    """Jobs in processes of their own are behind one door; the kit starts one to see what a plugin imports."""
    assert users("subprocess") <= {"child", "testing"}


def test_files_stay_small():
    """A room that outgrows 300 lines becomes a folder."""
    long = {str(path.relative_to(ROOT)): n for path in FILES if (n := len(path.read_text("utf-8").splitlines())) > 310}
    assert long == {}


def test_functions_stay_small():
    """No function is longer than 40 lines of code, docstrings and signatures not counted."""
    long = {}
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.body:
                first = node.body[1] if ast.get_docstring(node) and len(node.body) > 1 else node.body[0]
                lines = (node.end_lineno or 0) - first.lineno + 1
                if lines > 40:
                    long[f"{path.name}:{node.name}"] = lines
    assert long == {}
