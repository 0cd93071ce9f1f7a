"""Declaring imports nothing, probing says why not; a GPU is only ever faked here."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
import tt_onnxruntime
from tt_onnxruntime import options, probe, run

import tt_core as tt

CPU = torch.device("cpu")


def test_declaring_is_cheap() -> None:
    """Importing the plugin and asking for its backends imports neither runtime nor exporter."""
    code = (
        "import sys, tt_onnxruntime; tt_onnxruntime.tt_backends(); "
        "assert not {'onnxruntime', 'onnx', 'onnxscript', 'onnx_ir'} & set(sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_declared() -> None:
    """One backend that keeps results, computes in threads of its own, and is dumped as data."""
    backend = tt_onnxruntime.tt_backends()
    assert backend.name == "onnxruntime"
    assert backend.fidelity is tt.Fidelity.CLOSE
    assert backend.weights is tt.Weights.VALUES
    assert backend.payload is tt.Payload.DATA
    assert backend.own_threads


def test_ready() -> None:
    """On a CPU the answer names version and provider."""
    answer = tt_onnxruntime.tt_probe(device=CPU)
    assert isinstance(answer, tt.Ready)
    assert answer.note.startswith("ONNX Runtime 1.")
    assert answer.note.endswith("CPU provider")


@pytest.mark.parametrize("missing", ["onnxruntime", "onnx", "onnxscript"])
def test_not_installed(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    """Without one of its packages: which, and the pip line."""
    real = probe.metadata.version

    def version(name: str) -> str:
        if name in {missing, f"{missing}-gpu"}:
            raise probe.metadata.PackageNotFoundError
        return real(name)

    monkeypatch.setattr(probe.metadata, "version", version)
    assert probe.probe(CPU) == tt.Unavailable(
        reason=f"{missing} is not installed", hint='pip install "tt-core[onnxruntime]"'
    )


@pytest.mark.parametrize(("version", "old"), [("1.21.3", True), ("0.9", True), ("1.22.0", False), ("2.0.dev1", False)])
def test_version(monkeypatch: pytest.MonkeyPatch, version: str, old: bool) -> None:
    """Too old a version: which, and which is needed."""
    monkeypatch.setattr(probe, "installed", lambda name: version if name == "onnxruntime" else "9.9")
    answer = probe.probe(CPU)
    assert isinstance(answer, tt.Unavailable) == old
    if old:
        assert answer.reason == f"onnxruntime {version} is installed, 1.22 or newer is needed"
        assert answer.hint == 'pip install --upgrade "onnxruntime>=1.22"'


def test_broken_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    """A runtime that does not load is unavailable with its own reason in one line."""

    def broken() -> Any:
        raise OSError("libonnxruntime.so: cannot open\nmore")

    monkeypatch.setattr(probe, "providers", broken)
    answer = probe.probe(CPU)
    assert isinstance(answer, tt.Unavailable)
    assert answer.reason.endswith("does not start: libonnxruntime.so: cannot open")


def test_no_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without CUDA's provider a GPU is refused with what there is; with it, it is ready."""
    monkeypatch.setattr(probe, "providers", lambda: ("CPUExecutionProvider",))
    answer = probe.probe(torch.device("cuda:0"))
    assert isinstance(answer, tt.Unavailable)
    assert answer.reason.endswith("has no provider for cuda:0 (it has: CPU)")
    monkeypatch.setattr(probe, "providers", lambda: ("CUDAExecutionProvider", "CPUExecutionProvider"))
    assert isinstance(probe.probe(torch.device("cuda:0")), tt.Ready)


def test_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's number of threads, no spinning after calls unless asked for, everything optimised; on a GPU no TF32."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    monkeypatch.setattr(options, "affinities", lambda threads: f"{threads} threads")
    made = options.settings_of(CPU, {}).session_options()
    assert made.intra_op_num_threads == 3
    assert made.get_session_config_entry("session.force_spinning_stop") == "1"
    assert made.graph_optimization_level.name == "ORT_ENABLE_ALL"
    assert made.get_session_config_entry("session.intra_op_thread_affinities") == f"{torch.get_num_threads()} threads"
    never = options.settings_of(CPU, {"spinning": False}).session_options()
    assert never.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    always = options.settings_of(CPU, {"spinning": "always"}).session_options()
    assert always.get_session_config_entry("session.intra_op.allow_spinning") == "1"
    with pytest.raises(RuntimeError, match="force_spinning_stop"):
        always.get_session_config_entry("session.force_spinning_stop")
    briefly = options.settings_of(CPU, {"spinning": "briefly"}).session_options()
    assert briefly.get_session_config_entry("session.intra_op.spin_duration_us") == "1000"
    assert options.settings_of(CPU, {}).providers() == ["CPUExecutionProvider"]
    first, second = options.settings_of(torch.device("cuda:1"), {}).providers()
    assert first == ("CUDAExecutionProvider", {"device_id": 1, "use_tf32": 0})
    assert second == "CPUExecutionProvider"


def test_the_whole_object_waits_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no neighbours of its own; a release that cannot limit the time stops; what the user says counts."""
    assert options.settings_of(CPU, {}, whole=True).spinning == "briefly"
    assert options.settings_of(CPU, {}).spinning is True
    assert options.settings_of(CPU, {"spinning": False}, whole=True).spinning is False
    monkeypatch.setattr(options, "installed", lambda _: "1.31.2")
    assert options.settings_of(CPU, {}, whole=True).spinning is True


def test_one_line() -> None:
    """An error is its innermost cause, without colours, codes and places."""
    inner = ValueError("\x1b[96mNo ONNX function found\x1b[0m for aten.x\nmore")
    outer = RuntimeError("page")
    outer.__cause__ = inner
    assert probe.one_line(outer) == "No ONNX function found for aten.x"
    text = "[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : Could not find an implementation for Gemm"
    assert probe.one_line(RuntimeError(text)) == "Could not find an implementation for Gemm"
    assert probe.one_line(RuntimeError()) == "RuntimeError"


class Native:
    """A fake of a native binding: what was bound where."""

    def __init__(self) -> None:
        self.bound: dict[str, Any] = {}

    def bind_input(self, port: str, place: Any, kind: int, sizes: tuple[int, ...], address: int) -> None:
        self.bound[port] = (place, kind, sizes, address)

    bind_output = bind_input


def test_cuda_is_bound_by_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU every tensor, small ones too, is bound there by its address, after the caller's stream is done. A fake."""
    steps: list[str] = []
    native, empty = Native(), torch.empty

    class Session:
        def run_with_iobinding(self, binding: Any, _: Any) -> None:
            assert binding is native
            steps.append("run")

    class Stream:
        def synchronize(self) -> None:
            steps.append("synchronize")

    class Program:
        session = Session()

    monkeypatch.setattr(run, "new_binding", lambda _: native)
    monkeypatch.setattr(torch, "empty", lambda sizes, dtype, device=None: empty(sizes, dtype=dtype))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: steps.append(str(device)) or Stream())
    port: Any = ("x", torch.float32, (2,))
    device = torch.device("cuda:1")
    plan = run.ByAddress(
        program=Program(),  # type: ignore[arg-type]
        inputs=(port,),
        outputs=(("y", torch.int64, (3,)),),
        indices=(),
        device=device,
    )
    x = torch.ones(2)
    (result,) = plan.run([x])
    assert steps == ["cuda:1", "synchronize", "run"]
    place, kind, sizes, address = native.bound["x"]
    assert (place.device_type(), place.device_id()) == (run.place_of(device).device_type(), 1)
    assert place.device_type() != run.place_of(CPU).device_type()
    assert (kind, sizes, address) == (1, (2,), x.data_ptr())
    assert native.bound["y"][1:] == (7, (3,), result.data_ptr())
