"""The one order in which all graphs of a device are captured and replayed.

Every graph of a device is captured on one side stream, where the libraries underneath keep one workspace, whose address
goes into each of the graphs. Two of them must therefore never run at once, also when two threads call two units on two
streams: a lane puts them one after the other, on the host by a lock, on the device by waiting for the stream before.
"""

from __future__ import annotations

import threading
from typing import Any

import torch

from tt_xpugraph.interface import Interface

_lanes: dict[torch.device, Lane] = {}
_guard = threading.Lock()


class Lane:
    """The order of one device.

    Attributes:
        lock: held from the first copy in to the last copy out; re-entrant, for units inside units.
        side: the stream on which graphs are captured.
        raw: tells the number of the caller's stream; see `Interface.raw`.
        default: whether the last one in the lane was the default stream, whose number is 0. Where it still is the
            caller's there is nothing to wait for, and it is never captured: whoever calls may see to that without `enter`.
    """

    def __init__(self, interface: Interface) -> None:
        self.lock = threading.RLock()
        self.side = interface.stream()
        self._interface = interface
        self.raw = interface.raw()
        self._last: Any = None
        self.default = False

    def enter(self) -> bool:
        """Makes the caller's stream wait for what ran in the lane before. The lock is held.

        Returns:
            False where somebody captures the caller's stream: it must not be made to wait, and nothing be replayed.
        """
        if self.default and self.raw() == 0:
            return True
        if self._interface.capturing():
            return False
        stream = self._interface.current()
        if self._last is not None and self._last != stream:
            stream.wait_stream(self._last)
        self._last = stream
        self.default = self.raw() == 0
        return True


def lane_of(interface: Interface) -> Lane:
    """The lane of a device, made when it is first asked for."""
    with _guard:
        if interface.device not in _lanes:
            _lanes[interface.device] = Lane(interface)
        return _lanes[interface.device]
