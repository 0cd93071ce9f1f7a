"""Strategies: the order of candidates, layers, names, and who is left out."""

from __future__ import annotations

import pytest

from tt_core.errors import UsageError
from tt_core.plugins import Plugins
from tt_core.strategy import (
    FirstWinsStrategy,
    HighestThroughputStrategy,
    OneBackendStrategy,
    as_device,
    assemble,
    default_strategy,
    matching,
)
from tt_core.values import EAGER, Backend, Candidate, Fidelity


def backend(name: str, **fields: object) -> Backend:
    return Backend(**{"name": name, "devices": {"cpu"}, "fidelity": Fidelity.CLOSE, **fields})


EAGER_BACKEND = backend("eager", capturable=True, priority=100)


def test_order_is_eager_then_length_priority_name():
    """Plainer first: eager, then by (length of chain, -priority, name), variants in their declared order."""
    found = assemble(
        [
            backend("b", priority=60),
            backend("a", priority=60),
            backend("slow", priority=10, options=({}, {"x": 1})),
            EAGER_BACKEND,
        ]
    )
    assert [str(c) for c in found] == ["eager", "a", "b", "slow", "slow(x=1)"]


def test_layers_stand_on_eager_and_on_every_capturable_candidate():
    """A layer over eager has its own name; over others the chain is joined with +."""
    found = assemble(
        [EAGER_BACKEND, backend("jit", capturable=True), backend("other"), backend("graph", layer=True, priority=70)]
    )
    assert [c.name for c in found] == ["eager", "graph", "jit", "other", "jit+graph"]


def test_default_strategy_names_share_variants():
    """Option variants stand under one name; refusals come along."""

    class Two:
        @staticmethod
        def tt_backends():
            return [backend("two", options=({}, {"fast": True})), backend("lossy", fidelity=Fidelity.LOSSY)]

    from tt_core.hookspecs import hookimpl

    hookimpl(Two.tt_backends)
    plugins = Plugins.load(extra=[Two()], environ={"TT_DISABLE_AUTOLOAD": "1"})
    strategy = default_strategy("cpu", plugins=plugins)
    assert strategy.names == ("eager", "two")
    assert [c for c in strategy.wanted if c.name == "two"] == [Candidate.of("two"), Candidate.of("two", fast=True)]
    assert "lossy" in {r.name for r in strategy.refused}


def test_strategies_pick_from_what_is_offered():
    """Names stand for all variants, candidates for themselves; eager is always in."""
    offered = (EAGER, Candidate.of("a"), Candidate.of("a", x=1), Candidate.of("b"))
    assert HighestThroughputStrategy().candidates(None, None, offered) == offered
    assert OneBackendStrategy("b").candidates(None, None, offered) == (EAGER, Candidate.of("b"))
    assert FirstWinsStrategy(["b", "a"]).candidates(None, None, offered) == (
        EAGER,
        Candidate.of("b"),
        Candidate.of("a"),
        Candidate.of("a", x=1),
    )
    special = Candidate.of("a", x=2)
    assert OneBackendStrategy(special).candidates(None, None, offered) == (EAGER, special)


def test_what_the_strategies_promise():
    """Only OneBackendStrategy installs what does not win."""
    assert HighestThroughputStrategy().must_win
    assert FirstWinsStrategy().must_win
    assert not OneBackendStrategy("b").must_win


def test_candidates_are_values():
    """Options in another order make the same candidate; the name hides them, the text shows them."""
    a = Candidate(steps=(("jit", {"x": 1, "y": 2}), ("graph", {})))
    assert a == Candidate(steps=(("jit", {"y": 2, "x": 1}), ("graph", {})))
    assert a.name == "jit+graph"
    assert str(a) == "jit(x=1, y=2)+graph"


def test_unknown_device_is_an_error():
    """A device that torch does not know is said so."""
    with pytest.raises(UsageError, match="device 'nonsense'"):
        as_device("nonsense")


def test_patterns_match_paths_and_classes():
    """The first matching pattern wins, by path or class name."""
    table = {"encoder.*": 1, "Linear": 2}
    assert matching("encoder.0", "Linear", table) == 1
    assert matching("head", "Linear", table) == 2
    assert matching("head", "Conv", table) is None
