"""The page for notebooks."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest

from tt_core.report import html
from tt_core.values import Refusal

VOID = {"meta"}


class Reader(HTMLParser):
    """Collects tags and words, and sees whether every tag is closed in order."""

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.attributes, self.words = [], set(), [], []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.words.append(data)


def read(markup):
    reader = Reader()
    reader.feed(markup)
    assert reader.open == []
    return reader


def test_it_is_well_formed_and_stands_alone(any_result):
    """Every tag is closed; there is no script, no link, and nothing to load."""
    reader = read(html(any_result))

    assert not reader.tags & {"script", "link", "img", "iframe", "object"}
    assert not {name for name, _ in reader.attributes} & {"src", "href", "onclick"}
    assert "url(" not in html(any_result)


def test_it_says_what_the_table_says(win):
    """Headline, the depths' figures, folded units, reasons, refusals, notes: all there."""
    words = " ".join(read(html(win)).words)
    told = ("2.14x", "runs now", "12.4 ms", "encoder.layer.0-11 (12 BertLayer)", "1.35-1.39x", "third is not installed")

    assert all(
        word in words for word in (win.headline, *told, "every candidate failed on every unit", "took 1 min 33 s")
    )


def test_a_dry_run(dry):
    """A dry run shows modules and memory."""
    words = " ".join(read(html(dry)).words)

    assert "18.0 MiB" in words
    assert "embeddings, encoder.layer.0-11 (12 BertLayer), pooler" in words


@pytest.mark.parametrize("evil", ["<script>alert(1)</script>", '"><img src=x onerror=y>', "a&b<c>"])
def test_foreign_texts_are_escaped(make, evil):
    """Names and messages are words on the page, never markup."""
    trial = make.failed(evil, make.fast, "build", "OSError", evil, hint=evil)
    refused = (Refusal(name=evil, stage="probe", reason=evil, hint=evil),)
    result = make.one([trial], headline=evil, notes=(evil,), refused=refused, environment={evil: evil})
    for markup in (html(result), html(result, page=True)):
        reader = read(markup)

        assert not reader.tags & {"script", "img", "c"}
        assert evil in "".join(reader.words)


def test_a_whole_document(win):
    """`page=True` gives a document of its own that follows light and dark."""
    document = html(win, page=True)

    assert document.startswith("<!doctype html>")
    assert ("content", "light dark") in read(document).attributes
    assert html(win) in document


def test_styles_stay_inside(win):
    """Every rule is limited to the report, so that a notebook keeps its looks."""
    style = html(win).partition("<style>")[2].partition("</style>")[0]
    rules = [rule for rule in style.replace("\n", "").split("}") if rule.strip()]

    assert rules
    assert all(
        selector.strip().startswith(".tt-report") for rule in rules for selector in rule.split("{")[0].split(",")
    )
