"""Progress while tuning runs."""

from __future__ import annotations

import io
import re
import sys

import pytest

from tt_core.errors import UsageError
from tt_core.report import listening, progress_printer
from tt_core.result import Progress


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    return Terminal()


def run_of(units, *, depth=1, start=10.0, each=10.0):
    """The events of one depth, as a session sends them."""
    events = [Progress(stage="record", depth=depth, total=len(units), elapsed_s=start)]
    for i, unit in enumerate(units):
        at = start + each * i
        events.append(Progress(stage="unit", depth=depth, unit=unit, done=i, total=len(units), elapsed_s=at))
        events.append(Progress(stage="build", unit=unit, candidate="fast", elapsed_s=at + 1))
        events.append(Progress(stage="race", unit=unit, candidate="fast, other", elapsed_s=at + 5))
    return [*events, Progress(stage="passes", depth=depth, elapsed_s=start + each * len(units))]


def drawn(terminal):
    """The texts that were on the line, one after the other."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue())
    return [line.strip() for line in plain.replace("\x1b[2K", "").split("\r")]


def test_one_line_a_unit_elsewhere():
    """Without a terminal each finished unit is one plain line, with how many are done."""
    stream = io.StringIO()
    printer = progress_printer(stream)
    for event in [*run_of(["a", "b", ""]), Progress(stage="done", elapsed_s=99.0)]:
        printer(event)
    lines = [" ".join(line.split()) for line in stream.getvalue().splitlines()]

    assert lines == [
        "tt_core 20 s depth 1: a done (1 of 3)",
        "tt_core 30 s depth 1: b done (2 of 3)",
        "tt_core 40 s depth 1: whole model done (3 of 3)",
        "tt_core 40 s depth 1: racing whole passes against untuned",
        "tt_core 1 min 39 s done",
    ]


def test_events_of_one_unit_are_no_lines():
    """Stages inside a unit do not fill a log."""
    stream = io.StringIO()
    printer = progress_printer(stream)
    for event in run_of(["a"])[:-1]:
        printer(event)

    assert stream.getvalue() == ""


def test_the_line_on_a_terminal(terminal):
    """The line tells elapsed time, depth, count, unit, stage and candidate, and what was told before still holds."""
    printer = progress_printer(terminal)
    for event in run_of(["a", "b"])[:4]:
        printer(event)

    assert drawn(terminal)[-1] == "15 s  depth 1 (0/2)  a  racing fast, other"


def test_the_estimate_follows_the_finished_units(terminal):
    """After the first unit the time left at this depth is estimated, and it shrinks while the next one runs."""
    printer = progress_printer(terminal)
    for event in run_of(["a", "b", "c"])[:7]:
        printer(event)

    assert "20 s (about 20 s left at this depth)" in drawn(terminal)[-3]
    assert "25 s (about 15 s left at this depth)" in drawn(terminal)[-1]


def test_a_new_depth_starts_its_own_estimate(terminal):
    """Seconds of one depth say nothing about the next; units that were reused do not count as done in no time."""
    printer = progress_printer(terminal)
    for event in run_of(["a", "b"]):
        printer(event)
    printer(Progress(stage="record", depth=2, total=9, elapsed_s=50.0))
    printer(Progress(stage="unit", depth=2, unit="c", done=7, total=9, elapsed_s=51.0))

    assert drawn(terminal)[-1] == "51 s  depth 2 (7/9)  c  starting"


def test_done_leaves_an_empty_line(terminal):
    """At the end the line is cleared, so that the table starts on a clean one."""
    printer = progress_printer(terminal)
    printer(run_of(["a"])[0])
    printer(Progress(stage="done", elapsed_s=1.0))

    assert terminal.getvalue().endswith("\r\x1b[2K")


def test_an_interrupt_leaves_an_empty_line(terminal, monkeypatch):
    """Ctrl-C passes through, and the line is cleared."""
    monkeypatch.setattr(sys, "stderr", terminal)

    def interrupted():
        with listening(True) as listener:
            listener(run_of(["a"])[0])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()

    assert terminal.getvalue().endswith("\r\x1b[2K")


def test_the_line_never_wraps(terminal):
    """A long name or candidate is shortened to the terminal's width, and cannot send it commands."""
    printer = progress_printer(terminal)
    printer(Progress(stage="unit", depth=0, unit="x.\x1b[31m" + "long." * 40, total=3, elapsed_s=1.0))
    printer(Progress(stage="build", candidate="[/x]" + "y" * 200, elapsed_s=1.0))

    assert all(len(line) < 100 for line in drawn(terminal))
    assert "building [/x]yyy" in drawn(terminal)[-1]
    assert "\x1b[31m" not in terminal.getvalue()


def test_a_note_is_shown(terminal):
    """An event's own sentence is what the line says."""
    progress_printer(terminal)(Progress(stage="passes", note="the last race", elapsed_s=3.0))

    assert drawn(terminal)[-1] == "3.0 s  the last race"


def test_a_dumb_terminal_gets_lines(terminal, monkeypatch):
    """Where the cursor cannot be moved the plain lines are printed."""
    monkeypatch.setenv("TERM", "dumb")
    printer = progress_printer(terminal)
    for event in run_of(["a"]):
        printer(event)

    assert "\r" not in terminal.getvalue()
    assert "a done (1 of 1)" in terminal.getvalue()


def test_a_closed_stream_does_not_stop_the_tuning():
    """A stream that is gone ends the printing only."""
    stream = io.StringIO()
    stream.close()
    with progress_printer(stream) as printer:
        for event in run_of(["a"]):
            printer(event)

    assert printer._dead


def test_none_is_silent_without_a_terminal(capsys):
    """`progress=None` prints nothing where stderr is no terminal, False never does, True always does."""
    for progress in (None, False):
        with listening(progress) as listener:
            assert listener is None
    with listening(True) as listener:
        for event in run_of(["a"]):
            listener(event)

    assert "a done (1 of 1)" in capsys.readouterr().err


def test_none_prints_on_a_terminal(terminal, monkeypatch):
    """`progress=None` shows the line where stderr is a terminal."""
    monkeypatch.setattr(sys, "stderr", terminal)
    with listening(None) as listener:
        listener(run_of(["a"])[0])

    assert "recording calls" in terminal.getvalue()


def test_no_stderr_at_all(monkeypatch):
    """A process without stderr is silent, also when it asked for progress."""
    monkeypatch.setattr(sys, "stderr", None)
    with listening(None) as listener:
        assert listener is None
    with listening(True) as listener:
        listener(run_of(["a"])[0])

    assert listener._dead


def test_a_callable_gets_the_events():
    """A callable is the listener itself."""
    heard = []
    with listening(heard.append) as listener:
        listener(Progress(stage="inspect"))

    assert [event.stage for event in heard] == ["inspect"]


def test_anything_else_is_an_error():
    """Another value is refused with what is possible."""
    with pytest.raises(UsageError, match=r"progress='yes': True, False, None, or a callable"), listening("yes"):
        pass
