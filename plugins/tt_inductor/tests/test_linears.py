"""oneDNN in the place of MKL: taken where it wins the race, right for every size and every weight, and said in a note."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
from jit_units import Make, assert_near, build_jit
from torch import nn
from tt_inductor import compiling, linears, products

import tt_core as tt

pytestmark = [
    pytest.mark.real,
    pytest.mark.usefixtures("no_grad", "uncached"),
    pytest.mark.skipif(linears.made() is None, reason="no oneDNN or no MKL here, or a pass is set already"),
]


class Net(nn.Module):
    """Two linear layers, one without a bias, and a product with a computed matrix, which is no layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 10), nn.Linear(10, 6, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.second(torch.relu(self.first(x)))
        return y @ (self.first.weight * x.mean()).t()


@pytest.fixture
def uncached() -> Iterator[None]:
    """A program of the compiler's cache holds what another race decided."""
    import torch._inductor.config

    with torch._inductor.config.patch(force_disable_caches=True):
        yield


@pytest.fixture(params=[True, False], ids=["wins", "loses"])
def wins(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether oneDNN wins every race."""
    answer: bool = request.param
    monkeypatch.setattr(products, "faster", lambda _product: answer)
    return answer


@pytest.mark.parametrize("freezing", [False, True])
def test_layers_are_replaced_where_it_wins(make: Make, wins: bool, freezing: bool) -> None:
    model, x = Net().eval(), torch.randn(4, 6)
    built = build_jit(make(model, tt.Call(x)), freezing=freezing)
    assert built.notes == (("oneDNN for 2 of 2 linear layers: raced here with MKL",) if wins else ())
    assert_near(built.call(x), model(x))


def test_live_weights_are_read_in_every_call(make: Make, wins: bool) -> None:
    model, x = Net().eval(), torch.randn(4, 6)
    built = build_jit(make(model, tt.Call(x)))
    with torch.no_grad():
        model.first.weight.mul_(2)
        model.second.weight = nn.Parameter(torch.randn(6, 10))
    assert_near(built.call(x), model(x))


@pytest.mark.parametrize("freezing", [False, True])
def test_sizes_may_move(make: Make, wins: bool, freezing: bool) -> None:
    model = Net().eval()
    built = build_jit(make(model, *(tt.Call(torch.randn(rows, 6)) for rows in (3, 8))), freezing=freezing)
    for rows in (3, 5, 8):
        x = torch.randn(rows, 6)
        assert_near(built.call(x), model(x))


@pytest.mark.parametrize("freezing", [False, True])
def test_an_input_may_be_strided(make: Make, wins: bool, freezing: bool) -> None:
    model, x = nn.Linear(6, 10).eval(), torch.randn(6, 4).t()
    built = build_jit(make(model, tt.Call(x)), freezing=freezing)
    assert_near(built.call(x), model(x))


def test_what_runs_is_onednn_where_it_wins(make: Make, wins: bool) -> None:
    model, x = Net().eval(), torch.randn(4, 6)
    built = build_jit(make(model, tt.Call(x)), freezing=True)
    with torch.profiler.profile(acc_events=True) as profile:
        built.call(x)
    ran = {event.key for event in profile.key_averages()}
    assert ("mkldnn::_linear_pointwise" in ran) is wins


@pytest.mark.parametrize("changed", ["float64", "strided", "three sizes"])
def test_what_it_was_not_raced_for_stays(make: Make, monkeypatch: pytest.MonkeyPatch, changed: str) -> None:
    monkeypatch.setattr(products, "faster", lambda _product: pytest.fail("raced"))
    model, x = nn.Linear(6, 10).eval(), torch.randn(4, 6)
    if changed == "float64":
        model, x = model.double(), x.double()
    elif changed == "strided":
        model.weight = nn.Parameter(torch.randn(6, 10).t())
    else:
        model, x = nn.Bilinear(6, 6, 10).eval(), torch.randn(4, 6)
    call = tt.Call(x, x) if changed == "three sizes" else tt.Call(x)
    built = build_jit(make(model, call))
    assert not built.notes
    assert_near(built.call(*call.args), model(*call.args))


def test_the_option_turns_it_off(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "faster", lambda _product: pytest.fail("raced"))
    assert not build_jit(make(Net().eval(), tt.Call(torch.randn(4, 6))), onednn=False).notes


def test_a_pass_of_the_caller_stays(make: Make) -> None:
    import torch._inductor.config

    ran: list[torch.fx.Graph] = []
    with torch._inductor.config.patch({linears.SETTING: ran.append}):
        assert linears.made() is None
        built = build_jit(make(Net().eval(), tt.Call(torch.randn(4, 6))))
    assert ran
    assert not built.notes


def test_nothing_is_left_set(make: Make) -> None:
    import torch._inductor.config

    build_jit(make(Net().eval(), tt.Call(torch.randn(4, 6))))
    assert getattr(torch._inductor.config, linears.SETTING) is None


def test_layers_that_share_a_weight_are_right(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "faster", lambda _product: True)
    layer, x = nn.Linear(6, 6), torch.randn(4, 6)
    model = nn.Sequential(layer, nn.ReLU(), layer, nn.ReLU(), copy.deepcopy(layer)).eval()
    built = build_jit(make(model, tt.Call(x)), freezing=True)
    assert_near(built.call(x), model(x))


@pytest.mark.usefixtures("packages")
def test_packages_take_it_too(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job runs in this process, where the race is decided; its weights are the module's own, and not packed."""
    from tt_inductor import aot
    from tt_inductor.options import Options

    monkeypatch.setattr(products, "faster", lambda _product: True)
    replaced: list[object] = []
    real = linears._replace
    monkeypatch.setattr(linears, "_replace", lambda *given: (replaced.append(given), real(*given)))
    monkeypatch.setattr(tt, "in_worker", lambda _job, arguments, *, folder, seconds: compile_here(folder, arguments))
    model, x = Net().eval(), torch.randn(4, 6)
    unit, calls = make(model, tt.Call(x))
    built = aot.build(unit, calls, Options(mode="aot"), torch.device("cpu"), tt.Limits(seconds=100))
    assert len(replaced) == 2
    with torch.no_grad():
        model.first.weight.mul_(2)
    assert_near(built.call(x), model(x))


def compile_here(folder: object, arguments: dict[str, object]) -> None:
    compiling.compile_job(folder, **arguments)  # type: ignore[arg-type]
