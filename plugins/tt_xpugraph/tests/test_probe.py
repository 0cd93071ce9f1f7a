"""Which interface is taken, and what is said where there is none."""

from __future__ import annotations

import importlib.util

import pytest
import torch
import tt_xpugraph
from tt_xpugraph.interface import interface_of

import tt_core as tt
from tt_core.plugins import Plugins, hooks


def test_the_xpu_branch_is_taken(xpu):
    """Without torch's common interface, XPU's own; and the answer says that it was never run."""
    answer = tt_xpugraph.tt_probe(device=torch.device("xpu"))
    assert isinstance(answer, tt.Ready)
    assert "torch.xpu.XPUGraph" in answer.note
    assert "never run on an XPU" in answer.note


def test_the_common_interface_comes_first(fake):
    """Where torch has it for this device type; another accelerator's does not count."""
    found = interface_of(fake.at)
    assert found is not None
    common = getattr(torch.accelerator, "Graph", None) is not None
    assert (found.name == "torch.accelerator.Graph") is common
    assert found.device.index == 0


def test_the_common_interface_of_another_type_is_not_ours(xpu, monkeypatch):
    """It serves one device type a process."""
    monkeypatch.setattr(torch.accelerator, "Graph", object)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    found = interface_of(torch.device("xpu"))
    assert found is not None
    assert found.name == "torch.xpu.XPUGraph"


def test_no_device_is_a_sentence(xpu, monkeypatch):
    """No device, no such index, no graphs: each says what is missing."""
    assert "sees 1 of them" in tt_xpugraph.tt_probe(device=torch.device("xpu", 3)).reason
    monkeypatch.delattr(torch.xpu, "XPUGraph")
    assert "has no graphs for xpu" in tt_xpugraph.tt_probe(device=torch.device("xpu", 0)).reason
    monkeypatch.setattr(torch.xpu, "is_available", lambda: False)
    assert "sees no xpu device" in tt_xpugraph.tt_probe(device=torch.device("xpu", 0)).reason


def test_declared_for_their_own_devices():
    """Two layers, close to eager, each for one device type."""
    declared = {backend.name: backend for backend in tt_xpugraph.tt_backends()}
    assert {name: set(one.devices) for name, one in declared.items()} == {"xpu_graph": {"xpu"}, "cuda_graph": {"cuda"}}
    assert all(one.layer and one.fidelity is tt.Fidelity.CLOSE for one in declared.values())


def test_the_default_strategy_of_an_xpu(xpu, monkeypatch):
    """Every plugin takes part, and the graph stands on its own and over Inductor. Only devices and compilers are fakes."""
    openvino = pytest.importorskip("tt_openvino.probe")
    inductor = pytest.importorskip("tt_inductor")
    monkeypatch.setattr(hooks, "_probed", {})
    monkeypatch.setattr(openvino, "installed", lambda: "2026.4.1")
    monkeypatch.setattr(openvino, "core", type("Core", (), {"available_devices": ["CPU", "GPU"]}))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: object())
    monkeypatch.setenv("CC", "/bin/sh")
    import tt_openvino

    plugins = Plugins.load(extra=(inductor, tt_openvino, tt_xpugraph), environ={"TT_DISABLE_AUTOLOAD": "1"})
    names = tt.default_strategy("xpu", plugins=plugins).names
    assert {"inductor", "xpu_graph", "openvino", "eager", "inductor+xpu_graph"} <= set(names)
    assert names[0] == "eager"
    assert "openvino+xpu_graph" not in names
    assert "cuda_graph" not in names
