"""kill -9 at many points of saving: the file that was there is whole, or the new one is."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.abuse

SCRIPT = """
import os, signal, sys
from pathlib import Path

import torch
from torch import nn

import tt_core as tt
from tt_core.testing.fakes import Bench, FakeLayer
from tt_core.testing.stored import StoredBackend

torch.set_num_threads(1)
folder = Path(sys.argv[1])
bench = Bench()
data = StoredBackend(bench, files={"weights.bin": bytes(3_000_000)})
settings = tt.Settings(plugins=(bench, data))
obj = FakeLayer(bench).eval()
tt.tune(obj, [torch.ones(2, 4)], strategy=tt.OneBackendStrategy("data"), settings=settings, progress=False)
path = folder / "model.tt"
tt.save(obj, path, settings=settings)
data.files["weights.bin"] = b"1" * 3_000_000
tt.save(obj, folder / "new.tt", settings=settings)
old, new = path.read_bytes(), (folder / "new.tt").read_bytes()


def save(stop):
    # saves once more, and dies at one of the steps that the store takes
    steps = [0]

    def step(frame, event, argument):
        if "tt_core/store/" in frame.f_code.co_filename:
            steps[0] += 1
            if steps[0] == stop:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(step)
    tt.save(obj, path, settings=settings)
    sys.setprofile(None)
    return steps[0]


whole = save(-1)
assert path.read_bytes() == new
left = set()
for point in [*(whole * n // 10 for n in range(1, 10)), whole - 60, whole - 40, whole - 20, whole - 10, whole - 5]:
    path.write_bytes(old)
    child = os.fork()
    if not child:
        save(point)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, (point, status)
    found = path.read_bytes()
    assert found in (old, new), point
    left.add("new" if found == new else "old")
    assert tt.load(FakeLayer(bench).eval(), path, settings=settings).installed == ("",)
assert "old" in left
tt.save(obj, path, settings=settings)
assert path.read_bytes() == new
print(whole, sorted(left), sorted(p.name for p in folder.iterdir() if not p.name.endswith(".tmp")))
"""


def test_kill_while_saving(tmp_path):
    """Fourteen points, ten of them evenly over everything that the store does; the next save works."""
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path / "home"), "TT_DISABLE_AUTOLOAD": "1"}
    (tmp_path / "home").mkdir()
    (tmp_path / "files").mkdir()
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT, str(tmp_path / "files")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("['model.tt', 'new.tt']\n")
