"""`default_strategy(device)` with the plugins that are installed: the CPU set of the mission, and what drops out of it."""

from __future__ import annotations

import pytest
import torch

import tt_core as tt
from tt_core.plugins import Plugins
from tt_core.strategy import default_strategy

pytest.importorskip("tt_inductor")
pytest.importorskip("tt_openvino")
THIRD = "onnxruntime,xpugraph,torchao"


def loaded(*extra: object, disabled: str = THIRD) -> Plugins:
    return Plugins.load(extra=extra, environ={"TT_DISABLE_BACKENDS": disabled})


@pytest.mark.real
def test_the_cpu_set_is_inductor_openvino_eager():
    """With these two plugins the CPU set is exactly theirs and eager; option variants share their backend's name."""
    strategy = default_strategy("cpu", plugins=loaded())
    assert set(strategy.names) == {"eager", "inductor", "openvino"}
    assert strategy.names[0] == "eager"
    assert [c.name for c in strategy.wanted].count("inductor") == 2


@pytest.mark.real
def test_disabled_is_gone_with_its_sentence():
    """TT_DISABLE_BACKENDS takes a backend out and says so."""
    strategy = default_strategy("cpu", plugins=loaded(disabled=f"{THIRD},openvino"))
    assert set(strategy.names) == {"eager", "inductor"}
    assert {r.reason for r in strategy.refused if r.name == "openvino"} == {"disabled by TT_DISABLE_BACKENDS"}


def test_uninstalled_comes_with_its_pip_line(monkeypatch):
    """A plugin that tt-core's extras offer and nobody installed is missing, with the command."""
    monkeypatch.setattr("tt_core.plugins.registry._entry_points", list)
    strategy = default_strategy("cpu", plugins=Plugins.load(environ={}))
    assert strategy.names == ("eager",)
    missing = {r.name: r for r in strategy.refused}["openvino"]
    assert (missing.reason, missing.hint) == ("openvino is not installed", 'pip install "tt-core[openvino]"')


def test_a_fake_xpu_has_what_runs_there():
    """On another device type those take part that declare it and whose probe agrees; lossy ones never by themselves."""

    class OnXpu:
        @tt.hookimpl
        def tt_backends(self):
            return [
                tt.Backend(name="on_xpu", devices={"xpu"}, fidelity=tt.Fidelity.CLOSE),
                tt.Backend(name="quantised", devices={"xpu", "cpu"}, fidelity=tt.Fidelity.LOSSY),
            ]

    plugins = loaded(OnXpu(), disabled=f"{THIRD},inductor,openvino")
    assert set(default_strategy(torch.device("xpu", 0), plugins=plugins).names) == {"eager", "on_xpu"}
    assert set(default_strategy("cpu", plugins=plugins).names) == {"eager"}
    assert set(default_strategy("cpu", plugins=plugins, backends=["quantised"]).names) == {"eager", "quantised"}
