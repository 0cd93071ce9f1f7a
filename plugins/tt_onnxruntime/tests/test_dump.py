"""Files: what was dumped comes back without an export; what was tampered with is refused with a sentence."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnx_ir
import pytest
import torch
import tt_onnxruntime
from torch import nn

import tt_core as tt


class Scaled(nn.Module):
    """A convolution whose norm is folded, a large linear layer, a table, and another branch for one row."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv1d(16, 32, 3, padding=1), nn.BatchNorm1d(32)
        self.linear = nn.Linear(32, 64)
        self.table = nn.Embedding(40, 64)

    def forward(self, x: torch.Tensor, ids: torch.Tensor, scale: float) -> dict[str, torch.Tensor]:
        h = self.linear(self.norm(self.conv(x)).mean(-1)) * scale + self.table(ids)
        return {"out": h * 2 if x.shape[0] > 1 else h, "wide": h.sum(-1)}


def call(n: int) -> tt.Call:
    return tt.Call(torch.randn(n, 16, 8), torch.randint(0, 40, (n,)), 0.5)


@pytest.fixture(scope="module")
def unit(made_once: Any) -> Any:
    """The unit, built."""
    unit = made_once(Scaled(), call(6), call(1))
    unit.build()
    return unit


@pytest.fixture
def dumped(unit: Any, tmp_path: Path) -> tuple[Any, Any, Path]:
    """The unit, what its dump answered after a round trip through JSON, and the folder."""
    return unit, json.loads(json.dumps(tt_onnxruntime.tt_dump(built=unit.built, folder=tmp_path))), tmp_path


def restored(unit: Any, answer: Any, folder: Path, module: nn.Module | None = None) -> tt.Built:
    used = unit.unit if module is None else tt.Unit(path="other", module=module, forward=module.forward)
    with torch.no_grad():
        return tt_onnxruntime.tt_restore(
            unit=used,
            key=unit.calls.key,
            covers=unit.built.covers,
            dumped=answer,
            folder=folder,
            device=torch.device("cpu"),
        )


@pytest.mark.real
def test_there_and_back(dumped: Any, close: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both programs come back without an export, right in every size, and can be dumped again; nothing tells a path."""
    unit, answer, folder = dumped
    assert len(answer["programs"]) == 2
    text = json.dumps(answer).encode() + b"".join(p.read_bytes() for p in folder.rglob("model.onnx"))
    assert b"site-packages" not in text
    assert b".py" not in text
    monkeypatch.setattr(torch.onnx, "export", None)
    built = restored(unit, answer, folder)
    shutil.rmtree(folder / "0")
    assert built.notes == unit.built.notes
    assert built.bytes_held == unit.built.bytes_held
    for n in (1, 2, 4, 6):
        one = call(n)
        expected = unit.eager(*one.args)
        for _ in range(2):
            actual = built.call(*one.args)
            close(actual["out"], expected["out"])
            close(actual["wide"], expected["wide"])
    again = folder / "again"
    again.mkdir()
    assert tt_onnxruntime.tt_dump(built=built, folder=again) == answer
    built.close()
    with pytest.raises(tt.BuildRefusedError, match="closed"):
        tt_onnxruntime.tt_dump(built=built, folder=folder)


def rewritten(change: Callable[[onnx.ModelProto], None]) -> Callable[[Any, Path], None]:
    def tamper(_: Any, folder: Path) -> None:
        model = onnx.ModelProto.FromString((folder / "0" / "model.onnx").read_bytes())
        change(model)
        (folder / "0" / "model.onnx").write_bytes(model.SerializeToString())

    return tamper


def _location(model: onnx.ModelProto) -> None:
    next(t for t in model.graph.initializer if t.external_data).external_data[0].value = "/etc/passwd"


def _another_file(model: onnx.ModelProto) -> None:
    tensor = next(t for t in model.graph.initializer if not t.external_data)
    tensor.data_location = onnx.TensorProto.EXTERNAL


def _library(model: onnx.ModelProto) -> None:
    model.graph.node[0].domain = "com.stranger"


def _context(model: onnx.ModelProto) -> None:
    model.opset_import.add(domain="com.microsoft", version=1)


def _inner(model: onnx.ModelProto) -> None:
    inner = onnx.helper.make_graph([onnx.helper.make_node("X", [], [], domain="com.stranger")], "g", [], [])
    model.graph.node[0].attribute.append(onnx.helper.make_attribute("body", inner))


@pytest.mark.real
@pytest.mark.parametrize(
    ("tamper", "words"),
    [
        (rewritten(_location), "data that was not written down"),
        (rewritten(_another_file), "data that was not written down"),
        (rewritten(_library), "com.stranger"),
        (rewritten(_context), "not ONNX's own"),
        (rewritten(_inner), "com.stranger"),
        (lambda _, folder: (folder / "0" / "model.onnx").write_bytes(b"junk"), "not ONNX"),
        (lambda _, folder: (folder / "0" / "weights.bin").write_bytes(b"x"), "another length"),
        (lambda answer, _: answer.update(format=99), "format 99"),
        (lambda answer, _: answer.pop("programs"), "damaged"),
        (lambda answer, _: answer["programs"][0]["inputs"].reverse(), "the model takes a"),
        (lambda answer, _: answer["programs"][0]["results"].pop(), "outputs for"),
        (lambda answer, _: answer.update(sizes=[[99, 16, 8], [99]]), "not those that it covers"),
    ],
)
def test_tampered(dumped: Any, tamper: Any, words: str) -> None:
    """A file of unknown origin is data: what is not as it was written is refused, and nothing outside is opened."""
    unit, answer, folder = dumped
    tamper(answer, folder)
    with pytest.raises(tt.BuildRefusedError) as caught:
        restored(unit, answer, folder)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.real
def test_other_weights(dumped: Any) -> None:
    """A unit with other weights is refused at restore, and a built whose weights were changed since at dump."""
    unit, answer, folder = dumped
    with pytest.raises(tt.BuildRefusedError, match="is not the one that was dumped"):
        restored(unit, answer, folder, Scaled().eval())
    with torch.no_grad():
        unit.module.table.weight.mul_(1.0)
    with pytest.raises(tt.BuildRefusedError, match="changed since"):
        tt_onnxruntime.tt_dump(built=unit.built, folder=folder)


@pytest.mark.real
def test_no_message_holds_the_weights(made: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A model of any size is built, dumped and restored: no protobuf message, whose limit is 2 GB, holds its weights."""
    limit = 1 << 16
    serialize = onnx_ir.serde.serialize_model

    def limited(model: Any) -> onnx.ModelProto:
        made = serialize(model)
        assert made.ByteSize() < limit, "over the limit of a message"
        return made

    monkeypatch.setattr(onnx_ir.serde, "serialize_model", limited)
    unit = made(nn.Sequential(nn.Linear(256, 256), nn.Linear(256, 256)), tt.Call(torch.randn(2, 256)))
    built = unit.build()
    answer = tt_onnxruntime.tt_dump(built=built, folder=tmp_path)
    assert (tmp_path / "0" / "model.onnx").stat().st_size < limit < (tmp_path / "0" / "weights.bin").stat().st_size
    again = restored(unit, answer, tmp_path)
    x = torch.randn(2, 256)
    assert torch.equal(again.call(x), built.call(x))
    again.close()
