"""Promises about calls: every spelling, every mode without gradients, inputs as they come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tt_core import state, trees
from tt_core.testing.contract.base import Base, having
from tt_core.testing.contract.shop import Made, Shop, accepts, calm
from tt_core.testing.ladder import Rung
from tt_core.values import Call

_MODES: dict[str, Callable[[], Any]] = {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode}


class Signatures(Base):
    """How a built may be called."""

    @having("spellings")
    def test_every_spelling(self, shop: Shop, rung: Rung) -> None:
        """Arguments by position, by name in any order, defaults left out or written down: one call, one result."""
        made = shop.need(rung)
        expected = shop.eager(made, shop.moved(made.rung.calls()[0]))
        guard = made.guard()
        for call in map(shop.moved, made.rung.spellings()):
            spelled = f"{len(call.args)} by position, {', '.join(call.kwargs) or 'none'} by name"

            assert accepts(guard, call), f"the guard does not know the call with {spelled}"
            shop.same(expected, shop.run(made, made.ready.call, call), spelled)

    @pytest.mark.parametrize("mode", _MODES)
    def test_modes(self, shop: Shop, rung: Rung, mode: str) -> None:
        """Under no_grad, and in inference mode with inference tensors, results are eager's and want no gradient."""
        made = shop.need(rung)
        call = made.recorded[0]
        expected = shop.eager(made, call)
        with _MODES[mode](), calm(), state.kept(made.unit.module):
            state.seed(0)
            args, kwargs = trees.mapped(torch.clone, (call.args, call.kwargs))
            result = made.ready.call(*args, **kwargs)

        assert not any(tensor.requires_grad for tensor in trees.tensors(result))
        shop.same(expected, result, mode)

    def test_strides(self, shop: Shop, main: Made) -> None:
        """Inputs of other strides give the same results, unless the built says that it needs its strides."""
        if main.ready.needs_strides:
            pytest.skip("it declares needs_strides: the guard lets only contiguous inputs through")
        call = main.recorded[-1]
        args, kwargs = trees.mapped(_strided, (call.args, call.kwargs))

        shop.same(shop.eager(main, call), shop.served(main, Call(*args, **kwargs)), "strided inputs")


def _strided(tensor: torch.Tensor) -> torch.Tensor:
    """The same values, every other element of a larger memory."""
    return torch.stack([tensor, tensor], -1)[..., 0]
