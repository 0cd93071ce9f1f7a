"""The tunings of an object switched off for a while: every tuning starts from the untuned object."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import nn

from tt_core import state
from tt_core.install.dispatcher import Dispatcher
from tt_core.install.installed import undo


class Earlier:
    """What was installed before: off now. Made by `suspended`.

    Attributes:
        ended: whether it is over for good.
    """

    def __init__(self, held: list[tuple[nn.Module, Dispatcher]]) -> None:
        self._held = held
        self.ended = False

    def end(self) -> None:
        """Over for good: builts are closed, nothing is put back."""
        self.ended = True
        for module, each in self._held:
            if each.unit.module is module:
                undo(each)

    def back(self) -> None:
        """On again, where nobody else has taken the place."""
        for module, each in self._held:
            if each.unit.module is module:
                each.on()
            else:
                vars(module)["forward"] = each


@contextlib.contextmanager
def suspended(obj: Any) -> Iterator[Earlier]:
    """Every dispatcher on `obj` is off while the block runs; on again afterwards unless the block called `end`."""
    earlier = Earlier(_dispatchers(obj))
    try:
        off(obj)
        yield earlier
    finally:
        if not earlier.ended:
            earlier.back()


def off(obj: Any) -> None:
    """Switches off every dispatcher on `obj`, whoever installed it; nothing is closed."""
    for module, each in _dispatchers(obj):
        if each.unit.module is module:
            each.off()
        else:
            each.leave(module)


def _dispatchers(obj: Any) -> list[tuple[nn.Module, Dispatcher]]:
    held = [(found.module, vars(found.module).get("forward")) for found in state.find(obj)]
    return [(module, each) for module, each in held if isinstance(each, Dispatcher)]
