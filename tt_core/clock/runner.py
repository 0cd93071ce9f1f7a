"""What takes part in a race."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tt_core.values import frozen


def nothing() -> None:
    """The default of everything that a runner may have done around its calls."""


@frozen
class Runner:
    """One way to run the same calls. Nothing of it but `call` is ever inside a timed region.

    Attributes:
        name: for people.
        call: takes the calls' arguments.
        enter: before each of its blocks: `Installed.on`.
        leave: after each of its blocks, also when a call raised: `Installed.off`.
        restore: puts module state back: before each block and each pass; before every call in races with `fresh`.
        foreign_threads: whether it computes in another thread pool than torch's own.
        build_s: seconds that its build took, passed on to the timing.
    """

    name: str
    call: Callable[..., Any]
    enter: Callable[[], None] = nothing
    leave: Callable[[], None] = nothing
    restore: Callable[[], None] = nothing
    foreign_threads: bool = False
    build_s: float = 0.0
