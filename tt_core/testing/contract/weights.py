"""Promises about weights: what changes in the module is seen, or the guard notices it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from tt_core import state
from tt_core.check import stale_after_write
from tt_core.testing.contract.base import Base
from tt_core.testing.contract.shop import Made, Shop, accepts, calm
from tt_core.testing.ladder import Rows
from tt_core.values import Built, Weights


def _write(module: Any) -> None:
    module.first.weight.mul_(1.5).add_(0.1)


def _replace(module: Any) -> None:
    module.first.weight = nn.Parameter(module.first.weight.detach() * 1.5 + 0.1)


def _attribute(module: Any) -> None:
    module.slope = 0.5


def _child(module: Any) -> None:
    module.norm = nn.Identity()


def _hook(module: Any) -> None:
    module.last.register_forward_hook(lambda _module, _args, result: result * 2)


Change = Callable[[Any], None]
_WEIGHTS: dict[str, Change] = {"written": _write, "replaced": _replace}
_SETTINGS: dict[str, Change] = {"attribute": _attribute, "child": _child, "hook": _hook}


class WeightsLevel(Base):
    """Where a built reads its weights from."""

    @pytest.mark.parametrize("change", _WEIGHTS)
    def test_changes_show(self, shop: Shop, main: Made, change: str) -> None:
        """Weights written in place or replaced show in the next result, or the guard of the claimed level refuses the call."""
        _shows(shop, main, change, _WEIGHTS[change])

    @pytest.mark.parametrize("change", _SETTINGS)
    def test_settings_show(self, shop: Shop, main: Made, change: str) -> None:
        """The same for a number among the attributes, a child that was replaced, and a hook inside."""
        _shows(shop, main, change, _SETTINGS[change])

    def test_written_weights_are_seen(self, main: Made) -> None:
        """LIVE and STORAGE read what was written in place, also where no version counter moved."""
        level = main.ready.weights
        if level is Weights.VALUES:
            pytest.skip("it claims Weights.VALUES: the guard looks at versions, and tt.stale at the values")
        with calm():
            verdict = stale_after_write(main.unit, main.ready, main.recorded[0])

        assert verdict.ok, verdict.reason
        assert verdict.compared

    def test_rebind(self, shop: Shop, main: Made) -> None:
        """tt_rebind gives another unit of the same program its own weights, and leaves the first as it was."""
        if not shop.has("tt_rebind"):
            pytest.skip("no tt_rebind: twins are built anew")
        twin = shop.recorded(main.rung, seed=2)
        with torch.no_grad():
            arguments = {"backend": shop.backend.name, "built": main.ready, "unit": twin.unit, "limits": shop.limits}
            bound = shop.hook("tt_rebind", **arguments)
        if bound is None:
            pytest.skip("tt_rebind answers None: this built is built anew for a twin")
        assert isinstance(bound, Built)
        for call in main.recorded:
            shop.same(shop.eager(twin, call), shop.run(twin, bound.call, call), "rebound")
        bound.close()
        for call in main.recorded:
            shop.same(shop.eager(main, call), shop.run(main, main.ready.call, call), "after a rebound twin was closed")


def _shows(shop: Shop, made: Made, name: str, change: Change) -> None:
    module, call = made.unit.module, made.recorded[0]
    assert isinstance(module, Rows), "the first rung is ROWS: its module is the one that is changed"
    guard, level = made.guard(), made.ready.weights
    before = shop.eager(made, call)
    assert accepts(guard, call), "the guard refuses a recorded call before anything was changed"
    with _changed(module, change):
        after = shop.eager(made, call)
        served = accepts(guard, call)
        result = shop.served(made, call) if served else after

    assert not torch.allclose(before, after)
    assert served or level is not Weights.LIVE
    shop.same(after, result, f"claims Weights.{level.name}, and is stale after: {name}")


@contextlib.contextmanager
def _changed(module: nn.Module, change: Callable[[Any], None]) -> Iterator[None]:
    """The module changed for the length of the block; put back as the very objects."""
    with state.kept(module), torch.no_grad():
        change(module)
        yield
