"""Guards of Dynamo: with baked weights, none that the dispatcher asks already, and all others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from jit_units import Make, assert_near, build_jit
from torch import nn
from tt_inductor import jit, watched

import tt_core as tt
from tt_core.install import Dispatcher, Entry, dispatcher

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("no_grad")]

FACTOR = 1.0


class Layer(nn.Module):
    offset = 0.0

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.linear, self.act = nn.Linear(8, 8), torch.relu
        self.config, self.scale = config, 2.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.linear(x)) * self.scale * self.config.gain + self.offset


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        config = SimpleNamespace(gain=1.0)
        self.layers = nn.ModuleList(Layer(config) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x * FACTOR


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, bool]]:
    """Each guard that Dynamo made, and whether it is asked."""
    seen: list[tuple[Any, bool]] = []
    real = jit.filter_for

    def noted(module: nn.Module) -> watched.Filter | None:
        keep = real(module)
        assert keep is not None

        def told(guards: Sequence[Any]) -> list[bool]:
            found = keep(guards)
            seen.extend(zip(guards, found, strict=True))
            return found

        return told

    monkeypatch.setattr(jit, "filter_for", noted)
    return seen


def test_what_the_dispatcher_looks_at_is_not_asked_again(make: Make, asked: list[tuple[Any, bool]]) -> None:
    """No module, tensor, hook or constant of the tree; one configuration of three layers once; the call's own tensor."""
    model, x = Net().eval(), torch.randn(4, 8)
    built = build_jit(make(model, tt.Call(x)), freezing=True)
    kept = [guard for guard, keep in asked if keep]
    tree = {id(each) for each in (*model.modules(), *model.parameters())}
    assert not [guard.name for guard in kept if id(guard.value) in tree]
    assert not [guard.name for guard in kept if type(guard.value) is float and guard.value == 2.0]
    assert not [guard.name for guard in kept if "hooks" in guard.name]
    assert len([guard for guard in kept if guard.name.endswith(".gain")]) == 1
    assert [guard for guard in kept if guard.guard_type == "TENSOR_MATCH" and not guard.is_global]
    assert len(kept) < len(asked) / 2
    assert_near(built.call(x), model(x))


def test_where_weights_are_read_dynamo_looks(make: Make, asked: list[tuple[Any, bool]]) -> None:
    """The dispatcher looks at nothing then."""
    build_jit(make(Net().eval(), tt.Call(torch.randn(4, 8))))
    assert not asked


@pytest.mark.parametrize("what", ["configuration", "global", "class"])
def test_what_only_dynamo_knows_is_still_asked(make: Make, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """Inside of an attribute, a global of the unit's author, a setting of a class: the call is handed back."""
    model, x = Net().eval(), torch.randn(4, 8)
    built = build_jit(make(model, tt.Call(x)), freezing=True)
    assert_near(built.call(x), model(x))
    if what == "configuration":
        model.layers[1].config.gain = 3.0  # type: ignore[union-attr]
    elif what == "global":
        monkeypatch.setitem(globals(), "FACTOR", 2.0)
    else:
        monkeypatch.setattr(Layer, "offset", 1.0)
    with pytest.raises(tt.DeclinedError, match=r"tt\.refresh"):
        built.call(x)


CHANGES: dict[str, Callable[[Net], Any]] = {
    "weight": lambda net: net.layers[0].linear.weight.mul_(2.0),  # type: ignore[union-attr, operator]
    "constant": lambda net: setattr(net.layers[1], "scale", 3.0),
    "function": lambda net: setattr(net.layers[1], "act", torch.tanh),
    "setting of the class": lambda net: setattr(net.layers[1], "offset", 1.0),
    "hook": lambda net: net.layers[2].register_forward_hook(lambda _module, _args, output: output * 2),
    "forward": lambda net: setattr(net.layers[2], "forward", torch.tanh),
    "layer": lambda net: net.layers.append(nn.Linear(8, 8)),
    "configuration": lambda net: setattr(net.layers[1], "config", SimpleNamespace(gain=3.0)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_tuned_model_is_never_stale(make: Make, change: str) -> None:
    """What changes after the build is in the next result, and the call is counted as a fall."""
    model, x = Net().eval(), torch.randn(4, 8)
    unit, calls = make(model, tt.Call(x))
    built = build_jit((unit, calls), freezing=True)
    candidate = tt.Candidate.of("inductor", freezing=True)
    entry = Entry(
        unit=unit, key=calls.key, built=built, covers=built.covers, facts=calls.facts, candidate=candidate, calls=calls
    )
    tuned = dispatcher(unit, [entry])
    before = tuned(x)
    assert_near(before, model(x))
    assert not _falls(tuned)
    CHANGES[change](model)
    with pytest.warns(tt.FallbackWarning):
        after = tuned(x)
    assert_near(after, model(x))
    assert not torch.allclose(before, after)
    assert _falls(tuned) == 1


def _falls(tuned: Dispatcher) -> int:
    return sum(count.value for count in tuned.falls.values())


def test_without_the_option_all_is_asked(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch that lets nobody choose its guards: nothing is chosen."""
    monkeypatch.delattr(torch.compiler, "skip_guard_on_all_nn_modules_unsafe")
    model, x = Net().eval(), torch.randn(4, 8)
    assert watched.filter_for(model) is None
    assert_near(build_jit(make(model, tt.Call(x)), freezing=True).call(x), model(x))
