"""The result as JSON, and back."""

from __future__ import annotations

import json
import platform

import attrs
import pytest

from tt_core.errors import UsageError
from tt_core.report import from_json, html, text, to_json
from tt_core.values import Axis, Choice, Cut, DepthResult, Shapes


def through_a_file(result):
    return json.loads(json.dumps(to_json(result), allow_nan=False))


def test_the_table_survives(any_result):
    """A report that was read back prints the very same table and page."""
    back = from_json(through_a_file(any_result))

    assert str(back) == text(any_result)
    assert back._repr_html_() == html(any_result)


def test_writing_again_changes_nothing(any_result):
    """What was read back is written as it was."""
    data = through_a_file(any_result)

    assert from_json(data).to_json() == data
    assert from_json(data).headline == any_result.headline


def test_raw_stamps_and_derived_figures(win):
    """Depths and trials hold the raw stamps, and the statistics that follow from them."""
    data = through_a_file(win)
    timing = data["depths"][1]["timing"]

    assert timing["seconds"] == [5.8e-3] * 3
    assert timing["median_s"] == 5.8e-3
    assert timing["speedup"] == pytest.approx(1 / 0.467)
    assert timing["interval"]["mid"] == 0.467
    assert data["speedup"] == timing["speedup"]
    assert [depth["selected"] for depth in data["depths"]] == [False, True, False]
    assert data["environment"]["seed"] == "0"


def test_trials_tell_verdicts_and_failures(win):
    """A trial has its candidate with options, its verdict's figures, and the reason of its failure."""
    trials = through_a_file(win)["trials"]
    frozen = next(t for t in trials if t["candidate"]["text"] == "fast(freezing=True)")
    refused = next(t for t in trials if t["failure"] and t["failure"]["kind"] == "BuildRefusedError")

    assert frozen["candidate"]["steps"] == [{"backend": "fast", "options": {"freezing": True}}]
    assert frozen["verdicts"][0]["error"] == 3e-7
    assert refused["timing"] is None
    assert refused["failure"]["hint"] == "tune what is below: min_depth=1"
    assert frozen["key"] == "x: f32[?, ?]"


def test_keys_of_a_unit_stay_apart(make):
    """Two call keys that read the same for people are still two in the JSON."""
    keys = [make.key(), attrs.evolve(make.key(), leaves=(attrs.evolve(make.key().leaves[0], type=type("T", (), {})),))]
    trials = through_a_file(make.one([make.trial("a", make.fast, make.timed(1e-3), key) for key in keys]))["trials"]

    assert trials[0]["key"] != trials[1]["key"]


def test_covered_sizes(make):
    """A choice tells which sizes it covers, moving axes with their bounds."""
    covers = Shapes(leaves=((2, Axis(lo=8, hi=128, symbol="s")),))
    choice = Choice(unit="a", key=make.key(), candidate=make.fast, covers=covers)
    data = through_a_file(make.one([make.trial("a", make.fast, make.timed(1e-3))], [choice]))

    assert data["depths"][0]["choices"][0]["covers"] == [[2, {"lo": 8, "hi": 128, "symbol": "s"}]]
    assert data["trials"][0]["key"] == "x: f32[2, 8..128]"


def test_no_folder_host_or_user(make, monkeypatch):
    """Folders, the host's and the user's name are nowhere in the JSON; file names stay."""
    monkeypatch.setattr("getpass.getuser", lambda: "berta")
    monkeypatch.setattr(platform, "node", lambda: "gigant.example.org")
    detail = 'File "/home/berta/secret/model.py", line 3, on gigant: berta@gigant.example.org\n'
    trial = make.failed(
        "a", make.fast, "build", "OSError", "cannot open /opt/firm/lib/libx.so for berta", detail=detail
    )
    written = json.dumps(to_json(make.one([trial], notes=("see C:\\Users\\berta\\model.py and ~/plans/x.txt",))))

    assert not any(word in written for word in ("berta", "gigant", "secret", "firm", "plans", "Users", "/home"))
    assert ".../model.py" in written
    assert ".../libx.so" in written


def test_a_name_that_is_a_word_of_ours(make, monkeypatch):
    """A user called like a module or one of the format's own keys damages nothing."""
    monkeypatch.setattr("getpass.getuser", lambda: "units")
    monkeypatch.setattr(platform, "node", lambda: "encoder")
    data = through_a_file(make.one([make.failed("encoder.units", make.fast, "build", "E", "no")]))

    assert data["units"] == {"encoder.units": "Linear"}
    assert data["trials"][0]["unit"] == "encoder.units"


def test_numbers_that_json_cannot_hold(make):
    """Not-a-number and infinity are words, so that every reader takes the file."""
    verdict = attrs.evolve(make.trial("a", make.fast, make.timed(1e-3)).verdicts[0], max_abs=float("inf"))
    trial = attrs.evolve(make.trial("a", make.fast, make.timed(1e-3)), verdicts=(verdict,))

    assert through_a_file(make.one([trial]))["trials"][0]["verdicts"][0]["max_abs"] == "inf"


def test_odd_texts_and_options(make):
    """Options that are no JSON become text, and lone surrogates do not break the file."""
    odd = type(make.fast).of("fast", kind=make.timed, bits=(1, 2))
    data = to_json(make.one([make.trial("a", odd, make.timed(1e-3))], notes=("\ud800",)))

    json.dumps(data, allow_nan=False).encode("utf-8")
    assert data["notes"] == ["?"]
    assert data["trials"][0]["candidate"]["steps"][0]["options"]["bits"] == [1, 2]


def test_the_selected_depth_may_be_a_copy(win):
    """The selected depth is found by its cut where it is not the very entry."""
    copied = attrs.evolve(win, selected=attrs.evolve(win.selected))

    assert [depth["selected"] for depth in to_json(copied)["depths"]] == [False, True, False]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": 99}, "format 99, this tt_core reads up to 1: update"),
        ({"format": "one"}, "no valid format number"),
        ({"format": True}, "no valid format number"),
        ({"format": 0}, "no valid format number"),
        ({"kind": "else"}, "no report of tt_core"),
        ({"depths": [{}]}, "damaged: KeyError"),
        ({"trials": 3}, "damaged: TypeError"),
        ({"seconds": "long"}, "damaged"),
    ],
)
def test_what_is_no_report_is_refused(win, change, words):
    """Newer, foreign and damaged data are refused with the reason."""
    with pytest.raises(UsageError, match=words):
        from_json({**through_a_file(win), **change})


def test_no_mapping(win):
    """A list is no report."""
    with pytest.raises(UsageError, match="no report"):
        from_json([to_json(win)])


def test_a_dry_run_keeps_its_memory(dry):
    """The memory need of a depth is in the JSON, in bytes."""
    assert [depth["bytes_needed"] for depth in to_json(dry)["depths"]] == [1 << 20, 18 << 20, None]


def test_depths_without_numbers(make):
    """A cut that the user chose by paths has no depth, and is called units."""
    depth = DepthResult(cut=Cut(depths=(), units=("a",)), wrapped=1, error="nothing won")

    assert "depth units: nothing won" in text(make.one([], depths=(depth,)))
