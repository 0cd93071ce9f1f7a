"""Units: what each one runs, and why the others lost."""

from __future__ import annotations

import attrs
import pytest

from tt_core.report import text
from tt_core.report.folding import fold
from tt_core.values import EAGER, Choice, Cut, DepthResult


def words_of(result):
    return " ".join(text(result).split())


def chosen(make, unit, candidate, **fields):
    return Choice(unit=unit, key=make.key(), candidate=candidate, **fields)


def test_equal_units_are_one_line(win):
    """Twelve layers with one outcome are folded into one line, with the range of their speed-ups."""
    row = next(line for line in text(win).splitlines() if "encoder.layer" in line)

    assert row.split() == ["encoder.layer.0-11", "(12", "BertLayer)", "fast", "1.35-1.39x", "0.406", "ms"]
    assert text(win).count("encoder.layer.") == 1


def test_a_layer_that_went_another_way_stands_alone(make):
    """A unit where another candidate was chosen is not folded with its neighbours."""
    paths = [f"layer.{i}" for i in range(4)]
    trials = [make.trial(path, make.fast, make.timed(1e-3, 0.5)) for path in paths]
    choices = [chosen(make, path, EAGER if path == "layer.2" else make.fast) for path in paths]
    printed = text(make.one(trials, choices))

    assert "layer.0-1,3 (3 Linear)" in printed
    assert "layer.2 (Linear)" in printed


def test_other_reasons_are_not_folded(make):
    """Units that failed for different reasons keep their own lines; a number in the reason makes no difference."""
    reasons = {"layer.0": "no kernel for size 8", "layer.1": "no kernel for size 16", "layer.2": "out of memory"}
    printed = text(make.one([make.failed(u, make.fast, "build", "RuntimeError", r) for u, r in reasons.items()]))

    assert "layer.0-1 (2 Linear)" in printed
    assert "layer.2 (Linear)" in printed


@pytest.mark.parametrize(
    ("timing", "sentence"),
    [
        ({"ratio": 1.03, "noise": 0.04, "undecided": True}, "other: 0.97x, tie (noise 4 %)"),
        ({"ratio": 1.01, "noise": 0.01}, "other: 0.99x, tie"),
        ({"ratio": 0.4, "noise": 0.9, "undecided": True}, "other: 2.50x, undecided (noise 90 %)"),
        ({"ratio": 2.0, "noise": 0.01}, "other: 0.50x, slower"),
        ({"ratio": 0.8, "noise": 0.01}, "other: 1.25x, the chosen one is faster"),
        ({"ratio": 0.5, "noise": 0.01}, "other: 2.00x, tie with the plainer one chosen"),
    ],
)
def test_why_a_timed_candidate_lost(make, timing, sentence):
    """A candidate that was timed shows its own speed-up and one reason."""
    trials = [
        make.trial("a", make.fast, make.timed(5e-4, 0.5)),
        make.trial("a", make.other, make.timed(1e-3, timing.pop("ratio"), **timing)),
    ]

    assert sentence in words_of(make.one(trials, [chosen(make, "a", make.fast)])).replace(" - ", " ")


def test_a_gain_too_small(make):
    """A candidate that is faster, but not by enough to leave eager, says so."""
    trials = [make.trial("a", make.fast, make.timed(1e-3, 0.99, width=0.005))]

    assert "fast: 1.01x, gain too small" in text(make.one(trials, [chosen(make, "a", EAGER)]))


@pytest.mark.parametrize(
    ("stage", "kind", "sentence"),
    [
        ("build", "RuntimeError", "other: build failed: RuntimeError: so it is"),
        ("build", "BuildRefusedError", "other: refused: so it is"),
        ("check", "wrong", "other: wrong result: so it is"),
        ("check", "TypeError", "other: failed when it was called: TypeError: so it is"),
        ("race", "ValueError", "other: failed while timed: ValueError: so it is"),
        ("limit", "timeout", "other: over the limit: so it is"),
        ("keeps", "keeps", "other: so it is"),
        ("odd", "word", "other: odd failed: so it is"),
    ],
)
def test_why_a_candidate_failed(make, stage, kind, sentence):
    """A candidate that failed names the stage, the exception where there was one, and the reason with its hint."""
    trial = make.failed("a", make.other, stage, kind, "so it is", hint="try that")

    assert f"{sentence} (try that)" in text(make.one([trial]))


def test_a_long_reason_is_cut(make):
    """A reason of many lines leaves the table readable; the JSON has all of it."""
    result = make.one([make.failed("a", make.other, "build", "OSError", "word " * 200)])

    assert text(result).count("word") < 40
    assert result.to_json()["trials"][0]["failure"]["reason"].count("word") == 200


def test_own_figures_of_a_unit(make):
    """The chosen candidate's speed-up and latency are its own; eager has a latency and no speed-up."""
    trials = [
        make.trial("a", make.fast, make.timed(5e-4, 0.5)),
        make.trial("b", EAGER, make.timed(1e-3)),
    ]
    lines = text(make.one(trials, [chosen(make, "a", make.fast), chosen(make, "b", EAGER)])).splitlines()

    assert next(line for line in lines if "  a (" in line).split() == ["a", "(Linear)", "fast", "2.00x", "0.500", "ms"]
    assert next(line for line in lines if "  b (" in line).split() == ["b", "(Linear)", "eager", "-", "1.00", "ms"]


def test_break_even(make):
    """A build says its seconds and after how many calls they are paid: (build + first call) / gain per call."""
    trial = make.trial("a", make.fast, make.timed(1e-3, 0.5, build_s=9.0, first_call_s=1.0))

    assert "built in 9.0 s, paid for after about 10,000 calls" in text(
        make.one([trial], [chosen(make, "a", make.fast)])
    )


def test_a_build_that_never_pays(make):
    """What is not faster never pays for its build, and no number is made up; the choice's reason is told."""
    trial = make.trial("a", make.fast, make.timed(1e-3, 1.5, build_s=9.0))
    choice = chosen(make, "a", make.fast, why="0.67x eager: not faster, installed because it was asked for by name")
    printed = text(make.one([trial], [choice]))

    assert "built in 9.0 s" in printed
    assert "paid for" not in printed
    assert "not faster, installed because it was asked for by name" in printed


def test_a_unit_that_cannot_be_tuned(make):
    """A unit without trials shows why it stays eager."""
    choice = chosen(make, "a", EAGER, why="an argument is opaque: Cache")
    depth = DepthResult(cut=Cut(depths=(0,), units=("a",)), wrapped=1, choices=(choice,))
    printed = text(make.one([], depths=(depth,), selected=depth))

    assert "an argument is opaque: Cache" in printed


def test_several_calls_of_a_unit(make):
    """A unit that is called in several ways has a line for each call key."""
    keys = [make.key(causal=True), make.key(causal=False)]
    trials = [make.trial("a", make.fast, make.timed(1e-3, 0.5 + i), key) for i, key in enumerate(keys)]
    choices = [Choice(unit="a", key=keys[0], candidate=make.fast), Choice(unit="a", key=keys[1], candidate=EAGER)]
    printed = text(make.one(trials, choices))

    assert "called with causal: True" in printed
    assert "called with causal: False" in printed
    assert printed.count("a (Linear)") == 1


def test_twins_share_the_choice_of_the_first(make):
    """Members of a choice are listed with it."""
    trial = make.trial("layer.0", make.fast, make.timed(1e-3, 0.5))
    choice = chosen(make, "layer.0", make.fast, members=("layer.1", "layer.2"))
    depth = DepthResult(cut=Cut(depths=(0,), units=("layer.0", "layer.1", "layer.2")), wrapped=3, choices=(choice,))

    assert "layer.0-2 (3)" in text(make.one([trial], depths=(depth,), selected=depth, units={}))


def test_a_unit_of_two_depths_stands_once(make):
    """A unit that two cuts share is listed with the installed one only."""
    trial = make.trial("a", make.fast, make.timed(1e-3, 0.5))
    cuts = [Cut(depths=(i,), units=("a",)) for i in range(2)]
    depths = [DepthResult(cut=cut, wrapped=1, choices=(chosen(make, "a", make.fast),)) for cut in cuts]
    printed = text(make.one([trial], depths=tuple(depths), selected=depths[1]))

    assert printed.count("a (Linear)") == 1
    assert printed.index("Installed: depth 1") < printed.index("a (Linear)")


def test_a_run_that_broke_off_shows_its_trials(make):
    """Trials of a depth that never ended are told."""
    printed = text(make.one([make.trial("a", make.fast, make.timed(1e-3, 0.5))], depths=()))

    assert "Tried before the run ended" in printed
    assert "fast: 2.00x" in printed


def test_very_many_units_are_limited(make):
    """A depth of hundreds of different units shows some and says how many more there are."""
    trials = [make.failed(f"m{'x' * i}", make.fast, "build", "E", "no") for i in range(50)]

    assert "... and 30 more: result.to_json() has them all" in text(make.one(trials))


def test_options_tell_variants_apart(win):
    """Two variants of one backend are told apart by their options."""
    assert "fast(freezing=True): 1.35x" in text(win)


@pytest.mark.parametrize(
    ("paths", "folded"),
    [
        (["a.b"], "a.b"),
        (["a.0", "a.1", "a.2"], "a.0-2"),
        (["a.2.mlp", "a.0.mlp", "a.7.mlp"], "a.0,2,7.mlp"),
        (["a.0.b.0", "a.0.b.1"], "a.0.b.0-1"),
        (["a.0.b.0", "a.1.b.1"], "a.*.b.*"),
        (["h9", "h10"], "h9-10"),
        (["0.1", "1.1"], "[0-1].1"),
    ],
)
def test_folded_paths(paths, folded):
    """Where one number moves its values are told, where several do they are left open."""
    assert fold(paths) == folded


def test_the_root_has_a_name(broken):
    """The root, whose path is empty, is called the whole model."""
    assert "whole model (Odd)" in text(attrs.evolve(broken))
