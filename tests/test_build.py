"""Candidates become builts: chains innermost first, claims composed, parts closed once, refusals with their reasons."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import tt_core as tt
from tt_core import build
from tt_core.plugins import Plugins
from tt_core.values import Axis, Built, Candidate, Failure, Keeps, Limits, Shapes, Unit, Weights

CPU = torch.device("cpu")


class Step:
    """A plugin with one backend; it logs what it was asked."""

    def __init__(self, name, log, *, built=None, error=None, seconds=0.0, clock=None, **declared):
        self.__name__, self.log, self.built, self.error = f"plugin_{name}", log, built or {}, error
        self.seconds, self.clock = seconds, clock
        self.backend = tt.Backend(
            name=name, **{"devices": {"*"}, "fidelity": tt.Fidelity.CLOSE, "keeps": frozenset(Keeps), **declared}
        )

    @tt.hookimpl
    def tt_backends(self):
        return self.backend

    @tt.hookimpl
    def tt_build(self, unit, inner, options):
        self.log.append(("build", self.backend.name, dict(options), inner))
        if self.clock is not None:
            self.clock.append(self.seconds)
        if self.error is not None:
            raise self.error
        return Built(call=unit.forward, close=lambda: self.log.append(("close", self.backend.name)), **self.built)


@pytest.fixture
def log():
    return []


def run(candidate, *plugins, facts=None, clock=None, **limits):
    module = nn.Linear(4, 4).eval()
    unit = Unit(path="part", module=module, forward=module.forward)
    calls = tt.Calls(
        key=tt.CallKey(tree=None, leaves=(), ambient=tt.Ambient()),
        shapes=Shapes(leaves=()),
        samples=(),
        seen=1,
        facts=facts or tt.Facts(),
    )
    loaded = Plugins.load(extra=plugins, environ={"TT_DISABLE_AUTOLOAD": "1"})
    now = lambda: float(sum(clock or ()))  # noqa: E731
    return build.build(loaded, candidate, unit, calls, CPU, Limits(**{"seconds": 10.0, **limits}), now)


CHAIN = Candidate.of("core", level=2).over("graph", warm=True)


def test_a_chain_is_built_from_the_inside(log):
    """Each step gets its options and what the one before it built."""
    chain = run(CHAIN, Step("core", log), Step("graph", log, layer=True))
    assert [entry[:3] for entry in log] == [("build", "core", {"level": 2}), ("build", "graph", {"warm": True})]
    assert log[0][3] is None
    assert log[1][3] is chain.parts[0]


def test_a_layer_on_its_own_stands_on_eager(log):
    """It gets the original forward as its inner built."""
    chain = run(Candidate.of("graph"), Step("graph", log, layer=True))
    assert log[0][3].weights is Weights.LIVE
    assert len(chain.parts) == 2


def test_claims_are_the_weakest_of_all_parts(log):
    """Covers meet, weights take the strongest level, threads and forks need all parts, bytes add up, notes stand in order."""
    wide, narrow = (Shapes(leaves=((Axis(lo=lo, hi=hi, symbol="s0"), 4),)) for lo, hi in ((1, 8), (2, 16)))
    core = {"covers": wide, "weights": Weights.STORAGE, "bytes_held": 5, "notes": ("a",), "needs_strides": True}
    graph = {"covers": narrow, "weights": Weights.LIVE, "bytes_held": 7, "notes": ("b",), "concurrent": False}
    built = run(CHAIN, Step("core", log, built=core), Step("graph", log, built=graph, layer=True)).built
    (size, four), *_ = built.covers.leaves
    assert (size.lo, size.hi, four) == (2, 8, 4)
    assert (built.weights, built.bytes_held, built.notes) == (Weights.STORAGE, 12, ("a", "b"))
    assert (built.concurrent, built.fork_safe, built.needs_strides) == (False, True, True)


def test_every_part_is_closed_once_outermost_first(log):
    """Whoever closes the chain and its inner parts, in whatever order, closes each backend's part once."""
    built = run(CHAIN, Step("core", log), Step("graph", log, layer=True)).built
    log.clear()
    built.close()
    built.inner.close()
    built.close()
    assert log == [("close", "graph"), ("close", "core")]


def test_a_part_that_does_not_close_does_not_keep_the_others_open(log):
    """Its error is forgotten."""
    outer = Step("graph", log, layer=True)
    chain = run(CHAIN, Step("core", log), outer)
    outer.log = None  # its close now raises
    chain.built.close()
    assert log[-1] == ("close", "core")


@pytest.mark.parametrize("error", [RuntimeError("out of shared memory\nat line 7"), KeyboardInterrupt()])
def test_a_failing_step_closes_what_was_built(log, error):
    """The failure names stage, candidate and reason; an interrupt passes, and nothing stays open either way."""
    plugins = Step("core", log), Step("graph", log, error=error, layer=True)
    if isinstance(error, KeyboardInterrupt):
        with pytest.raises(KeyboardInterrupt):
            run(CHAIN, *plugins)
    else:
        failure = run(CHAIN, *plugins)
        assert isinstance(failure, Failure)
        assert (failure.stage, failure.kind, failure.unit) == ("build", "RuntimeError", "part")
        assert (failure.candidate, failure.reason) == (CHAIN, "out of shared memory")
        assert "at line 7" in failure.detail
    assert log[-1] == ("close", "core")


def test_a_refusal_keeps_its_hint(log):
    """`BuildRefusedError` is a reason for people, not a stack trace."""
    failure = run(Candidate.of("core"), Step("core", log, error=tt.BuildRefusedError("no int4 here", "use int8")))
    assert (failure.kind, failure.reason, failure.hint) == ("BuildRefusedError", "no int4 here", "use int8")


def test_what_a_chain_does_not_keep_is_not_built(log):
    """A unit that writes its state needs every step to keep that."""
    plugins = Step("core", log), Step("graph", log, layer=True, keeps={Keeps.RANDOM})
    failure = run(CHAIN, *plugins, facts=tt.Facts(writes_state=("steps",), random=True))
    assert (failure.stage, failure.reason) == ("keeps", "core+graph does not keep writes to its state")
    assert log == []


def test_an_overrun_of_time_is_a_failure(log):
    """Noticed when the build is over; the result is closed."""
    clock = [0.0]
    failure = run(Candidate.of("core"), Step("core", log, clock=clock, seconds=11.0), clock=clock)
    assert (failure.stage, failure.kind) == ("limit", "timeout")
    assert failure.reason == "the build took 11 s, which exceeded the limit of 10 s"
    assert log[-1] == ("close", "core")


@pytest.mark.parametrize(("limit", "fails"), [(None, False), (12, False), (11, True)])
def test_an_overrun_of_bytes_is_a_failure(log, limit, fails):
    """All parts together."""
    plugins = Step("core", log, built={"bytes_held": 5}), Step("graph", log, built={"bytes_held": 7}, layer=True)
    answer = run(CHAIN, *plugins, bytes=limit)
    assert isinstance(answer, Failure) is fails
    if fails:
        assert (answer.stage, answer.kind) == ("limit", "memory")
        assert log[-2:] == [("close", "graph"), ("close", "core")]


def test_seconds_are_those_of_the_whole_chain(log):
    """By the run's own clock."""
    clock = [0.0]
    plugins = (
        Step("core", log, clock=clock, seconds=2.0),
        Step("graph", log, clock=clock, seconds=3.0, layer=True),
    )
    assert run(CHAIN, *plugins, clock=clock).seconds == pytest.approx(5.0)


def test_nonsense_is_a_failure():
    """A build that answers something else than a `Built`."""

    class Nonsense(Step):
        @tt.hookimpl
        def tt_build(self, unit):
            return unit.forward

    failure = run(Candidate.of("core"), Nonsense("core", []))
    assert (failure.kind, "not Built" in failure.reason) == ("PluginError", True)
