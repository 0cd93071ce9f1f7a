"""Tests of this folder import `guard_units.py` by its name."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
