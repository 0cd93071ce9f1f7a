"""Candidates that serve a part of the recorded calls: checked and raced on what they serve, the rest counted as falls."""

from __future__ import annotations

import pytest
import torch

import tt_core as tt
from tt_core import FallbackWarning
from tt_core.testing.fakes import FakeBackend


@pytest.fixture
def data(data):
    """One call of two rows among nine of three or eight: a race can tell what the nine show."""
    few, middle, many = data
    return [few, *[middle, many] * 4, middle]


@pytest.fixture
def stack(make):
    """Quick enough for a race of many rounds."""
    return make(seconds=0.0005)


ROWS = tt.Axis(lo=3, hi=8, symbol="rows")


def covering(*sizes):
    return {"covers": tt.Shapes(leaves=(tuple(sizes),))}


def declining(refuses):
    """A built that hands back calls with a number of rows that `refuses` holds for."""

    def breaks(forward):
        def call(x):
            if refuses(x.shape[0]):
                message = f"{x.shape[0]} rows are odd"
                raise tt.DeclinedError(message)
            return forward(x)

        return call

    return breaks


def the_trial(result):
    (trial,) = result.trials
    return trial


def counts(obj, data):
    """Hits and falls over one pass, and the words of the warning."""
    want = [obj.__class__.forward(obj, x) for x in data]
    tt.stats(obj, hits=True)
    with torch.no_grad(), pytest.warns(FallbackWarning) as told:
        got = [obj(x) for x in data]
    assert all(torch.equal(a, b) for a, b in zip(want, got, strict=True))
    found = tt.stats(obj)[""]
    return found.hits, dict(found.falls), str(told[0].message)


def test_sizes_outside_a_narrow_claim_run_the_original(stack, data, auto, bench):
    """A built that covers 3 to 8 of 2 to 8 rows is installed, and the call with 2 rows is a counted fall."""
    fast = FakeBackend(bench, built=covering(ROWS, 4))
    result = auto(stack, data, fast, max_depth=0)
    assert result.changed
    assert "recorded calls that run the original forward: 1" in the_trial(result).notes
    hits, falls, words = counts(stack, data)
    assert (hits, falls) == (9, {"shape": 1})
    assert "ran its original forward" in words


def test_what_lies_outside_is_not_compared(stack, data, auto, bench):
    """Wrong where it never serves is not wrong."""

    def breaks(forward):
        return lambda x: forward(x) * (3.0 if x.shape[0] == 2 else 1.0)

    result = auto(stack, data, FakeBackend(bench, breaks=breaks, built=covering(ROWS, 4)), max_depth=0)
    assert result.changed


def test_wrong_inside_a_narrow_claim_is_wrong(stack, data, auto, bench):
    """The samples inside the claim are compared as ever."""

    def breaks(forward):
        return lambda x: forward(x) * (3.0 if x.shape[0] == 8 else 1.0)

    result = auto(stack, data, FakeBackend(bench, breaks=breaks, built=covering(ROWS, 4)), max_depth=0)
    assert not result.changed
    assert the_trial(result).outcome.kind == "wrong"


def test_the_race_pays_for_what_is_left_to_the_original(stack, data, auto, bench):
    """Nine of ten calls at half the time are not 2x end to end: the calls that fall are in the race too."""
    whole = auto(stack, data, FakeBackend(bench, "fast", 0.5), max_depth=0).speedup
    part = auto(stack, data, FakeBackend(bench, "fast", 0.5, built=covering(ROWS, 4)), max_depth=0).speedup
    assert 1.02 < part < whole


@pytest.mark.parametrize(("rows", "left"), [(2, 1), (8, 4)])
def test_calls_that_are_handed_back_run_the_original(stack, data, tune, bench, rows, left):
    """A call that a built declines is a fall of its own kind, with its words; the built stays in service."""
    fast = FakeBackend(bench, breaks=declining(lambda given: given == rows))
    result = tune(stack, data, fast, strategy=tt.OneBackendStrategy("fast"))
    assert "recorded calls that run the original forward: 1" in the_trial(result).notes
    hits, falls, words = counts(stack, data)
    assert (hits, falls) == (len(data) - left, {"declined": left})
    assert f"fast handed the call back: {rows} rows are odd" in words


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"breaks": declining(lambda _: True)}, "rows are odd"),
        ({"built": covering(tt.Axis(lo=4, hi=7, symbol="rows"), 4)}, "it covers none of the recorded calls"),
    ],
)
def test_what_serves_nothing_fails(stack, data, auto, bench, fields, says):
    """Eager under another name is no candidate."""
    result = auto(stack, data, FakeBackend(bench, **fields), max_depth=0)
    assert not result.changed
    assert says in the_trial(result).outcome.reason


def test_falls_of_other_kinds_are_failures_still(stack, data, auto, bench):
    """A partial claim excuses sizes, not a guard that refuses the recorded calls for another reason."""
    built = covering(ROWS, 4) | {"needs_strides": True}
    flipped = [x.t().contiguous().t() for x in data]
    result = auto(stack, flipped, FakeBackend(bench, built=built), max_depth=0)
    assert not result.changed
    assert "could not serve its own recorded calls" in the_trial(result).outcome.reason
