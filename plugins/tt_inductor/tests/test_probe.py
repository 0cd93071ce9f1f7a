"""The probe finds a missing or broken compiler before anything is built."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tt_inductor import probe

import tt_core as tt

CPU = torch.device("cpu")


def _script(folder: Path, name: str, body: str) -> str:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_no_compiler_names_the_package(tmp_path: Path) -> None:
    """An empty PATH: unavailable, with what to install."""
    answer = probe.ask(CPU, {"PATH": str(tmp_path)})
    assert isinstance(answer, tt.Unavailable)
    assert "is not on PATH" in answer.reason
    assert "apt install g++" in answer.hint


@pytest.mark.parametrize(
    ("body", "reason", "hint"),
    [
        ("exit 1", "status 1", "install a C++ compiler"),
        ("echo 'fatal error: Python.h: No such file' >&2; exit 1", "does not find Python.h", "python3-dev"),
        ("exec sleep 20", "did not answer in 0.3 s", "install a C++ compiler"),
    ],
)
def test_a_compiler_that_does_not_work(
    tmp_path: Path, body: str, reason: str, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that fails, one without Python's headers, and one that hangs beyond the limit: unavailable."""
    monkeypatch.setattr(probe, "_SECONDS", 0.3 if "sleep" in body else probe._SECONDS)
    compiler = _script(tmp_path, "cxx", body)
    answer = probe.ask(CPU, {"CXX": compiler, "PATH": "/usr/bin:/bin"})
    assert isinstance(answer, tt.Unavailable)
    assert reason in answer.reason
    assert hint in answer.hint


def test_triton_is_asked_for_on_accelerators(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without triton, an accelerator is unavailable, with the package's name."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    answer = probe.ask(torch.device("xpu", 0), {})
    assert isinstance(answer, tt.Unavailable)
    assert "triton" in answer.reason
    assert "pytorch-triton-xpu" in answer.hint


def test_declaring_and_probing_import_no_compiler() -> None:
    """Neither loads Inductor or Dynamo beyond what `import torch` does."""
    code = (
        "import sys, torch; before = set(sys.modules); import tt_inductor; tt_inductor.tt_backends();"
        "tt_inductor.tt_probe(device=torch.device('cpu'));"
        "print(sorted(m for m in set(sys.modules) - before if m.startswith(('torch._inductor', 'torch._dynamo'))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
