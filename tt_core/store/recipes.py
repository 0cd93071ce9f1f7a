"""Plans in files that people commit."""

from __future__ import annotations

from pathlib import Path

from tt_core.errors import StoreError
from tt_core.store.folders import reason
from tt_core.values import Plan

LARGEST = 64 << 20
"""Bytes of a file that is read as a plan."""


def read_recipe(path: Path) -> Plan:
    """The plan of a JSON file.

    Raises:
        StoreError: the file cannot be read, or holds no plan; says which file.
    """
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST + 1)
    except (OSError, ValueError) as error:  # ValueError: a path with a null character
        why = reason(error) if isinstance(error, OSError) else str(error)
        raise StoreError(f"plan {str(path)!r} cannot be read: {why}") from error
    if len(data) > LARGEST:
        raise StoreError(f"plan {str(path)!r} is larger than {LARGEST:,} bytes: this is no plan")
    try:
        return Plan.from_json(data)
    except StoreError as error:
        raise StoreError(f"plan {str(path)!r}: {error}") from error
