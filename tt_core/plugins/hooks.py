"""One typed method per hook, and the three ways of asking: the owner, each plugin, the first that answers."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch

from tt_core.contain import Caught, attempt
from tt_core.errors import PluginError
from tt_core.hookspecs import Timer
from tt_core.plugins.registry import Registry
from tt_core.values import (
    Built,
    CallKey,
    Calls,
    Facts,
    Limits,
    Observation,
    Ready,
    Shapes,
    Tolerance,
    Trial,
    Unavailable,
    Unit,
    Verdict,
)

T = TypeVar("T")
_probed: dict[tuple[int, str, str], tuple[object, Ready | Unavailable]] = {}
"""Probes are asked once per process; the plugin is held, so that its id stays its own."""


class Plugins(Registry):
    """The plugins of one run. What could not take part is in `refused`, each with its sentence."""

    def probe(self, name: str, device: torch.device) -> Ready | Unavailable:
        """Whether a backend can run on `device`; asked once per process."""
        plugin = self._owned[name].plugin
        place = (id(plugin), name, str(device))
        if place not in _probed:
            _probed[place] = (plugin, self._probe(name, device))
        return _probed[place][1]

    def _probe(self, name: str, device: torch.device) -> Ready | Unavailable:
        answer = self._ask(name, "tt_probe", (Ready, Unavailable, type(None)), backend=name, device=device)
        if isinstance(answer, Caught):
            return Unavailable(reason=f"its probe failed: {answer.kind}: {answer.reason}", hint=answer.hint)
        return answer or Ready()

    def build(
        self,
        name: str,
        unit: Unit,
        calls: Calls,
        device: torch.device,
        options: Mapping[str, Any],
        inner: Built | None,
        limits: Limits,
    ) -> Built | Caught:
        """Asks the owner to build."""
        arguments = {"unit": unit, "calls": calls, "device": device, "options": options, "inner": inner}
        answer: Built | Caught = self._ask(name, "tt_build", Built, backend=name, limits=limits, **arguments)
        return answer

    def rebind(self, name: str, built: Built, unit: Unit, limits: Limits) -> Built | Caught | None:
        """Asks the owner for the same program with another unit's weights."""
        answer: Built | Caught | None = self._ask(
            name, "tt_rebind", (Built, type(None)), backend=name, built=built, unit=unit, limits=limits
        )
        return answer

    def dump(self, name: str, built: Built, folder: Path) -> Mapping[str, Any] | Caught:
        """Asks the owner to write a built into `folder`."""
        answer: Mapping[str, Any] | Caught = self._ask(
            name, "tt_dump", Mapping, backend=name, built=built, folder=folder
        )
        return answer

    def restore(
        self,
        name: str,
        unit: Unit,
        key: CallKey,
        covers: Shapes | None,
        dumped: Mapping[str, Any],
        folder: Path,
        device: torch.device,
        inner: Built | None,
    ) -> Built | Caught:
        """Asks the owner to make a built again."""
        arguments = {"unit": unit, "key": key, "covers": covers, "dumped": dumped, "folder": folder, "device": device}
        answer: Built | Caught = self._ask(name, "tt_restore", Built, backend=name, inner=inner, **arguments)
        return answer

    def check(
        self,
        facts: Facts,
        expected: Sequence[Observation],
        actual: Sequence[Observation],
        truth: Sequence[Observation | None],
        tolerance: Tolerance,
    ) -> tuple[Verdict, ...]:
        """Every plugin's verdict; raising or answering nonsense is a veto."""
        arguments = {"facts": facts, "expected": expected, "actual": actual, "truth": truth, "tolerance": tolerance}
        verdicts: list[Verdict] = []
        for name, answer in self._each("tt_check", (Verdict, type(None)), **arguments):
            if isinstance(answer, Caught):
                verdicts.append(Verdict.no(f"the check of plugin {name!r} failed: {answer.kind}: {answer.reason}"))
            elif answer is not None:
                verdicts.append(answer)
        return tuple(verdicts)

    def timer(self, device: torch.device) -> Timer:
        """The first timer that a plugin offers for `device`; the core's own otherwise."""
        impls = self._manager.hook.tt_timer.get_hookimpls()
        for plugin in [impl.plugin for impl in reversed(impls)]:
            name = self._manager.get_name(plugin)
            answer = attempt(functools.partial(self._only(plugin, "tt_timer"), device=device), where=f"timer {name!r}")
            if isinstance(answer, Caught):
                self.refuse(str(name), "timer", f"its timer failed: {answer.kind}: {answer.reason}")
            elif isinstance(answer, Timer):
                return answer
            elif answer is not None:
                self.refuse(str(name), "timer", f"its timer is {type(answer).__name__}, which has no now() and block()")
        raise PluginError("no plugin offers a timer; tt_core.clock should have")

    def trial_done(self, trial: Trial) -> None:
        """Tells every plugin; errors are forgotten."""
        self._each("tt_trial_done", object, trial=trial)

    # ways of asking

    def _ask(self, name: str, hook: str, kinds: type | tuple[type, ...], **arguments: Any) -> Any:
        """Owner only: rivals can neither answer nor wrap."""
        owner = self._owned[name].plugin
        declaring = [impl.plugin for impl in self._manager.hook.tt_backends.get_hookimpls()]  # refused ones among them
        caller = self._manager.subset_hook_caller(hook, [plugin for plugin in declaring if plugin is not owner])
        return attempt(lambda: _typed(caller(**arguments), kinds, f"{hook} of {name!r}"), where=f"{hook} of {name!r}")

    def _each(self, hook: str, kinds: type | tuple[type, ...], **arguments: Any) -> list[tuple[str, Any]]:
        """One contained call per plugin that implements `hook`."""
        answers: list[tuple[str, Any]] = []
        for impl in getattr(self._manager.hook, hook).get_hookimpls():
            what = f"{hook} of {impl.plugin_name!r}"
            answer = attempt(functools.partial(self._answers, impl.plugin, hook, kinds, arguments), where=what)
            found = [answer] if isinstance(answer, Caught) else answer
            answers += [(impl.plugin_name, one) for one in found]
        return answers

    def _answers(
        self, plugin: object, hook: str, kinds: type | tuple[type, ...], arguments: Mapping[str, Any]
    ) -> list[Any]:
        what = f"{hook} of {self._manager.get_name(plugin)!r}"
        return [_typed(one, kinds, what) for one in self._only(plugin, hook)(**arguments)]


def _typed(answer: T, kinds: type | tuple[type, ...], what: str) -> T:
    if not isinstance(answer, kinds):
        expected = " or ".join(k.__name__ for k in (kinds if isinstance(kinds, tuple) else (kinds,)))
        raise PluginError(f"{what} answered {type(answer).__name__}, not {expected}")
    return answer
