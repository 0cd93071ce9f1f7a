"""Jobs in processes of their own, seen from the parent: started, held to a time limit, and ended with all they started."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from tt_core.errors import BuildRefusedError, OverrunError, UsageError
from tt_core.log import event
from tt_core.worker import ANSWER

_KEPT = 1 << 16
"""Bytes of output that are kept, the last ones."""
_LAST_WORDS_S = 5.0
"""How long the rest of the output of a process that has ended may take: somebody who left its group may hold it open."""
_START = "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1)); from tt_core.worker import main; main()"
"""`python -m tt_core.worker` with the parent's own search path, whatever the environment says."""


def in_worker(job: str, arguments: Mapping[str, Any], *, folder: Path, seconds: float) -> Any:
    """Runs a function of a plugin as `function(folder, **arguments)` in a process of its own.

    The process has a group of its own, and no terminal. When the job ends, fails, overruns its limit, or the caller is
    interrupted, the whole group is killed. What it prints goes to the log (event `worker_output`), the last 64 KiB of it.

    Args:
        job: "module:function", importable with the caller's `sys.path`.
        arguments: plain JSON; larger things travel as files in `folder`.
        folder: where the job may write, the caller's own: only this user may enter it.
        seconds: the time limit, imports included.

    Returns:
        What the function returned, through JSON.

    Raises:
        BuildRefusedError: it raised (type and first line of the message, its hint), or its process crashed.
        OverrunError: the limit was reached.
        UsageError: others may enter `folder`.
    """
    _refuse_open(folder)
    process = _started(folder)
    output = _Output(process.stdout)
    try:
        _tell(process.stdin, {"job": job, "arguments": dict(arguments)})
        process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        text = f"{job} exceeded its limit of {seconds:g} s and was stopped"
        raise OverrunError(text, "raise settings.build_timeout") from None
    finally:
        _end(process)
        said = output.text()
        event("worker_output", level="debug", job=job, status=process.returncode, output=said)
    return _answer(job, folder, process.returncode, said)


def _refuse_open(folder: Path) -> None:
    if sys.platform != "win32" and folder.stat().st_mode & 0o077:
        raise UsageError(f"folder={str(folder)!r}: others may enter it; make one with tempfile.mkdtemp()")


def _started(folder: Path) -> subprocess.Popen[bytes]:
    if not sys.executable:
        raise BuildRefusedError("this Python does not know its own executable: no process of its own for the job")
    paths = json.dumps([str(Path(entry).absolute()) for entry in sys.path])
    return subprocess.Popen(  # noqa: S603  this very Python
        [sys.executable, "-c", _START, paths, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        bufsize=0,
        start_new_session=True,
    )


def _tell(stream: IO[bytes] | None, job: Mapping[str, Any]) -> None:
    """Writes the job in a thread: a process that hangs before it reads would block a longer one."""
    line = json.dumps(job).encode() + b"\n"

    def write() -> None:
        assert stream is not None
        left = memoryview(line)
        with contextlib.suppress(OSError, ValueError):  # it died: its status says so
            while left:
                left = left[stream.write(left) :]

    threading.Thread(target=write, daemon=True).start()


class _Output:
    """Reads what a process prints as it comes, so that it never waits for a reader, and keeps the end."""

    def __init__(self, stream: IO[bytes] | None) -> None:
        self._kept = b""
        self._stream = stream
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._stream is not None
        with self._stream:
            while chunk := self._stream.read(_KEPT):
                self._kept = (self._kept + chunk)[-_KEPT:]

    def text(self) -> str:
        """What was kept."""
        self._thread.join(_LAST_WORDS_S)
        return self._kept.decode("utf-8", "replace")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kills the group, whatever is left of it."""
    if sys.platform == "win32":
        process.kill()
    else:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: the group holds only the dead
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()


def _answer(job: str, folder: Path, status: int, said: str) -> Any:
    try:
        answer = json.loads((folder / ANSWER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise BuildRefusedError(f"{job} {_death(status)}{_last_words(said)}") from None
    error = answer.get("error")
    if error is None:
        return answer["result"]
    event("worker_failed", level="debug", job=job, detail=error["detail"])
    plain = error["kind"] == BuildRefusedError.__name__
    raise BuildRefusedError(error["reason"] if plain else f"{error['kind']}: {error['reason']}", error["hint"])


def _death(status: int) -> str:
    if status >= 0:
        return f"ended with status {status} and without an answer"
    try:
        return f"crashed with {signal.Signals(-status).name}"
    except ValueError:
        return f"crashed with signal {-status}"


def _last_words(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return f"; it last printed: {lines[-1][:200]}" if lines else ""
