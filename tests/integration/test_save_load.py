"""A tuned encoder, saved, moved, and loaded in a fresh process of a user who never tuned and has no compiler."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from torch import nn

import tt_core as tt

MODEL = """
import torch
from torch import nn


def made():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()


def sample():
    return torch.randn(2, 16, 64, generator=torch.Generator().manual_seed(1))
"""
LOADING = (
    MODEL
    + """
import json, sys
import tt_core as tt

obj, x = made(), sample()
report = tt.load(obj, sys.argv[1], **json.loads(sys.argv[2]))
tt.stats(obj, hits=True)
with torch.no_grad():
    y = obj(x)
torch.save(y, sys.argv[1] + ".result")
found = tt.stats(obj)
print(json.dumps({
    "how": [line.how for line in report.lines],
    "hits": sum(unit.hits for unit in found.values()),
    "falls": [dict(unit.falls) for unit in found.values()],
    "stale": tt.stale(obj),
    "compilers": sorted(name for name in sys.modules if name.startswith("torch._inductor.compile_fx")),
}))
"""
)


def check(tmp_path, chosen: tt.Strategy, **options) -> dict:
    space: dict = {}
    exec(compile(MODEL, "<model>", "exec"), space)
    obj, x = space["made"](), space["sample"]()
    result = tt.tune(obj, [x], units=0, strategy=chosen, settings=tt.Settings(unit_race_s=0.1, pass_race_s=0.5))
    assert result.changed, str(result)
    with torch.no_grad():
        expected = obj(x)
    saved = tt.save(obj, tmp_path / "here.tt")
    assert [line.how for line in saved.lines] == ["stored"], str(saved)
    moved = tmp_path / "elsewhere" / "model.tt"
    moved.parent.mkdir()
    (tmp_path / "here.tt").rename(moved)
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path / "home"), "CXX": "/bin/false", "CC": "/bin/false"}
    (tmp_path / "home").mkdir()
    command = [sys.executable, "-c", LOADING, str(moved), json.dumps(options)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=moved.parent)
    assert done.returncode == 0, done.stderr
    actual = torch.load(f"{moved}.result", weights_only=True)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-6)
    assert isinstance(obj, nn.Module)
    tt.untune(obj)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture
def own_home(tmp_path, monkeypatch):
    """The key of the seal goes into a folder of the test's own."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


@pytest.mark.real
@pytest.mark.usefixtures("own_home")
def test_data_needs_no_trust(tmp_path):
    """Models as data load anywhere, whoever wrote them."""
    found = check(tmp_path, tt.OneBackendStrategy("onnxruntime"))
    assert found == {"how": ["restored"], "hits": 1, "falls": [{}], "stale": [], "compilers": []}


@pytest.mark.long
@pytest.mark.usefixtures("own_home")
def test_code_needs_trust(tmp_path):
    """A compiled package of another user needs the caller's word, and then loads without a compiler."""
    compiled = tt.OneBackendStrategy(tt.Candidate.of("inductor", mode="aot"))
    found = check(tmp_path, compiled, trust=True)
    assert found["how"] == ["restored"]
    assert (found["hits"], found["falls"], found["stale"]) == (1, [{}], [])
