"""Fake backends on a fake clock: plugins that are right, wrong, slow, raise, move tensors or meddle, exactly and at once.

bench = Bench()
model = nn.Sequential(FakeLayer(bench, seconds=0.010), FakeLayer(bench, seconds=0.010))
fast = FakeBackend(bench, "fast", pace=0.5)       # right, and twice as fast as eager
tt.auto_tune(model, data, settings=tt.Settings(plugins=(bench, fast)))
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

import torch
from torch import nn

from tt_core.hookspecs import hookimpl
from tt_core.testing.fake_clock import FakeClock
from tt_core.testing.wrong import WrongBackend
from tt_core.values import Backend, Built, Calls, Fidelity, Keeps, Unit, Weights

Pace = float | Callable[[Unit, Calls], float]


class Bench:
    """A pretend machine, and the plugin that measures by its clock: time moves only by the work that is done on it.

    Attributes:
        clock: what `tt_timer` gives.
    """

    __name__ = "bench"

    def __init__(self) -> None:
        self.clock = FakeClock()
        self._pace = 1.0

    @hookimpl
    def tt_timer(self) -> FakeClock:
        """The fake clock, for every device."""
        return self.clock

    def work(self, seconds: float) -> None:
        """Takes `seconds` at the present pace."""
        self.clock.sleep(seconds * self._pace)

    @contextlib.contextmanager
    def paced(self, pace: float) -> Iterator[None]:
        """All work inside the block takes `pace` times as long; 0.5 is twice as fast."""
        before = self._pace
        self._pace = before * pace
        try:
            yield
        finally:
            self._pace = before

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Itself: a copied model runs on the same machine."""
        return self


class FakeLayer(nn.Module):
    """`x @ weight + bias`, which takes `seconds` of a bench a call.

    Args:
        bench: the machine.
        seconds: of one call, at its own pace.
        size: features in and out.
        seed: of the weights.
    """

    def __init__(self, bench: Bench, seconds: float = 0.010, size: int = 4, seed: int = 0) -> None:
        super().__init__()
        drawn = torch.randn(size + 1, size, generator=torch.Generator().manual_seed(seed))
        self.weight, self.bias = nn.Parameter(drawn[:size].clone()), nn.Parameter(drawn[size].clone())
        self.bench, self.seconds = bench, seconds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps (..., size) to (..., size)."""
        self.bench.work(self.seconds)
        return x @ self.weight + self.bias


class FakeBackend:
    """A plugin with one backend that runs a unit's original forward at another pace.

    Args:
        bench: the machine that the units work on.
        name: of the backend.
        pace: seconds of a call by those of eager, or a function of unit and calls.
        breaks: how results are broken: one of `tt_core.testing.wrong.WRONG`, or a function from a callable to a wrong one.
        during: called with unit and calls inside each build, and may do anything: raise, move tensors, change flags.
        build_s: seconds that a build takes on the clock.
        baked: whether weights are copied at build, as a backend does that reads their values once.
        rebinds: whether `tt_rebind` answers.
        built: fields of the `Built`.
        declared: fields of the `Backend`.

    Attributes:
        log: what happened, in order: `("build", path)`, `("rebind", path)`, `("close", path)`.
        options: of each build, in order.
    """

    def __init__(
        self,
        bench: Bench,
        name: str = "fast",
        pace: Pace = 0.5,
        *,
        breaks: WrongBackend | Callable[[Callable[..., Any]], Callable[..., Any]] | None = None,
        during: Callable[[Unit, Calls], None] | None = None,
        build_s: float = 1.0,
        baked: bool = False,
        rebinds: bool = False,
        built: Mapping[str, Any] | None = None,
        **declared: Any,
    ) -> None:
        self.__name__ = f"plugin_{name}"
        self.name, self.log = name, list[tuple[str, str]]()
        self.options: list[Mapping[str, Any]] = []
        self._bench, self._pace, self._breaks, self._during = bench, pace, breaks, during
        self._build_s, self._baked, self._rebinds, self._built = build_s, baked, rebinds, dict(built or {})
        self._declared = {"devices": {"*"}, "fidelity": Fidelity.CLOSE, "keeps": frozenset(Keeps), **declared}

    def count(self, what: str, path: str | None = None) -> int:
        """How often something happened, over all units or on one."""
        return sum(done == what and path in {None, where} for done, where in self.log)

    @property
    def open(self) -> int:
        """Builts that were made and not closed."""
        return self.count("build") + self.count("rebind") - self.count("close")

    @hookimpl
    def tt_backends(self) -> Backend:
        """The one backend."""
        return Backend(name=self.name, **self._declared)

    @hookimpl
    def tt_build(self, unit: Unit, calls: Calls, options: Mapping[str, Any]) -> Built:
        """The original forward at another pace."""
        self.options.append(dict(options))
        if self._during is not None:
            self._during(unit, calls)
        self._bench.clock.sleep(self._build_s)
        self.log.append(("build", unit.path))
        pace = self._pace(unit, calls) if callable(self._pace) else self._pace
        return self._made(unit, calls, pace)

    @hookimpl
    def tt_rebind(self, built: Built, unit: Unit) -> Built | None:
        """The same for another unit, where the fake can."""
        if not self._rebinds:
            return None
        self.log.append(("rebind", unit.path))
        return self._made(unit, built.call.__dict__["calls"], built.call.__dict__["pace"])

    def _made(self, unit: Unit, calls: Calls, pace: float) -> Built:
        forward = copy.deepcopy(unit.forward) if self._baked else unit.forward
        call = _Paced(self._bench, self._broken(forward, calls), pace)
        call.calls, call.pace = calls, pace
        fields = {"weights": Weights.VALUES if self._baked else Weights.LIVE, **self._built}
        return Built(call=call, close=lambda: self.log.append(("close", unit.path)), **fields)

    def _broken(self, forward: Callable[..., Any], calls: Calls) -> Callable[..., Any]:
        if isinstance(self._breaks, WrongBackend):
            broken: Callable[..., Any] = self._breaks.breaks(forward, [sample.call for sample in calls.samples])
            return broken
        return forward if self._breaks is None else self._breaks(forward)


class Renamed:
    """A plugin whose one backend is eager under another name: with it only the core is at work on any model.

    Args:
        name: of the backend.
    """

    def __init__(self, name: str = "fast") -> None:
        self.__name__ = f"plugin_{name}"
        self._name = name

    @hookimpl
    def tt_backends(self) -> Backend:
        """The one backend, which keeps everything."""
        return Backend(
            name=self._name,
            devices=frozenset({"*"}),
            fidelity=Fidelity.EXACT,
            weights=Weights.LIVE,
            keeps=frozenset(Keeps),
        )

    @hookimpl
    def tt_build(self, unit: Unit) -> Built:
        """The original forward."""
        return Built(call=unit.forward, weights=Weights.LIVE)


class _Paced:
    """Runs a forward at another pace of the bench."""

    calls: Calls
    pace: float

    def __init__(self, bench: Bench, forward: Callable[..., Any], pace: float) -> None:
        self._bench, self._forward, self._factor = bench, forward, pace

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The forward's result."""
        with self._bench.paced(self._factor):
            return self._forward(*args, **kwargs)


def raising(bench: Bench, name: str = "broken", error: BaseException | None = None) -> FakeBackend:
    """A backend whose build raises."""

    def fail(unit: Unit, calls: Calls) -> None:  # noqa: ARG001
        raise RuntimeError("no kernel for this") if error is None else error

    return FakeBackend(bench, name, during=fail)


def tripling(bench: Bench, name: str = "tripled") -> FakeBackend:
    """A fast backend that gives three times the answer."""
    return FakeBackend(bench, name, 0.1, breaks=lambda call: lambda *args, **kwargs: 3 * call(*args, **kwargs))


def moving(bench: Bench, name: str = "moving") -> FakeBackend:
    """A fast backend whose build puts the unit's weights into other tensors and other memory, as a `.to()` does."""

    def move(unit: Unit, calls: Calls) -> None:  # noqa: ARG001
        for module in unit.module.modules():
            for own, tensor in list(module._parameters.items()):
                if tensor is not None:
                    tensor.data = tensor.data.clone()
                    module._parameters[own] = nn.Parameter(tensor.detach().clone(), requires_grad=False)

    return FakeBackend(bench, name, during=move)


def meddling(bench: Bench, name: str = "meddling") -> FakeBackend:
    """A fast backend whose build changes the process: RNG, default dtype, grad mode, threads, the unit's training flag."""

    def meddle(unit: Unit, calls: Calls) -> None:  # noqa: ARG001
        torch.manual_seed(99)
        torch.set_default_dtype(torch.float64)
        torch.set_grad_enabled(not torch.is_grad_enabled())
        torch.set_num_threads(1 + torch.get_num_threads() % 2)
        torch.use_deterministic_algorithms(not torch.are_deterministic_algorithms_enabled())
        unit.module.train(not unit.module.training)

    return FakeBackend(bench, name, during=meddle)
