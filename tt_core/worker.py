"""A plugin's job in a process of its own, where a hang, a crash or a flood of output costs only the job.

This is the side of the child: `python -m tt_core.worker FOLDER`, told the job by its standard input. `tt_core.child` starts
it, holds it to its limits and reads its answer.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tt_core.contain import Caught, attempt

ANSWER = "answer.json"


def main() -> None:
    """Reads one line of JSON, runs the job that it names, and writes what became of it into the folder."""
    folder = Path(sys.argv[1])
    lifeline = _lifeline()
    with os.fdopen(os.dup(lifeline), "rb", buffering=0) as source:
        told = json.loads(source.readline())
    threading.Thread(target=_end_with_the_parent, args=(lifeline,), daemon=True).start()
    answer = attempt(lambda: json.dumps({"result": _run(folder, told["job"], told["arguments"])}), where=told["job"])
    text = json.dumps({"error": _error(answer)}) if isinstance(answer, Caught) else answer
    (folder / ANSWER).write_text(text, encoding="utf-8")


def _run(folder: Path, job: str, arguments: Mapping[str, Any]) -> Any:
    module, _, name = job.partition(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return function(folder, **arguments)


def _error(caught: Caught) -> Mapping[str, str]:
    return {"kind": caught.kind, "reason": caught.reason, "hint": caught.hint, "detail": caught.detail}


def _lifeline() -> int:
    """Standard input under another number, which no process of the job inherits; they get an empty one."""
    lifeline = os.dup(0)
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    return lifeline


def _end_with_the_parent(lifeline: int) -> None:
    """The parent holds the other end open as long as it lives and waits; then the whole group goes."""
    while os.read(lifeline, 1 << 16):
        pass
    if sys.platform != "win32" and os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


if __name__ == "__main__":
    main()
