"""A unit that Dynamo broke into several programs: only the compiler sees that one of them does not fit a call."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import tt_core as tt
from tt_inductor.graphs import Thread

MISSED = (
    "inductor compiled no program for a call like this one (strides, a module's attribute, a hook or a global flag of "
    "torch changed since); tt.refresh(obj) compiles anew"
)
_KINDS = 16
"""So many kinds of calls without a program are traced in service; then every call is handed back."""


class Parts:
    """Says what becomes of calls that some program does not fit. Holds nothing of the unit."""

    def __init__(self, facts: tt.Facts, path: str, thread: Thread) -> None:
        """See the class.

        Args:
            facts: whether the unit writes: it may then not be run twice.
            path: for a warning.
            thread: where programs count what they run.
        """
        self._writes = facts.writes_inputs or bool(facts.writes_state) or facts.random
        self._path, self._thread = path, thread
        self._kinds, self._told = 0, False

    def begun(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """`run`, which notes where a call begins."""

        def call(*args: Any, **kwargs: Any) -> Any:
            if self._kinds > _KINDS:
                raise tt.DeclinedError(
                    f"{_KINDS} kinds of calls met no program that was compiled; tune again with them"
                )
            self._thread.before = self._thread.operators
            return run(*args, **kwargs)

        return call

    def late(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """What runs a graph that appears in service; `forward` runs it as in eager.

        As long as no program of the call has run, the call is handed back. Later than that, or where Python before it may
        have changed something, it goes on as in eager, with one warning.
        """
        self._kinds += 1

        def run(*inputs: Any) -> Any:
            if self._thread.operators == self._thread.before and not self._writes:
                raise tt.DeclinedError(MISSED)
            self._tell()
            return forward(*inputs)

        return run

    def _tell(self) -> None:
        if not self._told:
            self._told = True
            warnings.warn(f"unit {self._path!r} runs in part as in eager: {MISSED}", tt.FallbackWarning, stacklevel=3)
