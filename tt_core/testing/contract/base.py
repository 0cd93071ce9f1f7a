"""What all promises share: the fixtures of a contract class, and the rungs that its tests are repeated on."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import pytest
import torch

from tt_core.testing.contract.shop import Made, Shop, loaded
from tt_core.testing.ladder import QUICK, Rung
from tt_core.values import Backend, Refusal, Tolerance, Unavailable

Test = TypeVar("Test", bound=Callable[..., None])


def having(what: str) -> Callable[[Test], Test]:
    """Repeats a test only on rungs that hold calls of a kind: `spellings`, `inside`, `outside`."""

    def mark(test: Test) -> Test:
        test.having = what  # type: ignore[attr-defined]
        return test

    return mark


class Base:
    """Fixtures and choices of a contract class.

    Attributes:
        backend: the declared backend that is tested; None: the first that the plugin declares.
        options: what its builds are asked for.
        rungs: the ladder; the first rung is the one that weights, threads, dumps and `close` are tried on.
        tolerance: for comparisons; a LOSSY backend states what it keeps here.
        light: top-level packages that declaring may import besides the plugin's own.
    """

    backend: ClassVar[str | None] = None
    options: ClassVar[Mapping[str, Any]] = {}
    rungs: ClassVar[Sequence[Rung]] = QUICK
    tolerance: ClassVar[Tolerance] = Tolerance()
    light: ClassVar[Collection[str]] = frozenset()

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Repeats a test that asks for `rung` on the class's rungs."""
        if "rung" in metafunc.fixturenames:
            what = getattr(metafunc.function, "having", None)
            rungs = [rung for rung in self.rungs if what is None or getattr(rung, what)()]
            metafunc.parametrize("rung", rungs, ids=str)

    @pytest.fixture
    def plugin(self) -> Any:
        """The plugin under test, a module or an object: the one thing that an author gives."""
        pytest.fail(f"{type(self).__name__} needs a fixture `plugin` that returns the plugin", pytrace=False)

    @pytest.fixture
    def device(self) -> torch.device:
        """Where units are; the CPU unless an author says otherwise."""
        return torch.device("cpu")

    @pytest.fixture
    def declared(self, plugin: Any) -> tuple[Backend, ...]:
        """What the plugin declares."""
        answer = plugin.tt_backends()
        return (answer,) if isinstance(answer, Backend) else tuple(answer)

    @pytest.fixture
    def declaration(self, declared: tuple[Backend, ...]) -> Backend:
        """The declaration of the backend under test."""
        found = [each for each in declared if self.backend in {None, each.name}]
        assert found, f"the plugin declares {', '.join(each.name for each in declared)}, not {self.backend!r}"
        return found[0]

    @pytest.fixture
    def shop(
        self, plugin: Any, device: torch.device, declaration: Backend, request: pytest.FixtureRequest
    ) -> Iterator[Shop]:
        """The class's workshop; skips where the backend does not run on the device, with its reason."""
        cls: Any = type(self)
        if "_shop" not in vars(cls):
            cls._shop = _opened(self, plugin, device, declaration)
            request.node.getparent(pytest.Class).addfinalizer(lambda: _shut(cls))
        if isinstance(cls._shop, str):
            pytest.skip(cls._shop)
        return cls._shop

    @pytest.fixture
    def main(self, shop: Shop) -> Made:
        """The first rung, built."""
        return shop.need(self.rungs[0])


def _opened(contract: Base, plugin: Any, device: torch.device, declaration: Backend) -> Shop | str:
    """A workshop, or why there is none."""
    if not {"*", device.type} & declaration.devices:
        return f"{declaration.name} runs on {', '.join(sorted(declaration.devices))}, not on {device.type}"
    plugins = loaded(plugin)
    assert declaration.name in plugins.backends, _why(plugins.refused)
    answer = plugins.probe(declaration.name, device)
    if isinstance(answer, Unavailable):
        return f"{declaration.name} is unavailable: {answer.reason}"
    return Shop(
        plugin=plugin,
        backend=declaration,
        options=contract.options,
        device=device,
        tolerance=contract.tolerance,
        plugins=plugins,
    )


def _why(refused: Sequence[Refusal]) -> str:
    return "the core refuses the plugin: " + "; ".join(f"{each.name}: {each.reason}" for each in refused)


def _shut(cls: Any) -> None:
    shop = vars(cls).get("_shop")
    del cls._shop
    if isinstance(shop, Shop):
        shop.close()
