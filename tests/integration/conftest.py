"""The benchmarks' models are the integration tests' models."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

# by its file: with the folder on the path, a benchmark named like a package would stand in its place
_PATH = Path(__file__).parents[2] / "benchmarks" / "_zoo.py"
_SPEC = importlib.util.spec_from_file_location("_zoo", _PATH)
assert _SPEC is not None
assert _SPEC.loader is not None
sys.modules["_zoo"] = _MODULE = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(_MODULE)
