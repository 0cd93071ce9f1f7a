"""Which library multiplies faster: both are right, and the race says what a clock says."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from tt_inductor import linears, products
from tt_inductor.products import Product

assert linears  # registers the operator


class Clock:
    """A clock that only work moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def work(self, seconds: Callable[[], float]) -> products.Run:
        def run() -> None:
            self.now += seconds()

        return run


def test_gain_is_the_ratio_of_their_times() -> None:
    clock = Clock()
    assert products.gain(clock.work(lambda: 3e-3), clock.work(lambda: 2e-3), clock) == pytest.approx(1.5)


def test_a_neighbour_in_some_rounds_changes_nothing() -> None:
    clock, times = Clock(), disturbed()
    assert products.gain(clock.work(lambda: 3e-3), clock.work(lambda: next(times)), clock) == pytest.approx(1.5)


def disturbed() -> Iterator[float]:
    while True:
        yield from [2e-3, 2e-3, 9e-3]


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("packed", "called"), [(False, False), (False, True), (True, False)])
def test_both_ways_compute_the_same(biased: bool, packed: bool, called: bool) -> None:
    torch.manual_seed(0)
    product = Product(rows=5, ins=7, outs=3, biased=biased, packed=packed, called=called)
    with torch.no_grad():
        mkl, onednn = (way() for way in products.ways(product))
    assert isinstance(mkl, torch.Tensor)
    torch.testing.assert_close(onednn, mkl)
    assert mkl.shape == (5, 3)


def test_a_product_is_raced_once_for_each_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    raced = []
    monkeypatch.setattr(products, "gain", lambda *ways: raced.append(ways) or 1.2)
    product, threads = Product(rows=2, ins=512, outs=512, biased=True), torch.get_num_threads()
    try:
        assert products.faster(product)
        assert products.faster(product)
        torch.set_num_threads(threads + 1)
        assert products.faster(product)
    finally:
        torch.set_num_threads(threads)
        products._raced.cache_clear()
    assert len(raced) == 2


@pytest.mark.parametrize(("gain", "taken"), [(1.02, False), (1.04, True)])
def test_a_gain_that_may_be_noise_is_none(monkeypatch: pytest.MonkeyPatch, gain: float, taken: bool) -> None:
    monkeypatch.setattr(products, "gain", lambda *_ways: gain)
    try:
        assert products.faster(Product(rows=2, ins=512, outs=513, biased=True)) is taken
    finally:
        products._raced.cache_clear()


def test_what_is_over_before_onednn_is_called_is_not_raced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "gain", lambda *_ways: pytest.fail("raced"))
    assert not products.faster(Product(rows=2, ins=64, outs=64, biased=True))
