"""Promises about behaviour beyond results: each declared `Keeps`, one by one."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tt_core import state, trees
from tt_core.testing.contract.base import Base
from tt_core.testing.contract.shop import Made, Shop, calm
from tt_core.testing.ladder import BEHAVES
from tt_core.values import Backend, Keeps


def _behaving(shop: Shop, keep: Keeps) -> Made:
    """The rung that does all that the backend keeps; skips what it does not declare."""
    _declares(shop.backend, keep)
    return shop.need(BEHAVES)


def _declares(backend: Backend, keep: Keeps) -> None:
    if keep not in backend.keeps:
        pytest.skip(f"{backend.name} does not declare Keeps.{keep.name}: the core does not ask it for such units")


class Behaviour(Base):
    """What a built does besides returning results."""

    def test_keeps_input_writes(self, shop: Shop) -> None:
        """Keeps.INPUT_WRITES: the caller's own tensor holds what eager would have written, call after call."""
        made = _behaving(shop, Keeps.INPUT_WRITES)
        want, got = (_twice(made, forward) for forward in (made.unit.forward, made.ready.call))

        assert not state.identical(want.into, made.recorded[0].args[1])
        assert torch.allclose(want.into, got.into)

    def test_keeps_state_writes(self, shop: Shop) -> None:
        """Keeps.STATE_WRITES: after two calls the module's buffer counts two."""
        made = _behaving(shop, Keeps.STATE_WRITES)
        want, got = (_twice(made, forward) for forward in (made.unit.forward, made.ready.call))

        assert want.count == 2  # noqa: PLR2004
        assert got.count == want.count

    def test_keeps_aliases(self, shop: Shop) -> None:
        """Keeps.ALIASES: a result that is an input in eager is that input: writing into it shows."""
        made = _behaving(shop, Keeps.ALIASES)
        result, given = _twice(made, made.ready.call).last
        result["same"].fill_(3)

        assert bool((given.args[0] == 3).all())  # noqa: PLR2004

    def test_keeps_random(self, shop: Shop) -> None:
        """Keeps.RANDOM: from one seed eager's numbers, other ones at the next call, and as many drawn as eager draws."""
        made = _behaving(shop, Keeps.RANDOM)
        want, got = (_twice(made, forward) for forward in (made.unit.forward, made.ready.call))

        assert torch.allclose(want.noise[0], got.noise[0], atol=1e-5)
        assert torch.allclose(want.noise[1], got.noise[1], atol=1e-5)
        assert want.next_number == got.next_number

    def test_keeps_non_tensors(self, shop: Shop) -> None:
        """Keeps.NON_TENSORS: integers, strings and booleans among results are eager's, in value and type."""
        made = _behaving(shop, Keeps.NON_TENSORS)
        want, got = (_twice(made, forward).last[0] for forward in (made.unit.forward, made.ready.call))
        found = {name: got[name] for name in ("width", "kind", "flag")}

        assert found == {name: want[name] for name in found}
        assert [type(value) for value in found.values()] == [int, str, bool]


class _Ran:
    """Two calls in a row from one seed."""

    def __init__(self, made: Made, forward: Any) -> None:
        module = made.unit.module
        calls = [trees.replica((call.args, call.kwargs)) for call in (made.recorded[0], made.recorded[0])]
        with calm(), state.kept(module), torch.no_grad():
            state.seed(1)
            results = [forward(*args, **kwargs) for args, kwargs in calls]
            self.next_number = float(torch.rand(()))
            self.count = float(getattr(module, "count", torch.zeros(1)))
        self.noise = [result.get("noise") for result in results]
        self.into = calls[0][0][1]
        self.last = results[-1], _Given(calls[-1][0])


class _Given:
    """The arguments that a call received."""

    def __init__(self, args: Any) -> None:
        self.args = args


def _twice(made: Made, forward: Any) -> _Ran:
    return _Ran(made, forward)
