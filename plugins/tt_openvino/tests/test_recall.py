"""Units that were built before: found without an export, and only while they are what they were."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from tt_openvino import recall as recall_module

import tt_core as tt

pytestmark = pytest.mark.real


class Net(nn.Module):
    scale = 2.0

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.linear = nn.Embedding(50, width), nn.Linear(width, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(self.table(x)) * self.scale


@pytest.fixture
def exports(counted: Any) -> list[int]:
    """Grows with each export."""
    return counted(torch.export, "export")


def call(n: int) -> tt.Call:
    return tt.Call(torch.arange(n)[None])


def build(made: Any, module: nn.Module, *sizes: int, backend: str = "openvino", **options: Any) -> Any:
    unit = made(module, *map(call, sizes or (6, 3)))
    unit.build(backend, **options)
    return unit


def notes(root: Path) -> list[Path]:
    return sorted(path / "note.json" for path in root.iterdir() if (path / "note.json").exists())


def right(unit: Any, close: Any, *sizes: int, rtol: float = 1e-4) -> None:
    for n in sizes or (3, 4, 6):
        close(unit.built.call(torch.arange(n)[None]), unit.eager(torch.arange(n)[None]), rtol)


def test_found_without_an_export(made: Any, close: Any, root: Path, exports: list[int]) -> None:
    """A unit of the same code, weights and calls; right for all sizes, as much memory, and it can be dumped."""
    first = build(made, Net())
    count = len(exports)
    again = build(made, Net())
    assert len(exports) == count > 0
    right(again, close)
    assert again.built.covers == first.built.covers
    assert again.built.bytes_held == first.built.bytes_held
    assert again.built.notes == first.built.notes
    assert again.built.needs_strides == first.built.needs_strides
    with pytest.raises(tt.DeclinedError):
        again.built.call(torch.arange(7)[None])


def test_a_lower_precision_is_found_too(made: Any, close: Any, root: Path, exports: list[int]) -> None:
    """Its results are off by as much as the precision, and are no reason to forget it."""
    build(made, Net(), backend="openvino_bf16")
    count = len(exports)
    right(build(made, Net(), backend="openvino_bf16"), close, rtol=0.05)
    assert len(exports) == count


def other_weights(net: Net) -> None:
    net.linear.weight.data[0, 0] += 1e-3


def other_setting(net: Net) -> None:
    net.scale = 3.0


def other_code(net: Net) -> None:
    net.linear.forward = lambda x: x[..., :4]


@pytest.mark.parametrize("change", [other_weights, other_setting, other_code])
def test_another_unit_is_exported(made: Any, close: Any, root: Path, exports: list[int], change: Any) -> None:
    """Other weights, other settings, other code."""
    build(made, Net())
    count = len(exports)
    other = Net()
    change(other)
    right(build(made, other), close)
    assert len(exports) > count


def test_other_calls_are_exported(made: Any, close: Any, root: Path, exports: list[int]) -> None:
    """The program of a range is not the one of another."""
    build(made, Net(), 6, 3)
    count = len(exports)
    right(build(made, Net(), 9, 3), close, 9, 5, 3)
    assert len(exports) > count


def test_code_that_cannot_be_told_is_exported(made: Any, close: Any, root: Path, exports: list[int]) -> None:
    """Every time."""
    for _ in range(2):
        net = Net()
        net.source = (each for each in "")
        right(build(made, net), close)
    assert len(exports) >= 2
    assert notes(root) == []


def test_what_is_not_right_any_more_is_forgotten(
    made: Any, close: Any, root: Path, exports: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the text of the code overlooked a change, the results do not: the unit is exported, and noted down anew."""
    monkeypatch.setattr(tt.flat, "code_print", lambda _: "always the same")
    build(made, Net())
    count = len(exports)
    other = Net()
    other.scale = 3.0
    right(build(made, other), close)
    assert len(exports) > count
    count = len(exports)
    right(build(made, other), close)
    assert len(exports) == count


@pytest.mark.parametrize("damage", ["cut", "altered", "nonsense", "signed nonsense", "another program", "no model"])
def test_damage_is_exported(made: Any, close: Any, root: Path, exports: list[int], damage: str) -> None:
    """A damaged note, or one whose model is gone, costs an export and is replaced."""
    build(made, Net())
    count = len(exports)
    (note,) = notes(root)
    held = json.loads(note.read_text())
    if damage == "cut":
        note.write_text(note.read_text()[:-9])
    elif damage == "altered":
        held["said"]["programs"][0]["traces"] = []
        note.write_text(json.dumps(held))
    elif damage == "nonsense":
        note.write_text("[]")
    elif damage == "no model":
        for path in root.iterdir():
            if path != note.parent:
                (path / "entry.json").unlink()
    else:
        said = {"programs": [{**held["said"]["programs"][0], "inputs": 3 if "signed" in damage else ["other"]}]}
        note.write_text(json.dumps({"print": _print(said), "said": said}))
    right(build(made, Net()), close)
    assert len(exports) > count
    count = len(exports)
    right(build(made, Net()), close)
    assert len(exports) == count


def _print(said: Any) -> str:
    from tt_openvino.cache import _print as printed

    return printed(said)


def test_sizes_that_ranges_cannot_say_are_not_noted(
    made: Any, close: Any, root: Path, exports: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What decides between the programs is then known by the export alone."""
    monkeypatch.setattr(recall_module, "_GRID", 1)
    build(made, Net())
    assert notes(root) == []
    count = len(exports)
    right(build(made, Net()), close)
    assert len(exports) > count


def test_nothing_is_looked_at_without_a_cache(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither code nor weights are read."""
    monkeypatch.setattr(tt.flat, "code_print", lambda _: pytest.fail("asked"))
    build(made, Net())
