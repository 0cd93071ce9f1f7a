"""A fresh interpreter that imports a plugin, asks for its declaration, and probes it: what that loads and takes."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

_SCRIPT = """
import importlib, inspect, json, sys
sys.path[:] = json.loads(sys.argv[1])
import torch, tt_core
from tt_core.clock import WallTimer
module, backend, device = sys.argv[2:]
before, clock = set(sys.modules), WallTimer()
plugin = importlib.import_module(module)
plugin.tt_backends()
loaded = sorted(set(sys.modules) - before)
given = {"backend": backend, "device": torch.device(device)}
probe = getattr(plugin, "tt_probe", lambda: None)
start = clock.now()
answer = probe(**{name: given[name] for name in inspect.signature(probe).parameters})
json.dump({"loaded": loaded, "seconds": clock.now() - start, "answer": repr(answer)}, sys.stdout)
"""
_TIMEOUT_S = 300


@functools.cache
def fresh(module: str, backend: str, device: str) -> Mapping[str, Any]:
    """What a fresh interpreter saw: modules `loaded` by import and declaration, `seconds` of the probe, its `answer`.

    Args:
        module: what the plugin is imported by.
        backend: whose probe is asked.
        device: for the probe.

    Raises:
        AssertionError: the interpreter failed; with what it said.
    """
    command = [sys.executable, "-c", _SCRIPT, json.dumps(sys.path), module, backend, device]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S)  # noqa: S603  our own text
    assert done.returncode == 0, f"a fresh interpreter cannot declare and probe {module}:\n{done.stderr}"
    found: Mapping[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
