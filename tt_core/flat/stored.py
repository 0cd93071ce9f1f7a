"""What every `tt_dump` and `tt_restore` of an exporting backend begins with: may it be said in ranges, can it be read."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tt_core.errors import BuildRefusedError
from tt_core.flat.forms import Sizes, every_size
from tt_core.values import Shapes

Program = tuple[Callable[[Sizes], bool], Sequence[Shapes]]
"""What a program is right for: its own condition, and the ranges that would be written down in its place."""

_DAMAGED = (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError, OSError)


def ranges_say(covers: Shapes, programs: Sequence[Program], most: int) -> bool:
    """Whether ranges choose the same program as the programs' own conditions, for every combination of covered sizes.

    Args:
        covers: the sizes that are covered.
        programs: in the order in which they are asked; the first that is right for a call's sizes runs it.
        most: combinations that are tried; with more of them the answer is no.
    """
    sizes = every_size(covers, most)
    return sizes is not None and all(_agree(programs, one) for one in sizes)


def _agree(programs: Sequence[Program], sizes: Sizes) -> bool:
    for fits, ranges in programs:
        right = fits(sizes)
        if right != any(one.admit(sizes) for one in ranges):
            return False
        if right:
            return True
    return True


@contextlib.contextmanager
def restoring(dumped: Mapping[str, Any], number: int, covers: Shapes | None) -> Iterator[Shapes]:
    """Reads what was dumped: yields the sizes that it covered, and whatever is malformed inside the block is damage.

    Args:
        dumped: what `tt_dump` returned; its "format" is a number.
        number: the format that is read.
        covers: as `tt_restore` got them.

    Raises:
        BuildRefusedError: no sizes, another format, or damage.
    """
    if covers is None:
        raise BuildRefusedError("the sizes that it covered were not kept")
    if dumped.get("format") != number:
        raise BuildRefusedError(f"format {dumped.get('format')!r} is not the one of this version: {number}")
    try:
        yield covers
    except _DAMAGED as error:
        raise BuildRefusedError(f"what was dumped is damaged ({type(error).__name__})") from error
