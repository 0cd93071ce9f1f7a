"""Promises about a built's life: built or refused with a sentence, closed, gone."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import pytest
import torch

from tt_core.testing.contract.base import Base
from tt_core.testing.contract.declaration import is_sentence
from tt_core.testing.contract.shop import Made, Shop
from tt_core.testing.ladder import Rung
from tt_core.values import Built


class Lifecycle(Base):
    """How a built comes and goes."""

    def test_builds_or_refuses(self, shop: Shop, rung: Rung) -> None:
        """tt_build returns a Built, or raises BuildRefusedError; any other exception is a bug, also where it is contained."""
        made = shop.made(rung)

        assert not made.failed, made.failed
        if made.skip:
            pytest.skip(f"{rung}: {made.skip}")
        _well_formed(made.ready)

    def test_refusals_are_sentences(self, shop: Shop) -> None:
        """Each refusal gives its reason in one line that a table can show."""
        refused = {rung.name: shop.made(rung).refused for rung in self.rungs}
        texts = {name: error for name, error in refused.items() if error is not None}
        if not texts:
            pytest.skip("nothing on this ladder was refused")

        assert [f"{name}: {error.reason!r}" for name, error in texts.items() if not is_sentence(error.reason)] == []
        assert [f"{name}: {error.hint!r}" for name, error in texts.items() if "\n" in error.hint] == []

    def test_close_gives_everything_back(self, shop: Shop) -> None:
        """After `close` nothing holds the module, its weights or memory of the device any more, and no thread is left."""
        rung = self.rungs[0]
        shop.need(rung)  # what a first build leaves for good (imports, pools) is there before
        held = _Held(shop)
        module = _built_and_closed(shop, rung)
        gc.collect()

        assert module() is None, f"held by {_holders(module())}"
        assert held.threads() <= 0, f"{held.threads()} threads are left"
        assert held.bytes() <= 0, f"{held.bytes()} bytes on the device are left"


def _well_formed(built: Built) -> None:
    assert callable(built.call)
    assert callable(built.close)
    assert built.bytes_held is None or built.bytes_held >= 0
    assert all(isinstance(note, str) and is_sentence(note) for note in built.notes), built.notes


class _Held:
    """Threads, and bytes on the device, since it was made."""

    def __init__(self, shop: Shop) -> None:
        self._device = shop.device
        self._threads, self._bytes = threading.active_count(), self._allocated()

    def threads(self) -> int:
        return threading.active_count() - self._threads

    def bytes(self) -> int:
        return self._allocated() - self._bytes

    def _allocated(self) -> int:
        if self._device.type == "cpu":
            return 0
        return int(torch.get_device_module(self._device).memory_allocated(self._device))


def _built_and_closed(shop: Shop, rung: Rung) -> weakref.ref[Any]:
    """Builds, runs and closes once more, and keeps nothing but a weak reference to the module."""
    made: Made = shop.fresh(rung)
    assert not made.failed, made.failed
    shop.run(made, made.ready.call, made.recorded[0])
    made.ready.close()
    return weakref.ref(made.unit.module)


def _holders(module: Any) -> str:
    return ", ".join(sorted({type(one).__name__ for one in gc.get_referrers(module)})) if module is not None else ""
