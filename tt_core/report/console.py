"""rich's console as all of this package uses it: foreign words are never markup, and nothing is imported before it is used."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, Any

from tt_core.state import rng_kept

if TYPE_CHECKING:
    from rich.console import Console


def console(file: IO[str], **options: Any) -> Console:
    """A console on a file."""
    with rng_kept():  # rich draws from Python's generator when it is first imported
        from rich.console import Console
    return Console(file=file, force_jupyter=False, markup=False, highlight=False, emoji=False, **options)
