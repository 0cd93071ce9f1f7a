"""Declaring imports nothing, probing says why not, devices are mapped; a GPU is only ever faked here."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
import tt_openvino
from torch import nn
from tt_openvino import build as build_module
from tt_openvino import options, probe

import tt_core as tt

CPU = torch.device("cpu")


def test_declaring_is_cheap() -> None:
    """Importing the plugin and asking for its backends imports no OpenVINO."""
    code = "import sys, tt_openvino; tt_openvino.tt_backends(); assert 'openvino' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_declared() -> None:
    """One backend keeps results, the lower precisions are lossy and so never tried unasked."""
    backends = {backend.name: backend for backend in tt_openvino.tt_backends()}
    assert backends["openvino"].fidelity is tt.Fidelity.CLOSE
    assert {name for name, backend in backends.items() if backend.fidelity is tt.Fidelity.LOSSY} == {
        "openvino_bf16",
        "openvino_f16",
    }
    assert all(backend.devices == {"cpu", "xpu"} for backend in backends.values())
    assert all(backend.options == ({},) for backend in backends.values())


def test_ready() -> None:
    """On a CPU the answer names version and device."""
    answer = tt_openvino.tt_probe(backend="openvino", device=CPU)
    assert isinstance(answer, tt.Ready)
    assert answer.note.startswith("OpenVINO 20")
    assert answer.note.endswith(" on CPU")


@pytest.mark.parametrize(
    ("version", "old"), [("2025.3.0", True), ("2024.6.0", True), ("2025.4.0", False), ("2026.0.0.dev1", False)]
)
def test_version(monkeypatch: pytest.MonkeyPatch, version: str, old: bool) -> None:
    """Too old a version: which, and which is needed."""
    monkeypatch.setattr(probe.metadata, "version", lambda _: version)
    answer = probe.probe("openvino", CPU)
    assert isinstance(answer, tt.Unavailable) == old
    if old:
        assert answer.reason == f"openvino {version} is installed, 2025.4 or newer is needed"
        assert answer.hint == 'pip install --upgrade "openvino>=2025.4"'


def test_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without OpenVINO: the pip line."""

    def missing(_: str) -> str:
        raise probe.metadata.PackageNotFoundError

    monkeypatch.setattr(probe.metadata, "version", missing)
    answer = probe.probe("openvino", CPU)
    assert answer == tt.Unavailable(reason="openvino is not installed", hint='pip install "tt-core[openvino]"')


def test_broken_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    """An OpenVINO that does not load is unavailable with its own reason in one line."""

    def broken() -> Any:
        raise OSError("libopenvino.so: cannot open\nmore")

    monkeypatch.setattr(probe, "core", broken)
    answer = probe.probe("openvino", CPU)
    assert isinstance(answer, tt.Unavailable)
    assert answer.reason.endswith("does not start: libopenvino.so: cannot open")


@pytest.mark.parametrize(
    ("device", "available", "target"),
    [
        ("cpu", ("CPU", "GPU"), "CPU"),
        ("cpu", ("GPU",), None),
        ("xpu", ("CPU", "GPU"), "GPU"),
        ("xpu:0", ("CPU", "GPU.0", "GPU.1"), "GPU.0"),
        ("xpu:1", ("CPU", "GPU.0", "GPU.1"), "GPU.1"),
        ("xpu:1", ("CPU", "GPU"), None),
        ("xpu:2", ("CPU", "GPU.0", "GPU.1"), None),
        ("xpu", ("CPU",), None),
    ],
)
def test_targets(device: str, available: tuple[str, ...], target: str | None) -> None:
    """`xpu:N` is GPU.N, and no other."""
    assert probe.target_of(torch.device(device), available) == target


def test_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where OpenVINO sees no GPU the reason says what it sees."""

    class Core:
        available_devices = ("CPU",)

    monkeypatch.setattr(probe, "core", Core)
    answer = probe.probe("openvino", torch.device("xpu:0"))
    assert isinstance(answer, tt.Unavailable)
    assert answer.reason.endswith("sees no device for xpu:0 (it sees: CPU)")


def test_lower_precision_needs_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lower precision is available only where the device computes in it."""
    monkeypatch.setattr(probe, "capabilities", lambda _: frozenset({"FP32"}))
    answer = probe.probe("openvino_f16", CPU)
    assert answer == tt.Unavailable(reason="CPU does not compute in fp16")


@pytest.mark.parametrize(
    ("floats", "has", "precision"),
    [
        ({torch.float32}, {"FP32", "BF16", "FP16"}, "f32"),
        ({torch.bfloat16}, {"FP32", "BF16"}, "bf16"),
        ({torch.bfloat16}, {"FP32"}, "f32"),
        ({torch.float16}, {"FP32", "FP16"}, "f16"),
        ({torch.float32, torch.bfloat16}, {"FP32", "BF16"}, "f32"),
        (set(), {"FP32", "BF16"}, "f32"),
    ],
)
def test_precision(monkeypatch: pytest.MonkeyPatch, floats: set[torch.dtype], has: set[str], precision: str) -> None:
    """Precision is always said: the unit's own where the device has it, never a lower one."""
    monkeypatch.setattr(options, "capabilities", lambda _: frozenset(has))
    settings = options.Settings(target="GPU.1", hint="LATENCY", lower=None, threads=3)
    assert settings.precision_for(floats) == precision
    config = settings.config(precision)
    assert config["INFERENCE_PRECISION_HINT"] == precision
    assert "INFERENCE_NUM_THREADS" not in config


def test_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU runs with torch's number of threads."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    config = options.settings_of("openvino", CPU, {}).config("f32")
    assert config["INFERENCE_NUM_THREADS"] == 3
    assert config["PERFORMANCE_HINT"] == "LATENCY"


def test_another_device_copies_once(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """For tensors elsewhere each input is copied to the CPU once, and each result back once."""
    moves: list[str] = []

    class Away(torch.Tensor):
        """A tensor that records where it is sent."""

        def to(self, *args: Any, **kwargs: Any) -> torch.Tensor:
            moves.append(f"in {args[0]}")
            return self.as_subclass(torch.Tensor)

    class Plan:
        def run(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
            return [Back(inputs[0] * 2)]

    class Back:
        def __init__(self, tensor: torch.Tensor) -> None:
            self.tensor = tensor

        def to(self, device: torch.device) -> torch.Tensor:
            moves.append(f"out {device}")
            return self.tensor

    run = build_module._run_on(torch.device("xpu:1"))
    (result,) = run(Plan(), [torch.ones(2).as_subclass(Away), torch.ones(2).as_subclass(Away)])
    assert torch.equal(result, torch.full((2,), 2.0))
    assert moves == ["in cpu", "in cpu", "out xpu:1"]


def test_lossy_backend(made: Any) -> None:
    """`openvino_bf16` computes in bf16 where the device can, and says so."""
    if isinstance(probe.probe("openvino_bf16", CPU), tt.Unavailable):
        pytest.skip("this CPU has no bf16")
    unit = made(nn.Linear(64, 64), tt.Call(torch.randn(8, 64)))
    built = unit.build("openvino_bf16")
    x = torch.randn(8, 64)
    torch.testing.assert_close(built.call(x), unit.eager(x), rtol=5e-2, atol=5e-2)
    assert built.notes[0].endswith("in bf16")
