"""The cache of converted models: found again, private, small, and never trusted with damage."""

from __future__ import annotations

import json
import multiprocessing
import os
import stat
from pathlib import Path
from typing import Any

import openvino as ov
import platformdirs
import pytest
import torch
from torch import nn
from tt_openvino import cache as cache_module
from tt_openvino.cache import Cache, _trim
from tt_openvino.weights import filled, hollow, sources

import tt_core as tt

pytestmark = pytest.mark.real


@pytest.fixture
def conversions(counted: Any) -> list[int]:
    """Grows with each conversion."""
    return counted(ov, "convert_model")


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(50, 32), nn.LayerNorm(32), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 4))


def call(n: int) -> tt.Call:
    return tt.Call(torch.arange(n)[None])


def build(made: Any, module: nn.Module | None = None, *sizes: int, **options: Any) -> Any:
    unit = made(module or net(), *map(call, sizes or (6, 3)))
    unit.build(**options)
    return unit


def entries(root: Path) -> list[Path]:
    """Of models: the notes about units are another test's."""
    return sorted(path for path in root.iterdir() if not (path / "note.json").exists())


def test_found_again(made: Any, close: Any, root: Path, conversions: list[int]) -> None:
    """The same unit is converted once; what comes from the cache is right, holds no more memory, and can be dumped."""
    first = build(made)
    held = first.built.bytes_held
    again = build(made)
    assert conversions == [1]
    assert again.built.bytes_held == held
    assert again.built.notes == first.built.notes
    assert stat.S_IMODE(root.stat().st_mode) == 0o700
    assert [path.name for path in entries(root)[0].iterdir()] != []
    for n in (3, 4, 6):
        close(again.built.call(torch.arange(n)[None]), first.eager(torch.arange(n)[None]))
    model = again.built.call.tt_state.runner.programs[0].model
    places = {op.data.ctypes.data for op in model.get_ordered_ops() if op.get_type_name() == "Constant"}
    assert again.module[0].weight.data_ptr() in places


def test_other_things_are_converted(made: Any, root: Path, conversions: list[int]) -> None:
    """Other weights, other sizes, another program and another precision are other entries."""
    build(made)
    other = net()
    with torch.no_grad():
        other[1].bias[3] += 1e-6
    build(made, other)
    build(made, None, 7, 3)
    build(made, nn.Sequential(*net(), nn.Tanh()))
    half = net().bfloat16()
    build(made, half)
    assert len(conversions) == 5
    assert len(entries(root)) == 5
    build(made, performance_hint="THROUGHPUT")  # the same model, compiled otherwise
    assert len(conversions) == 5


def test_weights_are_not_written(made: Any, close: Any, root: Path, conversions: list[int]) -> None:
    """An entry has the model without the unit's weights, and needs none of its own: they are the ones at hand."""
    module, x = nn.Sequential(nn.Linear(64, 64, bias=False), nn.Tanh()), torch.randn(2, 64)
    for _ in range(2):
        unit = made(module, tt.Call(x))
        close(unit.build().call(x), unit.eager(x))
    assert len(conversions) == 1
    (entry,) = entries(root)
    assert sum(file.stat().st_size for file in entry.iterdir()) < module[0].weight.nbytes


def test_places_for_weights(made: Any) -> None:
    """A tensor is put in a place of its own type and size, and no place stays empty."""
    unit = build(made)
    model, tensors = unit.built.call.tt_state.runner.programs[0].model, dict(unit.module.named_parameters())
    table = sources(model, tensors)
    doubled = {name: tensor.double() for name, tensor in tensors.items()}
    for said, there in (({}, tensors), ({**table, "strange": "0.weight"}, tensors), (table, {}), (table, doubled)):
        with pytest.raises(tt.BuildRefusedError, match=r"places for weights|the unit has no"):
            filled(hollow(model, table), said, there)
    made_again = hollow(model, table)
    filled(made_again, table, tensors)
    assert len(made_again.get_parameters()) == len(model.get_parameters())


@pytest.mark.parametrize("damage", ["cut", "changed", "no text", "no entry", "no source", "other source", "empty"])
def test_damage(made: Any, close: Any, root: Path, conversions: list[int], damage: str) -> None:
    """A damaged entry is thrown away and built anew, whichever part is damaged."""
    build(made)
    (entry,) = entries(root)
    weights, said = entry / "model.bin", entry / "entry.json"
    if damage == "cut":
        weights.write_bytes(weights.read_bytes()[:-8])
    elif damage == "changed":
        weights.write_bytes(bytes(byte ^ 1 for byte in weights.read_bytes()))
    elif damage == "no text":
        (entry / "model.xml").unlink()
    elif damage == "no entry":
        said.write_text("{", "utf-8")
    elif damage == "no source":
        content = json.loads(said.read_text("utf-8"))
        content["sources"] = {"Strange": "0.weight"}
        said.write_text(json.dumps(content), "utf-8")
    elif damage == "other source":
        content = json.loads(said.read_text("utf-8"))
        content["sources"] = dict.fromkeys(content["sources"], "2.weight")
        said.write_text(json.dumps(content), "utf-8")
    else:
        for file in entry.iterdir():
            file.write_bytes(b"")
    unit = build(made)
    x = torch.arange(5)[None]
    close(unit.built.call(x), unit.eager(x))
    assert len(conversions) == 2
    build(made)
    assert len(conversions) == 2


def test_off(made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty TT_CACHE_DIR switches it off, without a note."""
    monkeypatch.setattr(platformdirs, "user_cache_dir", None)
    monkeypatch.setenv("TT_CACHE_DIR", "")
    assert len(build(made).built.notes) == 1
    assert list(tmp_path.iterdir()) == []


def test_the_users_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the variable it is in the user's own cache folder."""
    monkeypatch.delenv("TT_CACHE_DIR", raising=False)
    monkeypatch.setattr(platformdirs, "user_cache_dir", lambda name, **_: str(tmp_path / "home" / name))
    assert Cache.ours().note == ""
    assert (tmp_path / "home" / "tt_core" / "openvino").is_dir()


def test_private(made: Any, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that others may enter, that is a link, or that belongs to another user is not used; the report says why."""
    root.mkdir(parents=True, mode=0o700)
    root.chmod(0o755)
    assert build(made).built.notes[1].startswith("models are not cached: TT_CACHE_DIR/openvino is open to other users")
    assert entries(root) == []
    root.chmod(0o700)
    assert Cache.ours().note == ""
    root.parent.chmod(0o777)
    assert "open to other users" in Cache.ours().note
    root.parent.chmod(0o700)
    uid = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
    assert "belongs to another user" in Cache.ours().note
    monkeypatch.undo()
    other = root.with_name("other")
    root.rename(other)
    root.symlink_to(other)
    monkeypatch.setenv("TT_CACHE_DIR", str(root.parent))
    assert "reached through a link" in Cache.ours().note


def test_unwritable(made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no folder can be made the build goes on, with the reason in the report."""
    (tmp_path / "file").write_text("", "utf-8")
    monkeypatch.setenv("TT_CACHE_DIR", str(tmp_path / "file"))
    assert build(made).built.notes[1] == "models are not cached: TT_CACHE_DIR/openvino cannot be made (Not a directory)"


def test_a_full_disk(made: Any, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that cannot be written is built all the same; nothing half-written stays."""

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache_module, "write", full)
    assert build(made).built.notes[1] == "its model was not cached: No space left on device"
    assert entries(root) == []


def _entry(root: Path, name: str, size: int, used: int) -> None:
    (root / name).mkdir()
    (root / name / "model.bin").write_bytes(bytes(size))
    os.utime(root / name, (used, used))


def test_trim(tmp_path: Path) -> None:
    """What was not used for longest goes first; what another process writes just now stays, what it left long ago goes."""
    for i, name in enumerate(("oldest", "old", "new", "newest")):
        _entry(tmp_path, name, 100, 10_000 + i)
    _entry(tmp_path, ".new-1-a", 1000, 9_000)
    _entry(tmp_path, ".new-1-b", 10, 10)
    _trim(tmp_path, 250)
    assert [path.name for path in entries(tmp_path)] == [".new-1-a", "new", "newest"]


def test_capped(made: Any, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries over the cap leave room for the newest."""
    build(made)
    size = sum(file.stat().st_size for file in entries(root)[0].iterdir())
    monkeypatch.setattr(cache_module, "CAP", int(1.5 * size))
    os.utime(entries(root)[0], (1, 1))
    first = entries(root)[0]
    build(made, None, 7, 3)
    assert len(entries(root)) == 1
    assert entries(root)[0] != first


def _race(folder: str, start: Any, done: Any) -> None:
    """In a process of its own: keeps one model under one key many times."""
    os.environ["TT_CACHE_DIR"] = folder
    own = Cache.ours()
    parameter = ov.op.Parameter(ov.Type.f32, ov.PartialShape([2]))
    model = ov.Model([ov.opset13.relu(parameter)], [parameter], "m")
    start.wait()
    found = 0
    for _ in range(20):
        own.keep("key", model, {})
        found += own.find("key", {}) is not None
    done.put((own.note, found))


def test_two_processes(root: Path) -> None:
    """Two processes that write one entry at once leave one whole entry, and both read it."""
    context = multiprocessing.get_context("spawn")
    start, done = context.Barrier(2), context.Queue()
    both = [context.Process(target=_race, args=(str(root.parent), start, done)) for _ in range(2)]
    for one in both:
        one.start()
    answers = [done.get(timeout=120) for _ in both]
    for one in both:
        one.join()
    assert answers == [("", 20), ("", 20)]
    assert [path.name for path in entries(root)] == ["key"]
