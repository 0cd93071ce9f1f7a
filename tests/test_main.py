"""`python -m tt_core doctor` and `backends`: what takes part here, and why the rest does not."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

from tt_core import doctor
from tt_core.__main__ import main
from tt_core.values import Refusal

READY = """
import tt_core as tt

@tt.hookimpl
def tt_backends():
    return [
        tt.Backend(name="swift", devices={"cpu"}, fidelity=tt.Fidelity.CLOSE, priority=60),
        tt.Backend(name="rough", devices={"cpu"}, fidelity=tt.Fidelity.LOSSY),
        tt.Backend(name="elsewhere", devices={"xpu"}, fidelity=tt.Fidelity.CLOSE),
        tt.Backend(name="broken", devices={"cpu"}, fidelity=tt.Fidelity.CLOSE),
    ]

@tt.hookimpl
def tt_probe(backend):
    if backend == "broken":
        return tt.Unavailable(reason="its library is too old", hint="pip install -U library")
    return tt.Ready(note="version 7")
"""


@pytest.fixture(autouse=True)
def bare(monkeypatch):
    """Only our own parts, whatever is installed beside them."""
    monkeypatch.setenv("TT_DISABLE_AUTOLOAD", "1")
    monkeypatch.delenv("TT_DISABLE_BACKENDS", raising=False)
    monkeypatch.delenv("TT_PLUGINS", raising=False)


@pytest.fixture
def swift(monkeypatch, tmp_path):
    """A plugin with a ready backend, and with others that are not."""
    (tmp_path / "tt_swift_plugin.py").write_text(READY)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("TT_PLUGINS", "tt_swift_plugin")
    yield
    sys.modules.pop("tt_swift_plugin", None)


def examined(capsys):
    status = main(["doctor", "--json"])
    return status, json.loads(capsys.readouterr().out)


def refusals(facts, name):
    return [(r["stage"], r["reason"], r["fix"]) for r in facts["refused"] if r["name"] == name]


def test_nothing_but_eager(capsys):
    """With eager alone the doctor says that tuning would change nothing, and exits 1."""
    assert main(["doctor"]) == 1
    told = capsys.readouterr().out

    assert "Nothing but eager is ready" in told
    assert torch.__version__ in told


def test_a_ready_backend(capsys, swift):
    """With a ready backend the doctor names it, where it runs and what with, and exits 0."""
    status, facts = examined(capsys)
    found = next(b for b in facts["backends"] if b["name"] == "swift")

    assert status == 0
    assert facts["ok"] is True
    assert found["ready"]["cpu"] == "version 7"
    assert (found["fidelity"], found["layer"], found["runs_on"]) == ("close", False, ["cpu"])


def test_the_cpu_in_facts(capsys):
    """The CPU is told with its threads and vector level."""
    cpu = examined(capsys)[1]["devices"][0]

    assert cpu["device"] == "cpu"
    assert cpu["threads"] == torch.get_num_threads()
    assert cpu["level"] == torch.backends.cpu.get_cpu_capability()


def test_versions(capsys):
    """Versions of python, torch and tt-core are there."""
    versions = examined(capsys)[1]["versions"]

    assert versions["torch"] == torch.__version__
    assert {"python", "tt-core"} <= versions.keys()


def test_every_refusal_has_reason_and_fix(capsys, swift):
    """What a probe refused, and what changes results, come with the reason and what to do."""
    facts = examined(capsys)[1]

    assert refusals(facts, "broken") == [("probe", "its library is too old", "pip install -U library")]
    assert refusals(facts, "rough")[0][:2] == ("fidelity", "changes the precision (lossy)")
    assert "backends=['rough'" in refusals(facts, "rough")[0][2]


def test_a_disabled_backend(capsys, swift, monkeypatch):
    """A backend that the environment disables is gone, with the sentence and the way back."""
    monkeypatch.setenv("TT_DISABLE_BACKENDS", "swift,nobody")
    status, facts = examined(capsys)

    assert status == 1
    assert refusals(facts, "swift") == [
        ("disabled", "disabled by TT_DISABLE_BACKENDS", "take it out of TT_DISABLE_BACKENDS")
    ]
    assert "nothing of that name is known" in refusals(facts, "nobody")[0][1]


def test_a_plugin_that_does_not_import(capsys, monkeypatch, tmp_path):
    """A plugin whose import fails costs itself only; the doctor tells the error in one line."""
    (tmp_path / "tt_bad_plugin.py").write_text("raise OSError('libx.so: cannot open')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("TT_PLUGINS", "tt_bad_plugin")
    stage, reason, fix = refusals(examined(capsys)[1], "tt_bad_plugin")[0]

    assert (stage, reason) == ("import", "its import failed: OSError: libx.so: cannot open")
    assert fix


def test_a_missing_plugin_keeps_its_own_hint():
    """A hint that came with the refusal is the fix; autoload that is off has its own; else none is made up."""
    hinted = Refusal(name="a", stage="missing", reason="a is not installed", hint='pip install "tt-core[a]"')
    unloaded = Refusal(name="a", stage="missing", reason="not loaded: TT_DISABLE_AUTOLOAD=1")
    elsewhere = Refusal(name="a", stage="device", reason="runs on xpu, not on cpu")

    assert doctor.fix(hinted) == 'pip install "tt-core[a]"'
    assert doctor.fix(unloaded) == "unset TT_DISABLE_AUTOLOAD"
    assert doctor.fix(elsewhere) == ""


def test_people_read_the_same(capsys, swift):
    """The text has the backends and refusals of the JSON, in at most 80 columns but for lines to copy."""
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()

    assert "  broken on cpu: its library is too old" in lines
    assert "     -> pip install -U library" in lines
    assert lines[-1] == "Ready to tune with swift."
    assert all(len(line) <= 80 for line in lines if not line.startswith("     -> "))


class Runtime:
    """An accelerator's module in torch, made up."""

    def __init__(self, count=1, problem=None):
        self.count, self.problem = count, problem

    def is_available(self):
        if self.problem:
            raise self.problem
        return self.count > 0

    def device_count(self):
        return self.count

    def is_initialized(self):
        return False

    def get_device_properties(self, index):
        return type("Properties", (), {"name": f"Chip {index}", "total_memory": 3 << 30})


def test_an_accelerator_is_told(capsys, swift, monkeypatch):
    """A device of another kind is found by what torch offers, and its backends are ready there."""
    monkeypatch.setattr(torch, "xpu", Runtime(count=2))
    monkeypatch.setattr(torch, "cuda", Runtime(count=0))
    facts = examined(capsys)[1]
    elsewhere = next(b for b in facts["backends"] if b["name"] == "elsewhere")

    assert facts["devices"][1:] == [
        {"device": "xpu:0", "name": "Chip 0", "bytes": 3 << 30},
        {"device": "xpu:1", "name": "Chip 1", "bytes": 3 << 30},
    ]
    assert set(elsewhere["ready"]) == {"xpu:0", "xpu:1"}
    assert refusals(facts, "elsewhere") == []


def test_a_broken_driver_is_told(capsys, monkeypatch):
    """A driver that raises is a line of the report, not the end of it."""
    monkeypatch.setattr(torch, "xpu", Runtime(problem=OSError("driver mismatch")))
    main(["doctor"])

    assert "cannot be used: OSError: driver mismatch" in capsys.readouterr().out


def test_the_order_on_a_device(capsys, swift):
    """`backends` lists what the default strategy tries in order, and who does not take part."""
    assert main(["backends", "--device", "cpu"]) == 0
    lines = capsys.readouterr().out.splitlines()

    assert lines[:3] == ["On cpu, tried in this order:", "  1. eager", "  2. swift"]
    assert "  elsewhere: runs on xpu, not on cpu" in lines


def test_every_device_without_an_argument(capsys, monkeypatch):
    """Without an argument every device of the machine is listed."""
    monkeypatch.setattr(torch, "xpu", Runtime(count=1))
    monkeypatch.setattr(torch, "cuda", Runtime(count=0))
    assert main(["backends"]) == 0
    told = capsys.readouterr().out

    assert "On cpu, tried" in told
    assert "On xpu:0, tried" in told


def test_a_device_that_is_not_here(capsys, swift, monkeypatch):
    """What would be tried on an absent device is told, and that it is absent."""
    monkeypatch.setattr(torch, "xpu", Runtime(count=0))
    assert main(["backends", "--device", "xpu"]) == 0

    assert "On xpu (not on this machine), tried in this order:" in capsys.readouterr().out


def test_an_unknown_device(capsys):
    """A device that torch does not know is one clear line on stderr and exit 2."""
    assert main(["backends", "--device", "flux"]) == 2
    captured = capsys.readouterr()

    assert captured.out == ""
    assert captured.err.startswith("tt: device 'flux': ")


def test_an_unknown_command(capsys):
    """Another command is refused with the known ones."""
    with pytest.raises(SystemExit) as stopped:
        main(["cure"])

    assert stopped.value.code == 2
    assert "doctor" in capsys.readouterr().err


def test_as_a_module():
    """`python -m tt_core` runs, and its exit status is the command's."""
    done = subprocess.run([sys.executable, "-m", "tt_core", "doctor"], capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert "Nothing but eager is ready" in done.stdout
