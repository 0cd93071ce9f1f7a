"""Twins from end to end: compiled once, each with its own weights, and loaded elsewhere without a compiler."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import tt_inductor
from models import Block, Encoder
from torch import nn

import tt_core as tt

pytestmark = [pytest.mark.real, pytest.mark.long, pytest.mark.usefixtures("packages")]
Make = Callable[..., tuple[tt.Unit, tt.Calls]]
Elsewhere = Callable[[str], subprocess.CompletedProcess[str]]
SETTINGS = tt.Settings(unit_race_s=0.2, pass_race_s=0.2, cache="off")
_COUNTING = """#!/bin/sh
echo "$@" >> "{log}"
exec "{real}" "$@"
"""


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], int]]:
    """A g++ on PATH that counts and calls the real one; how many files it compiled, each time with an empty cache."""
    folder = tmp_path_factory.mktemp("compiler")
    real = shutil.which("g++")
    if real is None:
        pytest.skip("no g++")
    log = folder / "calls.txt"
    (folder / "g++").write_text(_COUNTING.format(log=log, real=real))
    (folder / "g++").chmod(0o700)

    def count() -> int:
        calls = log.read_text().splitlines() if log.exists() else []
        log.unlink(missing_ok=True)
        shutil.rmtree(folder / "cache", ignore_errors=True)
        return sum("-fsyntax-only" not in call for call in calls)  # those only ask whether there is a compiler

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        patch.delenv("CXX", raising=False)
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder / "cache"))
        yield count


@pytest.fixture(scope="module")
def tuned(compiler: Callable[[], int]) -> Iterator[tuple[nn.Module, list[Any], Any, int]]:
    """An encoder of 12 layers, tuned at its layers: what eager said, the result, and how often the compiler was called."""
    torch.manual_seed(0)
    model = Encoder(12).eval()
    data = [torch.randn(2, 8, 16) for _ in range(2)]
    with torch.no_grad():
        expected = [model(x) for x in data]
    compiler()
    result = tt.tune(model, data, units=1, strategy=tt.OneBackendStrategy("inductor"), settings=SETTINGS)
    yield model, [data, expected], result, compiler()
    tt.untune(model)


def test_twelve_layers_cost_the_compiler_what_one_costs(
    tuned: tuple[nn.Module, list[Any], Any, int], compiler: Callable[[], int], make: Make
) -> None:
    """As many calls of the compiler, and a note that says why ahead of time; another layer like them costs none."""
    _, _, result, calls = tuned
    (trial,) = result.trials
    assert trial.notes[0] == "mode aot: 12 units share its program"
    with torch.no_grad():
        unit, recorded = make(Block(24).eval(), tt.Call(torch.randn(2, 8, 24)))  # as another program: those are shared
        limits = tt.Limits(seconds=600, saveable=True)
        one = tt_inductor.tt_build(unit=unit, calls=recorded, device=torch.device("cpu"), options={}, limits=limits)
        assert 0 < calls == compiler()
        assert one.notes == ("mode aot: it is to be saved",)
        unit, recorded = make(Block().eval(), *(tt.Call(torch.randn(2, 8, 16)) for _ in range(2)))
        tt_inductor.tt_build(unit=unit, calls=recorded, device=torch.device("cpu"), options={}, limits=limits)
        assert compiler() == 0


def test_each_layer_runs_with_its_own_weights(tuned: tuple[nn.Module, list[Any], Any, int]) -> None:
    """All twelve serve, and the whole is eager's result."""
    model, (data, expected), _, _ = tuned
    tt.stats(model, hits=True)
    with torch.no_grad():
        for x, y in zip(data, expected, strict=True):
            torch.testing.assert_close(model(x), y, rtol=1e-4, atol=1e-5)
    assert [one.hits for one in tt.stats(model).values()] == [2] * 12


_RESTORE = """
import json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import torch, tt_core as tt, tt_inductor
from tt_core.callkey import key_of
from models import Encoder
folder = Path(sys.argv[2])
saved = torch.load(folder / "saved.pt", weights_only=True)
model = Encoder(6).eval()
model.load_state_dict(saved["state"])
x, covers = saved["x"], tt.Shapes(leaves=((2, 8, 16),))
with torch.no_grad():
    for index, layer in enumerate(model.layers):
        key = key_of(layer.forward, tt.Call(x), training=False)
        unit = tt.Unit(path=f"layers.{index}", module=layer, forward=layer.forward)
        there = folder / "moved" / str(index)
        dumped = json.loads((there / "dumped.json").read_text())
        built = tt_inductor.tt_restore(
            unit=unit, key=key, covers=covers, dumped=dumped, folder=there, device=torch.device("cpu")
        )
        layer.forward = built.call
    torch.testing.assert_close(model(x), saved["y"], rtol=1e-4, atol=1e-5)
print("restored")
"""


def test_six_layers_are_restored_without_a_compiler(
    tuned: tuple[nn.Module, list[Any], Any, int], tmp_path: Path, elsewhere: Elsewhere
) -> None:
    """In a fresh process with an empty home and cache, no compiler, and the files moved: the same results."""
    model, _, _, _ = tuned
    for index, layer in enumerate(model.layers[:6]):
        there = tmp_path / "first" / str(index)
        there.mkdir(parents=True)
        built = vars(layer)["forward"].routes[0].entry.built
        dumped = tt_inductor.tt_dump(built=built, folder=there)
        (there / "dumped.json").write_text(json.dumps(dumped), encoding="utf-8")
    (tmp_path / "first").rename(tmp_path / "moved")
    plain = Encoder(6).eval()
    plain.load_state_dict({k: v for k, v in model.state_dict().items() if int(k.split(".")[1]) < 6})
    x = torch.randn(2, 8, 16)
    with torch.no_grad():
        torch.save({"state": plain.state_dict(), "x": x, "y": plain(x)}, tmp_path / "saved.pt")
    done = elsewhere(_RESTORE)
    assert (done.returncode, done.stdout.strip()) == (0, "restored"), done.stderr
