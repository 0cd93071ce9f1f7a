"""Progress while tuning runs: one line that changes on a terminal, one line a unit elsewhere. Both go to stderr."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Self, TextIO

from tt_core.errors import UsageError
from tt_core.report.console import console
from tt_core.report.words import clean, duration, shorten
from tt_core.result import Listener, Progress
from tt_core.values import valued

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_WORDS = {
    "inspect": "looking which modules run",
    "record": "recording calls",
    "unit": "starting",
    "build": "building",
    "check": "checking",
    "race": "racing",
    "passes": "racing whole passes against untuned",
    "install": "comparing the whole object once more",
}
_ONE_UNIT = {"unit", "build", "check", "race"}
"""Stages of work on one unit; the others end the unit that was in work."""
_NAME = 40
"""Columns for the path of a unit."""


@valued
class _View:
    """What is known: events tell only what is new. `first` and `latest` are (units done, elapsed seconds)."""

    depth: int | None = None
    unit: str | None = None
    done: int = 0
    total: int = 0
    first: tuple[int, float] = (0, 0.0)
    latest: tuple[int, float] = (0, 0.0)

    def after(self, event: Progress) -> _View:
        """The view with an event taken in; a new depth starts its own count and estimate."""
        if event.stage not in _ONE_UNIT:
            return _View(depth=event.depth, total=event.total)
        fresh = not self.total or (event.depth is not None and event.depth != self.depth) or self.unit is None
        total, done = event.total or self.total, max(event.done, self.done)
        now = (done, event.elapsed_s)
        return _View(
            depth=self.depth if event.depth is None else event.depth,
            unit=self.unit if event.unit is None else event.unit,
            done=done,
            total=total,
            first=now if fresh else self.first,
            latest=now if fresh or done > self.done else self.latest,
        )

    def left_s(self, now: float) -> float | None:
        """Seconds until the depth's units are done, if the rest goes as those before; None before one is."""
        done, seconds = self.latest[0] - self.first[0], self.latest[1] - self.first[1]
        if done <= 0:
            return None
        return max(0.0, seconds / done * (self.total - self.done) - (now - self.latest[1]))


class ProgressPrinter:
    """A `progress=` callable that prints. A context manager: leaving it clears the line, also after Ctrl-C.

    Nothing is redrawn between two events: a thread that animates would disturb the races that it reports on.

    Args:
        stream: where to; None: stderr.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._view = _View()
        self._console: Console | None = None
        self._drawn = False
        self._dead = self._stream is None
        self._live: bool | None = None

    def __call__(self, event: Progress) -> None:
        """Takes one event; a stream that is gone ends the printing, never the tuning."""
        before, self._view = self._view, self._view.after(event)
        self._safely(lambda: self._take(event, before))

    def _take(self, event: Progress, before: _View) -> None:
        if event.stage == "done":
            self.close()
        elif self._is_live():
            self._draw(event)
        if not self._is_live():
            self._log(event, before)

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Clears the line."""
        self.close()

    def close(self) -> None:
        """Clears the line; may be called again."""
        if self._drawn:
            self._drawn = False
            self._safely(self._erase)

    def _safely(self, write: Callable[[], None]) -> None:
        if self._dead:
            return
        try:
            write()
        except (OSError, ValueError):  # closed, or its reader is gone
            self._dead = True

    # a terminal

    def _is_live(self) -> bool:
        if self._live is None:
            self._live = self._stream.isatty() and not self._terminal().is_dumb_terminal
        return self._live

    def _terminal(self) -> Console:
        if self._console is None:
            self._console = console(self._stream, force_terminal=True)
        return self._console

    def _draw(self, event: Progress) -> None:
        self._erase()
        self._drawn = True
        self._terminal().print(self._line(event), end="", no_wrap=True, overflow="ellipsis", crop=True)
        self._stream.flush()

    def _erase(self) -> None:
        from rich.control import Control
        from rich.segment import ControlType

        self._terminal().control(Control(ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, 2)))
        self._stream.flush()

    def _line(self, event: Progress) -> Text:
        from rich.text import Text

        view, left = self._view, self._view.left_s(event.elapsed_s)
        time = duration(event.elapsed_s) + (
            f" (about {duration(left)} left at this depth)" if left and left >= 1 else ""
        )
        parts = [(time, "dim"), (_where(view), "bold"), (_unit(view), "cyan"), (_what(event), "")]
        line = Text("  ").join(Text(words, style=style) for words, style in parts if words)
        line.truncate(self._terminal().width - 1, overflow="ellipsis")
        return line

    # elsewhere

    def _log(self, event: Progress, before: _View) -> None:
        """One line for a unit that is finished: the next event is about something else."""
        if before.unit is not None and (self._view.unit != before.unit or self._view.done > before.done):
            done = max(before.done + 1, self._view.done)
            count = f" ({min(done, before.total)} of {before.total})" if before.total else ""
            self._say(event, f"{_depth(before)}{_unit(before)} done{count}")
        if event.stage == "passes":
            self._say(event, f"{_depth(self._view)}{_what(event)}")
        if event.stage == "done":
            self._say(event, "done")

    def _say(self, event: Progress, words: str) -> None:
        self._stream.write(f"tt_core {duration(event.elapsed_s):>12}  {words}\n")
        self._stream.flush()


def _where(view: _View) -> str:
    count = f" ({view.done}/{view.total})" if view.total else ""
    return f"{'' if view.depth is None else f'depth {view.depth}'}{count}".strip()


def _depth(view: _View) -> str:
    return "" if view.depth is None else f"depth {view.depth}: "


def _unit(view: _View) -> str:
    return "" if view.unit is None else shorten(clean(view.unit) or "whole model", _NAME)


def _what(event: Progress) -> str:
    stage = _WORDS.get(event.stage, event.stage)
    words = f"{stage} {event.candidate}".strip()
    return clean(event.note or words)


def progress_printer(stream: TextIO | None = None) -> ProgressPrinter:
    """A listener that prints to a stream; use it as a context manager, so that the line is cleared in the end.

    Args:
        stream: where to; None: stderr. One changing line on a terminal, one line per finished unit elsewhere.
    """
    return ProgressPrinter(stream)


@contextlib.contextmanager
def listening(progress: bool | Listener | None) -> Iterator[Listener | None]:
    """The listener that a `progress=` argument means, open while the block runs.

    Args:
        progress: True: print to stderr; None: only if stderr is a terminal; False: none; a callable: itself.

    Raises:
        UsageError: something else.
    """
    listener = _listener(progress)
    if isinstance(listener, ProgressPrinter):
        with listener:
            yield listener
    else:
        yield listener


def _listener(progress: bool | Listener | None) -> Listener | None:
    if progress is None:
        return progress_printer() if _is_terminal(sys.stderr) else None
    if isinstance(progress, bool):
        return progress_printer() if progress else None
    if not callable(progress):
        raise UsageError(f"progress={progress!r}: True, False, None, or a callable that takes tt.Progress")
    return progress


def _is_terminal(stream: TextIO | None) -> bool:
    isatty: Callable[[], bool] | None = getattr(stream, "isatty", None)
    return bool(isatty and isatty())
