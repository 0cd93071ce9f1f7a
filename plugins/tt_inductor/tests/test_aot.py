"""Mode "aot": one package for all twins, and each silent trap of AOTInductor refused or guarded."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import tt_inductor
from models import Layer
from torch import nn

import tt_core as tt
from tt_core.callkey import key_of

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("packages", "no_grad")]
Make = Callable[..., tuple[tt.Unit, tt.Calls]]
Elsewhere = Callable[[str], subprocess.CompletedProcess[str]]
CPU = torch.device("cpu")
NO_LIMITS = tt.Limits(seconds=600)


def _call(n: int, **changed: torch.Tensor) -> tt.Call:
    tensors = {"a": torch.randn(n, 8), "b": torch.randn(n, 8), "shift": torch.randn(n, 4)} | changed
    return tt.Call({"a": tensors["a"], "b": tensors["b"]}, tensors["shift"], steps=3)


def _aot(pair: tuple[tt.Unit, tt.Calls], **options: Any) -> tt.Built:
    unit, calls = pair
    return tt_inductor.tt_build(
        unit=unit, calls=calls, device=CPU, options={"mode": "aot", **options}, limits=NO_LIMITS
    )


def _unit(module: nn.Module, twin: str = "") -> tt.Unit:
    return tt.Unit(path="other", module=module, forward=module.forward, twin=twin)


def _same(built: tt.Built, module: nn.Module, call: tt.Call) -> None:
    torch.testing.assert_close(
        built.call(*call.args, **call.kwargs), module(*call.args, **call.kwargs), rtol=1e-5, atol=1e-5
    )


@pytest.fixture(scope="module")
def compiled() -> Iterator[list[str]]:
    """The jobs that were given to processes of their own in this file, one entry each."""
    jobs: list[str] = []
    real = tt.in_worker

    def counting(job: str, arguments: Any, **kwargs: Any) -> Any:
        jobs.append(job)
        return real(job, arguments, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tt, "in_worker", counting)
        yield jobs


@pytest.fixture(scope="module")
def layer(make: Make, compiled: list[str]) -> tuple[Layer, tt.Built]:
    """One layer and its package, built for first axes of 2 to 9."""
    with torch.no_grad():
        torch.manual_seed(0)
        module = Layer().eval()
        built = _aot(make(module, _call(2), _call(9)))
        assert compiled == ["tt_inductor.compiling:compile_job"]
        return module, built


def test_results_and_claims(layer: tuple[Layer, tt.Built]) -> None:
    """Eager's result over the range, constants and inputs returned as they are, weights read from their storage."""
    module, built = layer
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for n in range(2, 10):
            _same(built, module, _call(n))
    call = _call(4)
    result = built.call(*call.args, **call.kwargs)
    assert result["a"] is call.args[0]["a"]
    assert (result["steps"], result["none"]) == (3, None)
    assert built.weights is tt.Weights.STORAGE
    assert built.covers is not None
    assert built.covers.leaves[0][0] == built.covers.leaves[2][0] == tt.Axis(lo=2, hi=9, symbol="s0")


def test_weights_changed_in_place_are_seen(layer: tuple[Layer, tt.Built]) -> None:
    """Small, scalar, non-persistent, tied and turned weights alike: none is written into the code."""
    module, built = layer
    for tensor in (module.small, module.scalar, module.turned, module.first.weight, module.first.bias):
        tensor.add_(0.25)
        _same(built, module, _call(5))


@pytest.mark.parametrize("kind", ["strided", "sliced", "expanded", "misaligned"])
def test_inputs_of_any_strides(layer: tuple[Layer, tt.Built], kind: str) -> None:
    """The program is given contiguous and aligned memory whatever arrives, without a warning."""
    module, built = layer
    given = {
        "strided": torch.randn(8, 6).t(),
        "sliced": torch.randn(12, 8)[::2],
        "expanded": torch.randn(1, 8).expand(6, 8),
        "misaligned": torch.randn(49)[1:].view(6, 8),
    }[kind]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _same(built, module, _call(6, a=given, b=given))


def test_a_dict_in_another_order(layer: tuple[Layer, tt.Built]) -> None:
    """Tensors are found by key."""
    module, built = layer
    call = _call(3)
    batch = call.args[0]
    turned = tt.Call({"b": batch["b"], "a": batch["a"]}, call.args[1], steps=3)
    expected = module(*call.args, **call.kwargs)["y"]
    torch.testing.assert_close(built.call(*turned.args, **turned.kwargs)["y"], expected)


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(_call(10), id="out of range"),
        pytest.param(_call(1), id="size 1"),
        pytest.param(_call(8, shift=torch.randn(1, 4)), id="broadcast"),
        pytest.param(_call(8, shift=torch.randn(7, 4)), id="unequal axes"),
        pytest.param(_call(8, shift=torch.randn(8, 4, dtype=torch.float64)), id="dtype"),
    ],
)
def test_a_call_that_the_program_is_not_right_for(layer: tuple[Layer, tt.Built], call: tt.Call) -> None:
    """It is handed back before anything ran: never memory from outside, never garbage."""
    with pytest.raises(tt.DeclinedError, match="not right"):
        layer[1].call(*call.args, **call.kwargs)


def test_a_scalar_of_another_value_is_another_key() -> None:
    """Constants are compiled in: the core's key keeps such a call away."""
    module, call = Layer().eval(), _call(4)
    other = tt.Call(*call.args, **{**call.kwargs, "scale": 2.0})
    assert key_of(module.forward, call, training=False) != key_of(module.forward, other, training=False)


def test_twins_share_one_package(layer: tuple[Layer, tt.Built], compiled: list[str]) -> None:
    """Five twins with their own weights, right each, and nothing compiled; one whose print the core knows, too."""
    module, built = layer
    twins = [Layer().eval() for _ in range(5)]
    rebound = [tt_inductor.tt_rebind(built=built, unit=_unit(twin)) for twin in twins]
    for twin, one in zip(twins, rebound, strict=True):
        assert one is not None
        assert one.weights is tt.Weights.STORAGE
        _same(one, twin, _call(7))
    _same(built, module, _call(7))
    twins[0].small.fill_(3.0)
    assert rebound[0] is not None
    _same(rebound[0], twins[0], _call(7))
    assert len(compiled) == 1


def test_a_twin_of_another_cut_shares_the_package(
    make: Make, layer: tuple[Layer, tt.Built], compiled: list[str]
) -> None:
    """The core does not know that they are twins and asks for a build: the program is known, and nothing compiled."""
    twin = Layer().eval()
    built = _aot(make(twin, _call(2), _call(9)))
    _same(built, twin, _call(7))
    _same(layer[1], layer[0], _call(7))
    assert len(compiled) == 1


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(Layer(dense=True), id="another stride"),
        pytest.param(Layer(factor=0.75), id="another scalar"),
        pytest.param(Layer(tie=False), id="not tied"),
        pytest.param(Layer().double(), id="another dtype"),
        pytest.param(nn.Linear(8, 4), id="another class"),
    ],
)
def test_what_is_no_twin_is_built_anew(layer: tuple[Layer, tt.Built], other: nn.Module) -> None:
    """None, instead of a program that gives wrong results without an error."""
    assert tt_inductor.tt_rebind(built=layer[1], unit=_unit(other.eval())) is None


def test_threads(layer: tuple[Layer, tt.Built]) -> None:
    """Four threads at once, each with its own sizes."""
    module, built = layer
    failed: list[BaseException] = []

    def work(n: int) -> None:
        with torch.no_grad():
            call = _call(n)
            try:
                for _ in range(100):
                    _same(built, module, call)
            except BaseException as error:  # noqa: BLE001  reported by the main thread
                failed.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in (3, 4, 5, 6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


class Counting(nn.Module):
    calls: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        return x * self.calls


@pytest.mark.parametrize(
    ("module", "call", "facts", "reason"),
    [
        (Counting(), tt.Call(torch.randn(3)), {}, "state"),
        (nn.ReLU(inplace=True), tt.Call(torch.randn(3)), {"writes_inputs": True}, "inputs"),
        (nn.Dropout().train(), tt.Call(torch.randn(3)), {"random": True}, "random"),
        (nn.Identity(), tt.Call(torch.randn(3, dtype=torch.complex64)), {}, "real"),
        (nn.Flatten(), tt.Call(torch.randn(3, 2, 2)), {}, "shares memory"),
    ],
)
def test_what_a_package_cannot_keep_is_refused(
    make: Make, module: nn.Module, call: tt.Call, facts: dict[str, Any], reason: str
) -> None:
    """Writes to state (right once, then wrong), to inputs, random numbers, complex tensors, views of inputs."""
    with pytest.raises(tt.BuildRefusedError, match=reason):
        _aot(make(module, call, **facts))


def test_calls_under_autocast_are_refused(make: Make) -> None:
    """An exported program knows nothing of autocast, and would answer in another dtype."""
    with torch.autocast("cpu", torch.bfloat16):
        pair = make(nn.Linear(3, 3), tt.Call(torch.randn(2, 3)))
    with pytest.raises(tt.BuildRefusedError, match="autocast"):
        _aot(pair)


class Attribute(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.randn(3)
        self.linear = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) + self.table


@pytest.mark.long
def test_a_tensor_that_is_no_parameter_is_baked(make: Make) -> None:
    """A plain tensor attribute has no name to bind: its values stay in the package, which then has no twins."""
    module = Attribute().eval()
    built = _aot(make(module, tt.Call(torch.randn(2, 3))))
    x = torch.randn(2, 3)
    torch.testing.assert_close(built.call(x), module(x))
    assert built.weights is tt.Weights.VALUES
    assert built.notes == ("reads tensors that are no parameters: unit.table",)
    assert tt_inductor.tt_rebind(built=built, unit=_unit(module)) is None
    with pytest.raises(tt.BuildRefusedError, match="baked"):
        tt_inductor.tt_dump(built=built, folder=Path("unused"))
    built.close()
    with pytest.raises(tt.TTError, match="closed"):
        built.call(x)


_RESTORE = """
import json, sys, warnings
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import torch, tt_core as tt, tt_inductor
from tt_core.callkey import key_of
from models import Layer
folder = Path(sys.argv[2])
saved = torch.load(folder / "calls.pt", weights_only=True)
module = Layer().eval()
module.load_state_dict(saved["state"])
module.small.copy_(saved["small"])
batch, shift = {"a": saved["a"], "b": saved["b"]}, saved["shift"]
key = key_of(module.forward, tt.Call(batch, shift, steps=3), training=False)
axis = tt.Axis(lo=2, hi=9, symbol="s0")
unit = tt.Unit(path="restored", module=module, forward=module.forward)
dumped = json.loads((folder / "dumped.json").read_text())
with torch.no_grad():
    built = tt_inductor.tt_restore(
        unit=unit, key=key, covers=tt.Shapes(leaves=((axis, 8), (axis, 8), (axis, 4))), dumped=dumped, folder=folder / "moved",
        device=torch.device("cpu"),
    )
    warnings.simplefilter("error")
    torch.testing.assert_close(built.call(batch, shift, steps=3)["y"], saved["y"])
    module.scalar.add_(1)
    torch.testing.assert_close(built.call(batch, shift, steps=3), module(batch, shift, steps=3))
    twin = Layer().eval()
    bound = tt_inductor.tt_rebind(built=built, unit=tt.Unit(path="twin", module=twin, forward=twin.forward))
    torch.testing.assert_close(bound.call(batch, shift, steps=3), twin(batch, shift, steps=3))
    (folder / "again").mkdir()
    assert tt_inductor.tt_dump(built=built, folder=folder / "again") == dumped
    assert (folder / "again" / "package.pt2").read_bytes() == (folder / "moved" / "package.pt2").read_bytes()
print("restored")
"""


@pytest.mark.long
def test_a_fresh_process_restores_without_a_compiler(
    layer: tuple[Layer, tt.Built], tmp_path: Path, elsewhere: Elsewhere
) -> None:
    """Moved, with an empty home and no compiler at all: the same results, a twin, and the same file once more.

    The file names neither user nor place.
    """
    module, built = layer
    (tmp_path / "first").mkdir()
    dumped = tt_inductor.tt_dump(built=built, folder=tmp_path / "first")
    (tmp_path / "dumped.json").write_text(json.dumps(dumped), encoding="utf-8")
    (tmp_path / "first").rename(tmp_path / "moved")
    content = (tmp_path / "moved" / "package.pt2").read_bytes()
    for place in ("torchinductor_", sys.prefix, str(Path.home())):
        assert place.encode() not in content
    call = _call(6)
    tensors = {**call.args[0], "shift": call.args[1], "y": module(*call.args, **call.kwargs)["y"]}
    torch.save({"state": module.state_dict(), "small": module.small, **tensors}, tmp_path / "calls.pt")
    done = elsewhere(_RESTORE)
    assert (done.returncode, done.stdout.strip()) == (0, "restored"), done.stderr


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"format": 99}, "format 99"),
        ({"machine": {"torch": "1.0"}}, "compiled for torch 1.0"),
        ({"machine": {"features": ["flying"]}}, "lacks flying"),
        ({"weights": []}, "other weights"),
    ],
)
def test_a_file_from_elsewhere_is_refused(
    layer: tuple[Layer, tt.Built], make: Make, tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    """Another format, another torch, a processor that lacks instructions, weights that do not fit: a sentence each."""
    module, built = layer
    dumped = dict(tt_inductor.tt_dump(built=built, folder=tmp_path))
    for name, value in change.items():
        dumped[name] = {**dumped[name], **value} if isinstance(value, dict) else value
    unit, calls = make(module, _call(2), _call(9))
    with pytest.raises(tt.BuildRefusedError, match=reason):
        tt_inductor.tt_restore(
            unit=unit, key=calls.key, covers=built.covers, dumped=dumped, folder=tmp_path, device=CPU
        )


def test_jit_has_nothing_to_dump(tmp_path: Path) -> None:
    """What was compiled by `torch.compile` is built anew when it is loaded."""
    with pytest.raises(tt.BuildRefusedError, match="nothing to write"):
        tt_inductor.tt_dump(built=tt.Built(call=torch.sin), folder=tmp_path)
