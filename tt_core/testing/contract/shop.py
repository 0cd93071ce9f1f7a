"""The workshop of one contract class: builds each rung once, and notes what the build did besides."""

from __future__ import annotations

import contextlib
import inspect
import io
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch

from tt_core import samples, trees
from tt_core.build import close, compose
from tt_core.check import whole
from tt_core.contain import Caught, attempt
from tt_core.errors import BuildRefusedError, FallbackWarning
from tt_core.guards import UNREADABLE, Claim, Guard, compile_guard
from tt_core.install import Serving
from tt_core.plugins import Plugins
from tt_core.plugins.registry import BUILTIN
from tt_core.samples import observe
from tt_core.state import identical, kept, seed
from tt_core.testing.contract.portrait import Portrait, Process
from tt_core.testing.ladder import Rung
from tt_core.values import Backend, Built, Call, Calls, Candidate, Limits, Observation, Tolerance, Unit, Weights

_BYTES = 1 << 28
_SECONDS = 600.0
_SEED = 0


@attrs.define(kw_only=True)
class Made:
    """A rung that was built, or why it was not.

    Attributes:
        rung: the rung.
        unit: the rung's module as a unit, on the device.
        calls: what was recorded from eager.
        built: what `tt_build` returned, under a layer the whole chain; None where it was refused or failed.
        refused: the refusal, as it was raised.
        skip: why nothing can be asked of the rung; empty where it was built.
        failed: what went wrong in the build, in a sentence; empty where it was built or refused.
        process: what the build changed for the whole process.
        module: what the build changed in the module.
        samples: whether the build wrote to the recorded calls.
        printed: what the build printed.
    """

    rung: Rung
    unit: Unit
    calls: Calls
    built: Built | None = None
    refused: BuildRefusedError | None = None
    skip: str = ""
    failed: str = ""
    process: tuple[str, ...] = ()
    module: tuple[str, ...] = ()
    samples: bool = False
    printed: str = ""

    @property
    def ready(self) -> Built:
        """The built."""
        assert self.built is not None
        return self.built

    @property
    def recorded(self) -> tuple[Call, ...]:
        """The recorded calls, in the order of the samples."""
        return tuple(sample.call for sample in self.calls.samples)

    def guard(self) -> Guard:
        """The core's guard for the built, of the module as it is now."""
        built = self.ready
        claim = Claim(
            key=self.calls.key,
            covers=built.covers,
            weights=built.weights,
            facts=self.calls.facts,
            needs_strides=built.needs_strides,
            fork_safe=built.fork_safe,
        )
        return compile_guard(self.unit, claim)


@attrs.define(kw_only=True)
class Shop:
    """Builds rungs with one backend of one plugin.

    Attributes:
        plugin: the plugin under test.
        backend: the backend's declaration.
        options: what builds are asked for.
        device: where.
        tolerance: for comparisons.
    """

    plugin: Any
    backend: Backend
    options: Mapping[str, Any]
    device: torch.device
    tolerance: Tolerance
    plugins: Plugins
    _rungs: dict[str, Made] = attrs.field(factory=dict)
    _folder: tempfile.TemporaryDirectory[str] = attrs.field(factory=tempfile.TemporaryDirectory)
    _files: int = 0

    def hook(self, name: str, /, **arguments: Any) -> Any:
        """Asks the plugin itself, without containment: what it changes can be seen. Hooks get what they name.

        Raises:
            Exception: whatever the plugin raises.
        """
        function = getattr(self.plugin, name)
        return function(**{wanted: arguments[wanted] for wanted in inspect.signature(function).parameters})

    def has(self, hook: str) -> bool:
        """Whether the plugin implements a hook."""
        return callable(getattr(self.plugin, hook, None))

    @property
    def limits(self) -> Limits:
        """Limits with a new private folder."""
        self._files += 1
        folder = Path(self._folder.name) / str(self._files)
        folder.mkdir()
        return Limits(seconds=_SECONDS, folder=folder)

    def made(self, rung: Rung) -> Made:
        """A rung, built when it is first asked for."""
        if rung.name not in self._rungs:
            self._rungs[rung.name] = self.fresh(rung)
        return self._rungs[rung.name]

    def need(self, rung: Rung) -> Made:
        """A rung that was built; skips the test with the reason where it was not."""
        made = self.made(rung)
        if made.failed:
            pytest.skip(f"{rung}: its build failed, see test_builds_or_refuses")
        if made.skip:
            pytest.skip(f"{rung}: {made.skip}")
        return made

    def fresh(self, rung: Rung, seed: int = 1) -> Made:
        """Records and builds a rung anew; the caller closes it."""
        made = self.recorded(rung, seed)
        lost = made.calls.facts.needs - self.backend.keeps
        if lost:
            made.skip = f"{self.backend.name} does not declare to keep {' and '.join(sorted(k.value for k in lost))}"
            return made
        self._build(made)
        return made

    def recorded(self, rung: Rung, seed: int = 1) -> Made:
        """A rung that eager ran, and nothing was built for."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module = rung.make(self.backend.keeps).eval().to(self.device)
        unit = Unit(path="", module=module, forward=module.forward)
        feed = samples.read([self.moved(call) for call in rung.calls()], module)
        found = samples.record(module, feed, [unit], byte_cap=_BYTES, seed=_SEED)[""]
        assert len(found) == 1, f"the rung {rung} has calls of {len(found)} keys"
        assert not found[0].untunable, found[0].untunable
        return Made(rung=rung, unit=unit, calls=found[0])

    def moved(self, call: Call) -> Call:
        """A call with its tensors on the device."""
        args, kwargs = trees.mapped(lambda tensor: tensor.to(self.device), (call.args, call.kwargs))
        return Call(*args, **kwargs)

    def _build(self, made: Made) -> None:
        portrait, given = Portrait(made.unit.module), trees.replica([(c.args, c.kwargs) for c in made.recorded])
        text = io.StringIO()

        def build() -> Any:
            with torch.no_grad(), _noted(made), contextlib.redirect_stdout(text):
                try:
                    return self._built(made)
                except BuildRefusedError as refused:
                    return refused

        answer = attempt(build, where=f"tt_build of {self.backend.name!r}")
        made.printed = text.getvalue()
        made.module = portrait.changed()
        portrait.restore()
        made.samples = not _alike(given, [(call.args, call.kwargs) for call in made.recorded])
        if isinstance(answer, Caught):
            made.failed = f"tt_build raised {answer.kind}: {answer.reason}\n{answer.detail}"
        elif isinstance(answer, BuildRefusedError):
            made.refused, made.skip = answer, f"refused: {answer.reason}"
        elif isinstance(answer, Built):
            made.built = answer
        else:
            made.failed = f"tt_build answered {type(answer).__name__}, not tt.Built"

    def _built(self, made: Made) -> Any:
        arguments = {"backend": self.backend.name, "unit": made.unit, "calls": made.calls, "device": self.device}
        inner = Built(call=made.unit.forward, weights=Weights.LIVE) if self.backend.layer else None
        built = self.hook("tt_build", **arguments, options=self.options, inner=inner, limits=self.limits)
        return compose([inner, built]) if inner is not None and isinstance(built, Built) else built

    # running

    def eager(self, made: Made, call: Call) -> Any:
        """What the original forward makes of a call."""
        return self.run(made, made.unit.forward, call)

    def run(self, made: Made, forward: Callable[..., Any], call: Call) -> Any:
        """What `forward` makes of a replica of a call: seeded, without gradients, the module's state put back."""
        args, kwargs = trees.replica((call.args, call.kwargs))
        with calm(), kept(made.unit.module), torch.no_grad():
            seed(_SEED)
            return forward(*args, **kwargs)

    def served(self, made: Made, call: Call) -> Any:
        """What a call is answered that was not recorded: by the built, or by the original where the built hands it back."""
        return self.run(made, Serving(made.ready.call, made.unit.forward), call)

    def observed(self, made: Made) -> tuple[Observation, ...]:
        """What the built does on the recorded calls, all of it."""
        with calm():
            return observe(made.ready.call, made.unit, made.recorded, seed=_SEED)

    def same(self, expected: Any, actual: Any, what: str) -> None:
        """Fails unless a result is eager's, as far as rounding goes.

        Raises:
            AssertionError: with the place.
        """
        verdict = whole([expected], [actual], self.tolerance)
        assert verdict.ok, f"{what}: {verdict.reason}"

    def candidate(self) -> Candidate:
        """The backend with its options."""
        return Candidate(steps=((self.backend.name, self.options),))

    def close(self) -> None:
        """Closes what was built."""
        close([made.built for made in self._rungs.values() if made.built is not None])
        self._rungs.clear()
        self._folder.cleanup()


def accepts(guard: Guard, call: Call) -> bool:
    """Whether a guard lets a call through, called without gradients as in service; also what it asks after the launch."""
    with torch.no_grad():
        try:
            return bool(guard.accepts(*call.args, **call.kwargs)) and (guard.after is None or guard.after())
        except UNREADABLE:
            return False


@contextlib.contextmanager
def calm() -> Iterator[None]:
    """A built that says that it ran the original forward is right, whatever the test's filters say."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        yield


def module_of(plugin: Any) -> str:
    """The name that a plugin is imported by; empty for an object that is no module."""
    return plugin.__name__ if inspect.ismodule(plugin) else ""


def loaded(plugin: Any) -> Plugins:
    """The core's own plugins with the one under test, and none that is installed."""
    extra = () if module_of(plugin) in BUILTIN else (plugin,)
    return Plugins.load(extra=extra, environ={"TT_DISABLE_AUTOLOAD": "1"})


@contextlib.contextmanager
def _noted(made: Made) -> Iterator[None]:
    """Notes what the block changes for the whole process."""
    before = Process()
    try:
        yield
    finally:
        made.process = before.changed()


def _alike(left: Any, right: Any) -> bool:
    return all(identical(a, b) for a, b in zip(trees.tensors(left), trees.tensors(right), strict=True))
