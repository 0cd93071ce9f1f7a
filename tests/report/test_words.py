"""Numbers and foreign texts as words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from tt_core.report import words


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(0.0124, "12.4 ms"), (8.12e-4, "0.812 ms"), (5.8e-3, "5.80 ms"), (1.234, "1234 ms"), (0.0, "0.000 ms")],
)
def test_milliseconds(seconds, told):
    """Latencies have three digits."""
    assert words.milliseconds(seconds) == told


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (0.84, "0.8 s"),
        (12.4, "12 s"),
        (59.6, "1 min 0 s"),
        (125, "2 min 5 s"),
        (7320, "2 h 2 min"),
        (float("nan"), "nan s"),
    ],
)
def test_duration(seconds, told):
    """Longer times are told as people do."""
    assert words.duration(seconds) == told


@pytest.mark.parametrize(
    ("value", "told"), [(1.384, "1.38x"), (0.5, "0.50x"), (12.34, "12.3x"), (260.0, "260x"), (float("inf"), "infx")]
)
def test_ratio(value, told):
    """Speed-ups have about three digits."""
    assert words.ratio(value) == told


@pytest.mark.parametrize(
    ("values", "told"), [([1.384], "1.38x"), ([1.42, 1.38], "1.38-1.42x"), ([1.381, 1.382], "1.38x")]
)
def test_span(values, told):
    """Several speed-ups are a range, and one number where both ends read the same."""
    assert words.span(values) == told


@pytest.mark.parametrize(
    ("count", "told"),
    [(0, "0 bytes"), (900, "900 bytes"), (2048, "2.0 KiB"), (5 << 30, "5.0 GiB"), (3 << 50, "3072.0 TiB")],
)
def test_size(count, told):
    """Bytes have binary units."""
    assert words.size(count) == told


@pytest.mark.parametrize(("value", "told"), [(7.4, "7"), (94.0, "94"), (8953.0, "9,000"), (1234567.0, "1,200,000")])
def test_about(value, told):
    """Rough counts have two digits."""
    assert words.about(value) == told


@given(st.text())
def test_clean_is_one_printable_line(text):
    """Whatever comes in, one line of visible characters comes out."""
    cleaned = words.clean(text)

    assert cleaned.isprintable()
    assert "\x1b" not in cleaned


@given(st.text(), st.integers(min_value=8, max_value=60))
def test_shorten_fits(text, width):
    """A shortened text is never wider than asked, and a short one is left alone."""
    cleaned = words.clean(text)
    short = words.shorten(cleaned, width)

    assert cell_len(short) <= width
    assert short == cleaned or cell_len(cleaned) > width


@pytest.mark.parametrize(
    ("text", "scrubbed"),
    [
        ('File "/opt/a/b/model.py", line 3', 'File ".../model.py", line 3'),
        ("/home/ada", "~"),
        ("in ~/x/y.py", "in .../y.py"),
        ("C:\\Users\\ada\\x.py", ".../x.py"),
        ("file:///srv/x/y.py", ".../y.py"),
        ("see https://example.org/a/b", "see https://example.org/a/b"),
        ("12 tokens/s and/or n/a, 3 / 4 / 5", "12 tokens/s and/or n/a, 3 / 4 / 5"),
        ("[/x] stays [/bold]", "[/x] stays [/bold]"),
        ("src/a/b.py", "src/a/b.py"),
    ],
)
def test_scrub(text, scrubbed):
    """Folders go, file names and everything that only looks like a folder stay."""
    assert words.scrub(text) == scrubbed
