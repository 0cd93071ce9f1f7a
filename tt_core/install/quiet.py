"""No warnings about falls while tuning measures them."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator

from tt_core.errors import FallbackWarning


@contextlib.contextmanager
def quiet_falls() -> Iterator[None]:
    """Falls inside the block are counted, not warned about."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        yield
