"""Jobs in processes of their own: a hang, a crash or a flood costs the job, and leaves a sentence."""

from __future__ import annotations

import logging
import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import tt_core as tt

JOBS = '''
import ctypes, os, subprocess, sys, time
from pathlib import Path
import tt_core as tt

def add(folder, a, b):
    print("adding")
    (folder / "sum.txt").write_text(str(a + b))
    return {"sum": a + b, "group": os.getpgrp(), "pid": os.getpid()}

def flood(folder):
    for _ in range(300):
        sys.stdout.write("x" * 65536)
    sys.stdout.write("the end")
    return "done"

def leave(folder, status):
    sys.stderr.write("so long\\n")
    sys.stderr.flush()
    os._exit(status)

def crash(folder):
    ctypes.string_at(0)

def fail(folder):
    raise ValueError("no kernel\\nfor this")

def refuse(folder):
    raise tt.BuildRefusedError("too small", "make it larger")

def unwritable(folder):
    return object()

def hang(folder):
    """With a process of its own beside it, that ignores what asks politely; both write down that they run."""
    inner = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    (folder / "started.tmp").write_text(f"{os.getpid()} {inner.pid}")
    (folder / "started.tmp").rename(folder / "started")
    inner.wait()
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "private"
    made.mkdir(mode=0o700)
    return made


@pytest.fixture(autouse=True)
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module that only the test's `sys.path` knows."""
    (tmp_path / "tt_test_jobs.py").write_text(JOBS)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def run(name: str, folder: Path, seconds: float = 60.0, **arguments):
    return tt.in_worker(f"tt_test_jobs:{name}", arguments, folder=folder, seconds=seconds)


def gone(pid: int) -> bool:
    """Whether a process runs no more: dead, or dead and not yet buried by whoever inherits orphans."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (ProcessLookupError, FileNotFoundError):
        return True


def wait_until(condition) -> bool:
    """Up to 30 s, without a clock."""
    tick = threading.Event()
    return any(condition() or tick.wait(0.05) for _ in range(600)) and condition()


def test_a_result_comes_back_and_files_stay(folder):
    """What a function returns, and what it wrote; the process led a group of its own."""
    answer = run("add", folder, a=2, b=3)
    assert answer["sum"] == 5
    assert answer["pid"] == answer["group"] != os.getpgrp()
    assert (folder / "sum.txt").read_text() == "5"


def test_output_goes_to_the_log_and_is_capped(folder, caplog, capfd):
    """20 MB of output block nothing, reach no terminal, and leave 64 KiB in the log."""
    with caplog.at_level(logging.DEBUG, logger="tt_core"):
        assert run("flood", folder) == "done"
    (record,) = [r for r in caplog.records if "worker_output" in r.getMessage()]
    assert "the end" in record.getMessage()
    assert 60_000 < len(record.getMessage()) < 70_000
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("name", "arguments", "reason"),
    [
        ("leave", {"status": 3}, "ended with status 3 and without an answer; it last printed: so long"),
        pytest.param(
            "leave",
            {"status": 0},
            "ended with status 0 and without an answer; it last printed: so long",
            marks=pytest.mark.long,
        ),
        ("crash", {}, "tt_test_jobs:crash crashed with SIGSEGV"),
        ("fail", {}, "ValueError: no kernel"),
        ("refuse", {}, "too small"),
        pytest.param(
            "unwritable", {}, "TypeError: Object of type object is not JSON serializable", marks=pytest.mark.long
        ),
        pytest.param(
            "nothing", {}, "AttributeError: module 'tt_test_jobs' has no attribute 'nothing'", marks=pytest.mark.long
        ),
    ],
)
def test_a_failure_is_a_refusal_with_its_reason(folder, name, arguments, reason):
    """An exit, a crash, an exception, an answer that is no JSON, and a job that is not there: a sentence each."""
    with pytest.raises(tt.BuildRefusedError) as refused:
        run(name, folder, **arguments)
    assert reason in refused.value.reason
    assert refused.value.hint == ("make it larger" if name == "refuse" else "")


def test_a_hang_ends_at_the_limit_with_all_it_started(folder, jobs):
    """The limit kills the whole group: the job, and the process that it waits for."""
    with pytest.raises(tt.OverrunError, match="exceeded its limit of 1 s and was stopped") as overrun:
        tt.in_worker("tt_test_jobs:hang", {}, folder=folder, seconds=1)
    assert "build_timeout" in overrun.value.hint
    assert isinstance(overrun.value, TimeoutError)


_PARENT = """
import signal, sys
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)  # a suite that runs in the background hands down that it is ignored
sys.path.insert(0, sys.argv[1])
import tt_core as tt
try:
    tt.in_worker("tt_test_jobs:hang", {}, folder=Path(sys.argv[2]), seconds=600)
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="no process groups here")
@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(signal.SIGINT, id="Ctrl-C"),
        pytest.param(signal.SIGKILL, id="killed", marks=pytest.mark.long),
    ],
)
def test_the_job_goes_with_its_parent(folder, jobs, sent):
    """Ctrl-C reaches the parent alone, which ends the job's whole group; a parent that is killed takes it along too."""
    parent = subprocess.Popen(
        [sys.executable, "-c", _PARENT, str(jobs), str(folder)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        assert wait_until(lambda: (folder / "started").exists() or parent.poll() is not None)
        pids = [int(pid) for pid in (folder / "started").read_text().split()]
        assert not any(gone(pid) for pid in pids)
        parent.send_signal(sent)
        said, _ = parent.communicate(timeout=60)
    finally:
        parent.kill()
        parent.wait()
    assert said == (b"interrupted\n" if sent == signal.SIGINT else b"")
    assert wait_until(lambda: all(gone(pid) for pid in pids))


def test_a_folder_that_others_may_enter_is_refused(folder):
    """What a process loads from its folder must come from nobody else."""
    folder.chmod(0o755)
    with pytest.raises(tt.UsageError, match="others may enter it"):
        run("add", folder, a=1, b=1)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755
