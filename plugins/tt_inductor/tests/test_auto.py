"""Mode "auto": which way a unit takes, and that the notes say why; what happens to a compile that hangs or crashes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
import tt_inductor
from torch import nn
from tt_inductor import aot, compiling, jit

import tt_core as tt

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("no_grad", "mkl")]
Make = Callable[..., tuple[tt.Unit, tt.Calls]]
CPU = torch.device("cpu")
SAVEABLE = tt.Limits(seconds=600, saveable=True)


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, float]]:
    """Jobs that would be given to a process of their own: every one is refused."""
    asked: list[tuple[str, float]] = []

    def refuse(job: str, arguments: Any, *, folder: Path, seconds: float) -> Any:
        assert list(folder.iterdir()) == [folder / "program.pt2"]
        asked.append((str(folder), seconds))
        raise tt.BuildRefusedError("no compiler today", "come back tomorrow")

    monkeypatch.setattr(tt, "in_worker", refuse)
    return asked


def _built(pair: tuple[tt.Unit, tt.Calls], limits: tt.Limits = SAVEABLE, **options: Any) -> tt.Built:
    unit, calls = pair
    return tt_inductor.tt_build(unit=unit, calls=calls, device=CPU, options=options, limits=limits)


def _small(make: Make, **fields: Any) -> tuple[tt.Unit, tt.Calls]:
    unit, calls = make(nn.Linear(3, 2).eval(), tt.Call(torch.randn(4, 3)))
    return attrs.evolve(unit, **fields), calls


def test_one_of_a_kind_is_compiled_just_in_time(make: Make, jobs: list[Any]) -> None:
    """No process of its own, and a note; two twins are too few."""
    for twins in (0, 2):
        built = _built(_small(make, twins=twins), tt.Limits(seconds=600))
        assert built.notes == ("mode jit: its program is neither shared nor to be saved",)
        assert built.weights is tt.Weights.LIVE
    assert jobs == []


def _raced(monkeypatch: pytest.MonkeyPatch, *seconds: float) -> list[tt.Built]:
    """Races in which the builts take so many seconds a call; what took part in the last one."""
    seen: list[tt.Built] = []

    def race(builts: Sequence[tt.Built], calls: tt.Calls, device: torch.device) -> tuple[tt.Timing, ...]:
        seen[:] = builts
        ratios = [one / seconds[0] for one in seconds]
        return tuple(
            tt.Timing(seconds=(one,), ratios=(r,), interval=tt.Interval(low=r, mid=r, high=r))
            for one, r, _ in zip(seconds, ratios, builts, strict=False)
        )

    monkeypatch.setattr(tt, "race_builts", race)
    return seen


def _ahead(monkeypatch: pytest.MonkeyPatch, closed: list[str]) -> None:
    """Mode "aot" that builds at once, and both modes noted when they are closed."""
    just = jit.build

    def ahead(unit: tt.Unit, *_: Any, **__: Any) -> tt.Built:
        return tt.Built(call=unit.forward, weights=tt.Weights.STORAGE, close=lambda: closed.append("aot"))

    def noted(*args: Any, **kwargs: Any) -> tt.Built:
        return attrs.evolve(just(*args, **kwargs), close=lambda: closed.append("jit"))

    monkeypatch.setattr(aot, "build", ahead)
    monkeypatch.setattr(jit, "build", noted)


@pytest.mark.parametrize(("ahead_s", "kept", "lost"), [(20e-6, "aot", "jit"), (39e-6, "jit", "aot")])
def test_a_whole_object_of_short_calls_is_raced(
    make: Make, monkeypatch: pytest.MonkeyPatch, ahead_s: float, kept: str, lost: str
) -> None:
    """The faster one is kept, by more than 5 %; the other one is closed, and the note says how it ended."""
    closed: list[str] = []
    _ahead(monkeypatch, closed)
    seen = _raced(monkeypatch, 40e-6, ahead_s)
    built = _built(_small(make, path=""), tt.Limits(seconds=600))
    assert built.weights is (tt.Weights.STORAGE if kept == "aot" else tt.Weights.LIVE)
    assert len(seen) == 2
    assert closed == [lost]
    (note,) = built.notes
    assert note.startswith(f"mode {kept}: its calls are short, and mode aot was {40e-6 / ahead_s:.2f}x as fast")


@pytest.mark.parametrize(
    ("unit", "facts", "options", "seconds"),
    [
        ({"path": ""}, {}, {}, 1e-3),
        ({"path": "inner"}, {}, {}, 40e-6),
        ({"path": ""}, {}, {"freezing": True}, 40e-6),
        ({"path": ""}, {"random": True}, {}, 40e-6),
    ],
)
def test_what_is_not_raced(
    make: Make, monkeypatch: pytest.MonkeyPatch, unit: Any, facts: Any, options: Any, seconds: float
) -> None:
    """Long calls, parts of an object, baked weights, and calls that may not be repeated: no package is built."""
    closed: list[str] = []
    _ahead(monkeypatch, closed)
    _raced(monkeypatch, seconds, 1e-6)
    pair = make(nn.Linear(3, 2).eval(), tt.Call(torch.randn(4, 3)), **facts)
    built = _built((attrs.evolve(pair[0], **unit), pair[1]), tt.Limits(seconds=600), **options)
    assert built.notes[0].startswith("mode jit: its program is neither")
    assert closed == []


@pytest.mark.usefixtures("packages")
def test_a_package_that_is_refused_leaves_the_other(
    make: Make, monkeypatch: pytest.MonkeyPatch, jobs: list[Any]
) -> None:
    """The note says so."""
    _raced(monkeypatch, 40e-6, 20e-6)
    built = _built(_small(make, path=""), tt.Limits(seconds=600))
    assert len(jobs) == 1
    assert built.notes[0].endswith("its calls are short, but mode aot was refused: no compiler today")


@pytest.mark.usefixtures("packages")
@pytest.mark.parametrize(
    ("twins", "limits", "options", "why"),
    [
        (3, tt.Limits(seconds=70), {}, "3 units share its program"),
        (0, SAVEABLE, {}, "it is to be saved"),
        (0, tt.Limits(seconds=70), {"max_autotune": True}, "max_autotune may take very long"),
    ],
)
def test_what_is_worth_a_package(
    make: Make, jobs: list[Any], twins: int, limits: tt.Limits, options: dict[str, Any], why: str
) -> None:
    """Asked for ahead of time; where that is refused the unit is compiled just in time, and the notes hold both reasons."""
    if options:
        options = {**options, "fullgraph": True}
    built = _built(_small(make, twins=twins), limits, **options)
    ((folder, seconds),) = jobs
    assert seconds == limits.seconds
    assert not Path(folder).exists()
    (note,) = built.notes
    assert note.startswith(f"mode jit: {why}")
    assert note.endswith("but mode aot was refused: no compiler today")


@pytest.mark.usefixtures("packages")
def test_what_does_not_export_is_compiled_just_in_time(make: Make, jobs: list[Any]) -> None:
    """The reason stands in the notes, and no process was started for it."""
    pair = make(nn.Dropout().train(), tt.Call(torch.randn(3)), random=True)
    built = _built(pair)
    assert "refused: it draws random numbers" in built.notes[0]
    assert jobs == []


@pytest.mark.usefixtures("packages")
def test_an_overrun_is_not_followed_by_another_build(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The candidate has had its time."""

    def overrun(*args: Any, **kwargs: Any) -> Any:
        raise tt.OverrunError("exceeded")

    monkeypatch.setattr(tt, "in_worker", overrun)
    with pytest.raises(tt.OverrunError):
        _built(_small(make, twins=3))


@pytest.mark.parametrize("limits", [SAVEABLE, tt.Limits(seconds=600)])
def test_weights_are_not_baked_where_a_program_is_shared_or_saved(
    make: Make, jobs: list[Any], limits: tt.Limits
) -> None:
    """The variant with frozen weights refuses at once: it could be neither."""
    with pytest.raises(tt.BuildRefusedError, match="baked weights cannot be shared or saved"):
        _built(_small(make, twins=12), limits, freezing=True)
    assert jobs == []


@pytest.mark.usefixtures("packages")
def test_weights_do_not_travel(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program is written without its weights; the other process has some of the same form, shared where they were."""
    model = nn.Sequential(nn.Linear(512, 512), nn.Linear(512, 512)).eval()
    model[1].weight = model[0].weight
    seen: dict[str, Any] = {}

    def look(job: str, arguments: Any, *, folder: Path, seconds: float) -> Any:
        seen["bytes"] = (folder / "program.pt2").stat().st_size
        program = torch.export.load(folder / "program.pt2")
        compiling._fill(program.state_dict, arguments["weights"])
        seen["weights"] = program.state_dict
        seen["config"], seen["flags"] = arguments["config"], arguments["flags"]
        raise tt.BuildRefusedError("seen enough")

    monkeypatch.setattr(tt, "in_worker", look)
    with torch._inductor.config.patch(epilogue_fusion=False), pytest.raises(tt.BuildRefusedError, match="seen enough"):
        _built(make(model, tt.Call(torch.randn(2, 512))), mode="aot")
    assert seen["bytes"] < 100_000
    weights = seen["weights"]
    assert {name: tensor.shape for name, tensor in weights.items()} == {
        f"unit.{name}": tensor.shape for name, tensor in model.state_dict().items()
    }
    assert weights["unit.0.weight"].data_ptr() == weights["unit.1.weight"].data_ptr()
    assert weights["unit.0.bias"].data_ptr() != weights["unit.1.bias"].data_ptr()
    assert seen["config"]["epilogue_fusion"] is False
    assert seen["flags"]["threads"] == torch.get_num_threads()
    assert not seen["config"]["aot_inductor.package_constants_in_so"]


_CRASH = """#!/bin/sh
kill -9 $PPID
"""


@pytest.mark.long
@pytest.mark.usefixtures("packages")
def test_a_crash_costs_the_candidate_alone(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler that takes its process down: a sentence, and this process lives on."""
    bad = tmp_path / "c++"
    bad.write_text(_CRASH)
    bad.chmod(0o700)
    monkeypatch.setenv("CXX", str(bad))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    with pytest.raises(tt.BuildRefusedError, match="crashed with SIGKILL"):
        _built(_small(make), mode="aot")


_HANG = """#!/bin/sh
sleep 600
"""


@pytest.mark.long
@pytest.mark.usefixtures("packages")
def test_a_compiler_that_hangs_is_stopped(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the limit, and the compiler with it."""
    bad = tmp_path / "c++"
    bad.write_text(_HANG)
    bad.chmod(0o700)
    monkeypatch.setenv("CXX", str(bad))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    with pytest.raises(tt.OverrunError, match="exceeded its limit of 12 s"):
        _built(_small(make), tt.Limits(seconds=12), mode="aot")
