"""Promises about results: right, in the right containers, and the caller's own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tt_core import state, trees
from tt_core.callkey import tensors_of
from tt_core.install import Entry, install, stats
from tt_core.samples.overlap import aliases
from tt_core.testing.contract.base import Base
from tt_core.testing.contract.shop import Made, Shop
from tt_core.testing.ladder import Rung
from tt_core.values import Call, Fidelity, evolve


class Results(Base):
    """What a built returns."""

    def test_results_are_eagers(self, shop: Shop, rung: Rung) -> None:
        """Structure, container types, dtypes, shapes, numbers, inputs, state and aliases are eager's on every recorded call."""
        made = shop.need(rung)
        expected = [sample.expected for sample in made.calls.samples]
        truth = [sample.truth for sample in made.calls.samples]
        actual = shop.observed(made)
        vetoes = [
            verdict
            for verdict in shop.plugins.check(made.calls.facts, expected, actual, truth, shop.tolerance)
            if not verdict.ok
        ]

        assert not vetoes, "; ".join(f"{verdict.reason} ({verdict.where})" for verdict in vetoes)

    def test_exact_is_exact(self, shop: Shop) -> None:
        """What declares Fidelity.EXACT is equal to eager bit for bit, on every rung."""
        if shop.backend.fidelity is not Fidelity.EXACT:
            pytest.skip(f"{shop.backend.name} declares Fidelity.{shop.backend.fidelity.name}")
        for made in [shop.made(rung) for rung in self.rungs]:
            seen = shop.observed(made) if made.built is not None else ()
            for sample, one in zip(made.calls.samples, seen, strict=False):
                pairs = zip(trees.tensors(sample.expected.result), trees.tensors(one.result), strict=True)

                assert all(state.identical(want, got) for want, got in pairs), f"{made.rung}, sample {sample.index}"

    def test_results_are_kept(self, shop: Shop, rung: Rung) -> None:
        """A result that the caller keeps stays what it was while later calls of its size run."""
        made = shop.need(rung)
        result = shop.run(made, made.ready.call, made.recorded[0])
        copy = trees.replica(result)
        for call in made.recorded[1:]:
            shop.run(made, made.ready.call, call)

        _unchanged(copy, result, "a later call wrote into an earlier result")

    def test_results_are_the_callers(self, shop: Shop, rung: Rung) -> None:
        """Two results share no memory, and what the caller writes into one shows in no later one."""
        made = shop.need(rung)
        first, second = (shop.run(made, made.ready.call, made.recorded[0]) for _ in range(2))
        copy = trees.replica(second)
        shared = aliases(trees.flatten(second)[0], trees.tensors(first), {})
        for tensor in trees.tensors(first):
            tensor.zero_()

        assert not [source for _, source in shared if source[0] == "input"], "two results are one memory"
        shop.same(copy, shop.run(made, made.ready.call, made.recorded[0]), "after a result was written to")

    def test_packed_is_call(self, shop: Shop, rung: Rung) -> None:
        """Where a built has `packed`, the tensors of a call in the key's order give what `call` gives."""
        made = shop.need(rung)
        packed = made.ready.packed
        if packed is None:
            pytest.skip("it takes calls only")
        for call in made.recorded:
            _same_at_hand(shop, made, call, packed)

    def test_overlapped_is_call(self, shop: Shop, rung: Rung) -> None:
        """Where a built has `overlapped`, it gives what `call` gives, calls what it was given once, and lets its error out."""
        made = shop.need(rung)
        overlapped = made.ready.overlapped
        if overlapped is None:
            pytest.skip("it leaves no time meanwhile")
        for call in made.recorded:
            asked: list[bool] = []
            _same_at_hand(shop, made, call, partial(overlapped, partial(asked.append, True)))
            assert len(asked) == 1, f"the question meanwhile was asked {len(asked)} times, once is right"
            with pytest.raises(ZeroDivisionError):
                shop.run(made, partial(overlapped, lambda: 1 / 0), _at_hand(made, call))

    def test_serves_as_installed(self, shop: Shop, rung: Rung) -> None:
        """Behind the core's dispatcher every recorded call is served by the built, and undo leaves no trace."""
        made = shop.need(rung)
        module, before = made.unit.module, list(vars(made.unit.module))
        expected = [shop.eager(made, call) for call in made.recorded]
        entry = Entry(
            unit=made.unit,
            key=made.calls.key,
            built=_unclosed(made),
            covers=made.ready.covers,
            facts=made.calls.facts,
            candidate=shop.candidate(),
        )
        installed = install([entry])
        try:
            stats(module, hits=True)
            results = [shop.run(made, module, call) for call in made.recorded]
            seen = stats(module)[""]
        finally:
            installed.undo()

        assert not seen.falls
        assert seen.hits == len(made.recorded)
        assert list(vars(module)) == before
        for want, got in zip(expected, results, strict=True):
            shop.same(want, got, "behind the dispatcher")


def _unclosed(made: Made) -> Any:
    """The built with a `close` that does nothing: it is used again after `undo`."""
    return evolve(made.ready, close=lambda: None, inner=None)


def _unchanged(copy: Any, result: Any, what: str) -> None:
    pairs = zip(trees.tensors(copy), trees.tensors(result), strict=True)
    assert all(state.identical(was, now) for was, now in pairs), what


def _at_hand(made: Made, call: Call) -> Call:
    """A call's tensors in the key's order, as the one argument that they are for who has them at hand."""
    return Call(tensors_of(made.unit.forward, call))


def _same_at_hand(shop: Shop, made: Made, call: Call, packed: Callable[..., Any]) -> None:
    expected = shop.run(made, made.ready.call, call)
    shop.same(expected, shop.run(made, packed, _at_hand(made, call)), "for the tensors of a call")
