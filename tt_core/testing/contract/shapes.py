"""Promises about sizes: what is covered is right, and covered is no more than was recorded."""

from __future__ import annotations

import pytest

from tt_core.callkey import tensors_of
from tt_core.check import covers_probe
from tt_core.contain import Caught, attempt
from tt_core.testing.contract.base import Base, having
from tt_core.testing.contract.shop import Made, Shop, accepts
from tt_core.testing.ladder import Rung
from tt_core.values import Call


class Sizes(Base):
    """What a built covers."""

    def test_covers_the_recorded(self, shop: Shop, rung: Rung) -> None:
        """Every recorded call is covered: a built that does not serve what it was built for is no use."""
        made = shop.need(rung)
        guard = made.guard()
        for call in made.recorded:
            assert accepts(guard, call), f"not covered: {_sizes(made, call)}; covers {made.ready.covers}"

    def test_covers_no_more_than_recorded(self, shop: Shop, rung: Rung) -> None:
        """Ranges stay inside what was recorded, and axes that were always equal have to be equal."""
        made = shop.need(rung)
        verdict = covers_probe(made.calls, made.ready)

        assert verdict.ok, verdict.reason

    @having("inside")
    def test_sizes_between(self, shop: Shop, rung: Rung) -> None:
        """Sizes between the recorded ones that are covered give eager's results, also where two axes meet."""
        made = shop.need(rung)
        guard = made.guard()
        served = [call for call in map(shop.moved, made.rung.inside()) if accepts(guard, call)]
        if not served:
            pytest.skip(f"{rung}: it covers none of the sizes between the recorded ones")
        for call in served:
            what = f"at {_sizes(made, call)}"
            shop.same(shop.eager(made, call), shop.run(made, made.ready.call, call), what)

    @having("outside")
    def test_sizes_outside(self, shop: Shop, rung: Rung) -> None:
        """Sizes out of range, and unequal axes, are not covered; or they give what eager gives, errors included."""
        made = shop.need(rung)
        guard = made.guard()
        for call in map(shop.moved, made.rung.outside()):
            if accepts(guard, call):
                self._as_eager(shop, made, call)

    def _as_eager(self, shop: Shop, made: Made, call: Call) -> None:
        what = f"covers {_sizes(made, call)}"
        want = attempt(lambda: shop.eager(made, call), where="eager")
        got = attempt(lambda: shop.run(made, made.ready.call, call), where="the built")
        if isinstance(want, Caught):
            assert isinstance(got, Caught), f"{what}: eager refuses it ({want.reason}), the built gives a result"
        else:
            assert not isinstance(got, Caught), f"{what}: eager gives a result, the built raises {got}"
            shop.same(want, got, what)


def _sizes(made: Made, call: Call) -> str:
    return ", ".join(str(tuple(tensor.shape)) for tensor in tensors_of(made.unit.forward, call))
