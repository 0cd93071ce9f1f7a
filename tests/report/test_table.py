"""The table that people read."""

from __future__ import annotations

import io
import re
import subprocess
import sys

import attrs
import pytest
from rich.cells import cell_len

from tt_core.report import show, text
from tt_core.values import Choice, Cut, DepthResult, Refusal


def lines_of(result):
    return text(result).splitlines()


def line_with(result, words):
    return next(line for line in lines_of(result) if words in line)


def test_it_fits_80_columns(any_result):
    """No line is wider than 80 columns, whatever the run's end."""
    assert max(cell_len(line) for line in lines_of(any_result)) <= 80


def test_it_is_plain(any_result, monkeypatch):
    """Only ASCII letters of ours, no colours and no control characters, also where colours are forced."""
    monkeypatch.setenv("FORCE_COLOR", "1")

    assert all(line.isprintable() and line.isascii() and line == line.rstrip() for line in lines_of(any_result))


def test_the_headline_is_on_top(any_result):
    """The first words are the sentence that says what was installed, or why nothing was."""
    assert " ".join(text(any_result).split()).startswith(any_result.headline)


def test_untuned_comes_first(win):
    """The untuned object leads the table of depths with its own latency."""
    table = [line for line in lines_of(win) if " ms" in line or line.lstrip("> ").startswith("0 ")]

    assert table[0].split()[:4] == ["untuned", "12.4", "ms", "12.0"]
    assert table[0].endswith("1.00x")


def test_a_depth_in_figures(win):
    """A depth shows modules wrapped, tuned, failed, median latency, lowest total, and the speed-up with its interval."""
    row = next(line for line in lines_of(win) if line.startswith(">"))

    assert row.split() == [">", "1", "14", "13", "0", "5.80", "ms", "5.50", "ms", "2.14x", "2.10-2.19"]


def test_only_the_selected_depth_is_marked(win, lost):
    """One row has the mark, and its meaning is said; nothing is marked where nothing was installed."""
    marked = [line for line in lines_of(win) if line.startswith(">")]

    assert len(marked) == 1
    assert "> runs now" in text(win)
    assert ">" not in text(lost)


def test_equal_cuts_are_one_row(win):
    """A cut that two depths give is named by both."""
    assert line_with(win, "14.0 ms").split()[0] == "2-3"


def test_why_a_depth_lost(win, late):
    """A depth that was not measured or not selected says why below the table."""
    assert "depth 0: every candidate failed on every unit" in text(win)
    assert "depth 2: time budget used up" in text(late)


def test_a_depth_that_was_not_started_has_no_figures(late):
    """A depth after the budget shows how many modules it has, not that none of them was tuned."""
    row = next(line for line in lines_of(late) if line.split()[:1] == ["2"])

    assert row.split() == ["2", "12", "-", "-", "-", "-", "-"]


def test_a_dry_run_shows_modules_and_memory(dry):
    """A dry run lists for each depth how many modules it wraps, which, and the memory that tuning needs."""
    words = " ".join(text(dry).split())

    assert "1 14 18.0 MiB embeddings, encoder.layer.0-11 (12 BertLayer), pooler" in words
    assert "speed-up" not in words


def test_refusals_have_their_sentence_and_what_to_do(win):
    """A plugin that did not take part has its reason, and the hint on its own line to copy."""
    lines = lines_of(win)
    at = lines.index("  third: third is not installed")

    assert lines[at + 1].strip() == '-> pip install "tt-core[third]"'


def test_a_refusal_told_twice_stands_once(make):
    """Equal refusals are folded."""
    twice = (Refusal(name="third", stage="missing", reason="gone"),) * 2

    assert text(make.one([], refused=twice)).count("third: gone") == 1


def test_notes_and_footer(win):
    """Sentences for people, the time taken and the machine's facts close the report."""
    assert "- 32 of 256 samples were kept" in text(win)
    assert lines_of(win)[-1].startswith("took 1 min 33 s; python 3.11.8; torch 2.13.0")


def test_it_says_how_close_the_results_are(win, lost):
    """Where something is installed, the largest distance to eager that the check found is told."""
    assert "differ from eager by at most 2.0e-07" in " ".join(text(win).split())
    assert "differ from eager" not in text(lost)


def test_noise_is_confessed(lost):
    """Decisions that noise took are counted."""
    assert "noise 14 %: 1 of 2 decisions is a tie because of it" in text(lost)


def test_a_quiet_machine_is_no_news(make):
    """Nothing is said about noise where all decisions held on a calm machine."""
    assert "noise" not in text(make.one([make.trial("a", make.fast, make.timed(1e-3, 2.0, noise=0.01))]))


@pytest.mark.parametrize("name", ["[/x]", "[bold red]a[/]", ":smile:", "\\[x]"])
def test_markup_is_printed_as_it_is(make, name):
    """Names and texts with rich's markup in them are printed literally everywhere."""
    trials = [make.failed(name, make.fast, "build", "KeyError", f"no {name}", hint=f"hint {name}")]
    refused = (Refusal(name=name, stage="probe", reason=f"why {name}", hint=f"do {name}"),)
    result = make.one(trials, headline=f"head {name}", notes=(f"note {name}",), refused=refused)
    result = attrs.evolve(result, units={name: name}, environment={name: name})
    printed = text(result)

    assert all(f"{word} {name}" in printed for word in ("head", "no", "hint", "why", "do", "note"))
    assert f"{name} ({name})" in printed


def test_control_characters_are_taken_out(make):
    """Terminal sequences, line breaks and invisible characters in foreign texts cannot act on the terminal."""
    evil = "a\x1b[2J\x1b]0;title\x07b\rc\nd\u202ee\x00"
    printed = text(make.one([make.failed(evil, make.fast, "build", "OSError", evil)], headline=evil, notes=(evil,)))

    assert "ab c de" in printed
    assert all(line.isprintable() for line in printed.splitlines())


def test_long_names_keep_both_ends(make):
    """A long path loses its middle; the table still fits."""
    path = "model.decoder." + "very_long_name." * 12 + "attention"
    printed = text(make.one([make.trial(path, make.fast, make.timed(1e-3, 0.5))]))

    assert re.search(r"model\.decoder\.\S*\.\.\.\S*attention", printed)
    assert max(map(len, printed.splitlines())) <= 80


def test_wide_characters_fit_too(make):
    """Names in wide letters are measured in columns, not in characters."""
    path = "\u6a21\u578b" * 40
    printed = text(make.one([make.failed(path, make.fast, "build", "OSError", path)]))

    assert max(cell_len(line) for line in printed.splitlines()) <= 80


def test_str_is_the_plain_table(win):
    """`str(result)` is the plain table, `_repr_html_` the page."""
    assert str(win) == text(win)
    assert "tt-report" in win._repr_html_()


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self):
        return True


def test_show_has_colours_on_a_terminal(win, monkeypatch):
    """On a terminal the report has colours and the same words."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    terminal = Terminal()
    show(win, terminal)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue())

    assert "\x1b[1;32m" in terminal.getvalue()
    assert "encoder.layer.0-11 (12 BertLayer)" in plain


def test_show_is_plain_elsewhere(win, capsys):
    """Into a pipe or a file the report is the plain text."""
    show(win)

    assert capsys.readouterr().out == text(win) + "\n"


def test_a_clock_that_stood_still(make):
    """Seconds and ratios of zero, or that are no numbers, are printed instead of raising."""
    still = make.timed(0.0, 0.0, build_s=1.0)
    odd = make.timed(float("nan"), float("nan"), build_s=float("inf"))
    choices = [Choice(unit=unit, key=make.key(), candidate=make.fast) for unit in ("a", "b")]
    depth = DepthResult(cut=Cut(depths=(0,), units=("a", "b")), wrapped=2, timing=still, choices=tuple(choices))
    result = make.one([make.trial("a", make.fast, still), make.trial("b", make.fast, odd)])

    assert "infx" in text(attrs.evolve(result, untuned=still, depths=(depth,), selected=depth))


def test_the_callers_random_numbers_are_left_alone():
    """rich draws one when it is first imported: in a fresh process neither a table nor progress moves the generator."""
    code = (
        "import io, random, sys; from tt_core.report.console import console; "
        "assert 'rich.style' not in sys.modules; before = random.getstate(); console(io.StringIO()); "
        "assert 'rich.style' in sys.modules; assert random.getstate() == before"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
