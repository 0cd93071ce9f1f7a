"""Whether the compilers that Inductor calls are here: asked without importing Inductor."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping

import torch

import tt_core as tt

_SECONDS = 30.0  # the usual answer takes 0.1 s; on a busy machine a slow compiler is not a missing one
_OLDEST_CUDA = (7, 0)  # triton generates nothing for older ones
_INCLUDES = ("cstddef", "omp.h", "Python.h")
_PACKAGES = {
    "omp.h": "install the OpenMP headers of the compiler (apt: libomp-dev for clang; part of g++ itself)",
    "Python.h": "install the headers of this Python (apt: python3-dev, dnf: python3-devel)",
}
_COMPILER_HINT = "install a C++ compiler: apt install g++ (dnf install gcc-c++, macOS: xcode-select --install)"


def ask(device: torch.device, environ: Mapping[str, str] | None = None) -> tt.Ready | tt.Unavailable:
    """Whether generated kernels can be compiled for `device`.

    Args:
        device: where the units are.
        environ: the environment that names compilers (`CXX`, `PATH`); the process's own unless a test gives another.
    """
    environ = os.environ if environ is None else environ
    return _cpu(environ) if device.type == "cpu" else _accelerator(device, environ)


def _cpu(environ: Mapping[str, str]) -> tt.Ready | tt.Unavailable:
    wanted = environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
    found = shutil.which(shlex.split(wanted)[0], path=environ.get("PATH"))
    if found is None:
        return tt.Unavailable(reason=f"no C++ compiler: {wanted} is not on PATH", hint=_COMPILER_HINT)
    complaint = _complaint([found, *shlex.split(wanted)[1:]])
    if complaint is None:
        return tt.Ready(note=f"torch {torch.__version__}, {wanted}")
    missing = next((name for name in _PACKAGES if name in complaint), None)
    if missing is not None:
        return tt.Unavailable(reason=f"{wanted} does not find {missing}", hint=_PACKAGES[missing])
    return tt.Unavailable(reason=f"the C++ compiler {wanted} does not work: {complaint}", hint=_COMPILER_HINT)


def _complaint(compiler: list[str]) -> str | None:
    """What the compiler says to a file that includes what generated code includes; None when it is content."""
    source = "".join(f"#include <{name}>\n" for name in _INCLUDES) + "int main() { return 0; }\n"
    flags = ["-x", "c++", "-fsyntax-only", f"-I{sysconfig.get_paths()['include']}", "-"]
    openmp = [] if sys.platform == "darwin" else ["-fopenmp"]
    try:
        done = subprocess.run(  # noqa: S603  the compiler that Inductor itself would run
            [*compiler, *openmp, *flags],
            input=source,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"it did not answer in {_SECONDS:g} s"
    except OSError as error:
        return str(error)
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    return None if done.returncode == 0 else (lines[0] if lines else f"it ended with status {done.returncode}")


def _accelerator(device: torch.device, environ: Mapping[str, str]) -> tt.Ready | tt.Unavailable:
    if importlib.util.find_spec("triton") is None:
        name = "pytorch-triton-xpu" if device.type == "xpu" else "triton"
        return tt.Unavailable(reason="triton is not installed", hint=f"pip install {name}")
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < _OLDEST_CUDA:
        return tt.Unavailable(reason="triton needs a GPU of compute capability 7.0 or newer")
    names = [environ["CC"]] if environ.get("CC") else ["gcc", "clang", "cc"]
    if not any(shutil.which(name, path=environ.get("PATH")) for name in names):
        hint = "install a C compiler: apt install gcc (dnf install gcc)"
        return tt.Unavailable(reason=f"no C compiler: {' or '.join(names)} is not on PATH", hint=hint)
    return tt.Ready(note=f"torch {torch.__version__}, triton")
