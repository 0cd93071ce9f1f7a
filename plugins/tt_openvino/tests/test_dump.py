"""Files: what was dumped comes back without an export; what was tampered with is refused with a sentence."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openvino as ov
import pytest
import torch
import tt_openvino
from torch import nn

import tt_core as tt


class Scaled(nn.Module):
    """A convolution with a norm, a large linear layer, a table, and another branch for one row."""

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
    return unit, json.loads(json.dumps(tt_openvino.tt_dump(built=unit.built, folder=tmp_path))), tmp_path


def restored(
    unit: Any, answer: Any, folder: Path, module: nn.Module | None = None, backend: str = "openvino"
) -> tt.Built:
    used = unit.unit if module is None else tt.Unit(path="other", module=module, forward=module.forward)
    with torch.no_grad():
        return tt_openvino.tt_restore(
            backend=backend,
            unit=used,
            key=unit.calls.key,
            covers=unit.built.covers,
            dumped=answer,
            folder=folder,
            device=torch.device("cpu"),
        )


def right(unit: Any, built: tt.Built, close: Callable[..., None]) -> None:
    for n in (1, 2, 4, 6):
        one = call(n)
        expected = unit.eager(*one.args)
        for _ in range(2):
            actual = built.call(*one.args)
            close(actual["out"], expected["out"])
            close(actual["wide"], expected["wide"])


@pytest.mark.real
def test_there_and_back(dumped: Any, close: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both programs come back without an export, right in every size, limits kept, and can be dumped again."""
    unit, answer, folder = dumped
    assert len(answer["programs"]) == 2
    assert b".py" not in json.dumps(answer).encode() + b"".join(p.read_bytes() for p in folder.rglob("*.xml"))
    monkeypatch.setattr(torch.export, "export", None)
    monkeypatch.setattr(ov, "convert_model", None)
    built = restored(unit, answer, folder)
    shutil.rmtree(folder / "0")
    assert built.notes == unit.built.notes
    assert built.bytes_held == unit.built.bytes_held
    right(unit, built, close)
    x, ids, scale = call(3).args
    with pytest.raises(tt.DeclinedError, match="no index of its table"):
        built.call(x, ids + 40, scale)
    again = folder / "again"
    again.mkdir()
    assert tt_openvino.tt_dump(built=built, folder=again) == answer
    right(unit, restored(unit, answer, again), close)
    built.close()
    with pytest.raises(tt.BuildRefusedError, match="closed"):
        tt_openvino.tt_dump(built=built, folder=folder)


@pytest.mark.real
def test_the_units_own_memory(dumped: Any) -> None:
    """A restored built's large weights are the unit's own memory, not the file's."""
    unit, answer, folder = dumped
    built = restored(unit, answer, folder)
    model = built.call.tt_state.runner.programs[0].model
    places = {op.data.ctypes.data for op in model.get_ordered_ops() if op.get_type_name() == "Constant"}
    assert {unit.module.table.weight.data_ptr(), unit.module.linear.weight.data_ptr()} <= places
    built.close()


@pytest.mark.real
def test_full_precision(dumped: Any) -> None:
    """Files hold float32 as float32: `openvino.save_model` as it comes would halve it."""
    _, _, folder = dumped
    model = ov.Core().read_model(folder / "0" / "model.xml")
    kinds = {op.get_element_type() for op in model.get_ordered_ops() if op.get_type_name() == "Constant"}
    assert ov.Type.f32 in kinds
    assert not kinds & {ov.Type.f16, ov.Type.bf16}


def text(change: Callable[[str], str]) -> Callable[[Any, Path], None]:
    def tamper(_: Any, folder: Path) -> None:
        path = folder / "0" / "model.xml"
        before = path.read_text("utf-8")
        after = change(before)
        assert before != after
        path.write_text(after, "utf-8")

    return tamper


def number(_: Any, folder: Path) -> None:
    """Another number in the table."""
    place = re.search(r'shape="40, 64" offset="(\d+)"', (folder / "0" / "model.xml").read_text("utf-8"))
    with (folder / "0" / "model.bin").open("r+b") as file:
        file.seek(int(place[1]) + 7)
        file.write(b"\xff")


def _reverse(answer: Any, _: Path) -> None:
    for program in answer["programs"]:
        program["inputs"].reverse()


@pytest.mark.real
@pytest.mark.parametrize(
    ("tamper", "words"),
    [
        (text(lambda xml: xml.replace('version="opset1"', 'version="extension"', 1)), "not OpenVINO's own"),
        (text(lambda xml: xml.replace('version="opset1"', 'version="opset99"', 1)), "not OpenVINO's own"),
        (text(lambda xml: xml.replace('type="MatMul"', 'type="Stranger"')), "does not read its model"),
        (text(lambda xml: xml.replace('type="MatMul"', 'type="ReadValue"')), "keeps state"),
        (text(lambda xml: xml.replace('offset="0"', 'offset="-4"', 1)), "outside of its file"),
        (text(lambda xml: xml.replace('offset="0"', 'offset="99999999"', 1)), "outside of its file"),
        (text(lambda xml: xml.replace('<?xml version="1.0"?>', '<!DOCTYPE net [<!ENTITY a "b">]>')), "entities"),
        (text(lambda xml: xml.replace("</net>", "")), "no XML"),
        (text(lambda xml: xml.replace('version="11"', 'version="12"', 1)), "no IR of version"),
        (lambda _, folder: (folder / "0" / "model.bin").write_bytes(b"x"), "outside of its file"),
        (lambda _, folder: (folder / "0" / "model.bin").unlink(), "damaged"),
        (number, "is not the one in the file"),
        (lambda answer, _: answer.update(format=99), "format 99"),
        (lambda answer, _: answer.pop("programs"), "damaged"),
        (lambda answer, _: answer.update(weights="0"), "not those that were dumped"),
        (lambda answer, _: answer.update(options={"colour": "red"}), "unknown option"),
        (_reverse, "the model takes a"),
        (lambda answer, _: answer["programs"][0]["results"].pop(), "outputs of"),
        (lambda answer, _: answer["programs"][0].update(precision="f16"), "not this unit's"),
        (lambda answer, _: answer["programs"][0]["sources"].update(strange="linear.weight"), "no constant 'strange'"),
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
def test_other_weights(made: Any, tmp_path: Path) -> None:
    """A unit with other weights is refused at restore, and a built whose weights were changed since at dump."""
    unit = made(nn.Linear(16, 16), tt.Call(torch.randn(2, 16)))
    unit.build()
    answer = tt_openvino.tt_dump(built=unit.built, folder=tmp_path)
    with pytest.raises(tt.BuildRefusedError, match="not those that were dumped"):
        restored(unit, answer, tmp_path, nn.Linear(16, 16).eval())
    with torch.no_grad():
        unit.module.weight.mul_(1.0)
    with pytest.raises(tt.BuildRefusedError, match="changed since"):
        tt_openvino.tt_dump(built=unit.built, folder=tmp_path)


@pytest.mark.real
def test_bfloat16(made: Any, tmp_path: Path) -> None:
    """Weights in bf16 are written and read as what they are."""
    unit = made(nn.Sequential(nn.Embedding(50, 64), nn.Linear(64, 64)).bfloat16(), tt.Call(torch.arange(9)))
    unit.build()
    built = restored(unit, json.loads(json.dumps(tt_openvino.tt_dump(built=unit.built, folder=tmp_path))), tmp_path)
    x = torch.arange(9) + 20
    assert torch.equal(built.call(x), unit.built.call(x))
    built.close()
