"""What is remembered, what is not, and how it is switched."""

from __future__ import annotations

import os

import attrs
import pytest
import torch
from remembered import HIT, hit, small_plan

import tt_core as tt
from tt_core.store import cache
from tt_core.testing.fakes import FakeBackend, FakeLayer, raising


def test_that_nothing_won_is_remembered(net, data, auto, bench):
    """A second tuning leaves the object alone at once, and says why and what to do."""
    lame = FakeBackend(bench, pace=2.0)
    assert not auto(net(), data, lame).changed
    built = lame.count("build")
    result = auto(net(), data, lame)
    assert lame.count("build") == built
    assert result.headline == (
        f"Nothing was installed, the object is as before: an earlier run found nothing that beats it ({HIT})."
    )
    assert result.plan.eager
    assert not result.trials


def test_that_everything_failed_is_not_remembered(net, data, auto, bench, fast, folder):
    """What was missing may be there the next time."""
    assert not auto(net(), data, raising(bench, "fast")).changed
    assert list(folder.iterdir()) == []
    assert auto(net(), data, fast).changed


def test_that_noise_decided_is_not_remembered(net, data, auto, bench, folder, monkeypatch):
    """A quieter hour may find a winner; a winner is remembered whatever the noise elsewhere."""
    from tt_core.session import remember

    result = auto(net(), data, FakeBackend(bench), mode="off")
    (depth,), (trial,) = result.depths, result.trials
    noisy = attrs.evolve(depth, timing=attrs.evolve(depth.timing, undecided=True))
    tied = attrs.evolve(trial, outcome=attrs.evolve(trial.outcome, undecided=True))
    eager = small_plan()
    assert remember._unsure(eager, [noisy], [trial])
    assert remember._unsure(eager, [depth], [tied])
    assert not remember._unsure(eager, [depth], [trial])
    assert not remember._unsure(result.plan, [noisy], [tied])


def test_nothing_to_tune_is_remembered(net, data, auto, bench, slow, folder):
    """A depth without a unit to tune was decided all the same."""
    lame = FakeBackend(bench, "lame", 2.0)
    auto(net(), data, lame, max_depth=1, skip=["first", "second"])
    assert "an earlier run found nothing" in auto(net(), data, lame, max_depth=1, skip=["first", "second"]).headline


def test_refresh_searches_again(net, data, auto, bench, fast):
    """And remembers what it found."""
    auto(net(), data, fast)
    lame = FakeBackend(bench, "fast", 2.0)
    assert not hit(auto(net(), data, lame, mode="refresh"))
    assert "an earlier run found nothing" in auto(net(), data, lame).headline


def test_off_neither_reads_nor_writes(net, data, auto, fast, folder):
    """The folder is not even made."""
    auto(net(), data, fast, mode="off")
    assert not folder.exists()
    auto(net(), data, fast)
    assert not hit(auto(net(), data, fast, mode="off"))


def test_an_empty_variable_switches_it_off(net, data, auto, fast, monkeypatch):
    """Without a note: it was asked for."""
    monkeypatch.setenv("TT_CACHE_DIR", "")
    monkeypatch.setattr(cache, "cache_folder", lambda: pytest.fail("looked for a folder"))
    auto(net(), data, fast)
    result = auto(net(), data, fast)
    assert not hit(result)
    assert not any("remembered" in note for note in result.notes)


def test_an_unknown_mode_is_refused():
    """The words are listed."""
    with pytest.raises(tt.UsageError, match="one of 'use', 'refresh', 'off' is needed"):
        tt.Settings(cache="yes")


class Own(tt.Strategy):
    """A strategy of the caller's own."""


@pytest.mark.parametrize(
    "fields",
    [
        {"check": lambda expected, actual: True},
        {"strategy": Own()},
        {"strategies": {"first": Own()}},
        {"backends": ["eager"]},
    ],
)
def test_what_has_no_name_is_not_remembered(net, data, auto, fast, folder, fields):
    """A check or strategy that is code, and a run without anything to search."""
    auto(net(), data, fast, **fields)
    assert not folder.exists()


def test_a_search_that_ran_out_of_time_is_not_remembered(net, data, auto, fast, folder):
    """The next one may have more."""
    auto(net(), data, fast, max_depth=1, time_budget=0.5)
    assert list(folder.iterdir()) == []


def test_a_call_without_a_form(net, bench, data, auto, fast, folder):
    """A plan that cannot be written is not remembered, and a note says why."""
    from dataclasses import dataclass

    @dataclass
    class Pair:
        x: torch.Tensor

    class Taking(FakeLayer):
        def forward(self, pair):
            return super().forward(pair.x)

    result = auto(Taking(bench).eval(), [tt.Call(Pair(data[0]))], fast)
    assert result.changed
    assert any(note.startswith("the plan is not remembered: class ") for note in result.notes)
    assert list(folder.iterdir()) == []


def test_the_suite_uses_no_cache():
    """No other test writes to the user's home."""
    assert os.environ["TT_CACHE_DIR"] == ""
