"""The pytest plugin of the kit: failing promises show the values that they compared.

Registered by the entry point `pytest11`, and by the first use of `tt_core.testing` where entry points are not loaded.
"""

from __future__ import annotations

import sys

import pytest

_REWRITTEN = ("tt_core.testing.contract", "tt_core.testing.results")

pytest.register_assert_rewrite(*(name for name in _REWRITTEN if name not in sys.modules))
