"""Promises of the declaration and the probe."""

from __future__ import annotations

import inspect
import re
import sys
from importlib import metadata
from typing import Any

import pytest
import torch

from tt_core.hookspecs import API, OLDEST_API, PROJECT
from tt_core.testing.contract.base import Base
from tt_core.testing.contract.fresh import fresh
from tt_core.testing.contract.portrait import Process
from tt_core.testing.contract.shop import loaded, module_of
from tt_core.values import Backend, Payload, Ready, Unavailable

_MODULES = 50
"""Modules that importing a plugin may load: its own, and a few of the standard library's."""
_PROBE_S = 2.0
_LONGEST = 300
"""Characters of a reason that fits into a table and a log line."""
_HOOKS = re.compile(r"tt_[a-z_]+")


def is_sentence(text: str) -> bool:
    """Whether a text is a reason for people: one line, not too long, and not a bare type or code."""
    return bool(text.strip()) and "\n" not in text and len(text) <= _LONGEST and "Traceback" not in text


class Declaration(Base):
    """What a plugin says before it builds anything."""

    def test_loads(self, plugin: Any, declared: tuple[Backend, ...]) -> None:
        """The core takes the plugin: its hooks fit the specs, its declarations are values, its names are its own."""
        plugins = loaded(plugin)
        names = {each.name for each in declared}
        mine = [each for each in plugins.refused if each.stage in {"declare", "api"}]

        assert not mine, f"refused: {[f'{each.name}: {each.reason}' for each in mine]}"
        assert names <= set(plugins.backends)
        assert all(OLDEST_API <= each.api <= API for each in declared)

    def test_hooks_have_no_defaults(self, plugin: Any) -> None:
        """No hook gives an argument a default value: whether it holds depends on the version of pluggy."""
        hooks = [name for name in dir(plugin) if _HOOKS.fullmatch(name) and callable(getattr(plugin, name))]
        defaults = {
            f"{name}({argument.name}=…)"
            for name in hooks
            for argument in inspect.signature(getattr(plugin, name)).parameters.values()
            if argument.default is not argument.empty
        }

        assert "tt_build" in hooks, "a plugin that declares backends implements tt_build"
        assert not defaults

    def test_named_as_installed(self, plugin: Any, declared: tuple[Backend, ...]) -> None:
        """Where the plugin is installed as a package, its entry point is called like a backend of its, or like the plugin."""
        module = module_of(plugin)
        points = [point.name for point in metadata.entry_points(group=PROJECT) if point.value == module]
        if not points:
            pytest.skip("not installed as a package: no entry point to look at")

        assert set(points) <= {module.removeprefix("tt_"), *(each.name for each in declared)}

    def test_every_backend_is_tested(self, declared: tuple[Backend, ...], declaration: Backend) -> None:
        """A class tests one backend; the others that the plugin declares are named here, so that none is forgotten."""
        others = [each.name for each in declared if each is not declaration]
        if others:
            pytest.skip(f"this class tests {declaration.name}; a class with `backend = …` tests {', '.join(others)}")

    def test_imports_nothing_heavy(self, plugin: Any, declaration: Backend, device: torch.device) -> None:
        """Importing and declaring loads the plugin's own modules and nothing that takes its time."""
        module = module_of(plugin)
        if not module:
            pytest.skip("the plugin is an object, not a module: there is nothing to import")
        new = fresh(module, declaration.name, str(device))["loaded"]
        own = {module.partition(".")[0], "tt_core", "torch", *self.light, *sys.stdlib_module_names}
        foreign = sorted({name.partition(".")[0] for name in new} - own)

        assert not foreign, f"declaring imports {', '.join(foreign)}: import them in tt_probe or tt_build"
        assert len(new) <= _MODULES, f"declaring imports {len(new)} modules, {new[0]} and {new[-1]} among them"

    def test_probe_is_quick(self, plugin: Any, declaration: Backend, device: torch.device) -> None:
        """In a fresh process, imports included, the probe answers within 2 s."""
        module = module_of(plugin)
        if not module:
            pytest.skip("the plugin is an object, not a module: a fresh process cannot import it")
        if not hasattr(plugin, "tt_probe"):
            pytest.skip("no tt_probe: it runs wherever its device types are")
        seconds = fresh(module, declaration.name, str(device))["seconds"]
        if seconds > _PROBE_S:  # a busy machine must not fail anybody: a second look
            seconds = min(seconds, fresh.__wrapped__(module, declaration.name, str(device))["seconds"])

        assert seconds <= _PROBE_S, f"the probe took {seconds:.1f} s"

    def test_probe_answers(self, plugin: Any, declared: tuple[Backend, ...], device: torch.device) -> None:
        """For each backend the probe answers Ready, None, or Unavailable with a sentence, and raises nothing."""
        if not hasattr(plugin, "tt_probe"):
            pytest.skip("no tt_probe: it runs wherever its device types are")
        for each in declared:
            answer = _probed(plugin, each.name, device)

            assert isinstance(answer, (Ready, Unavailable, type(None)))
            assert not isinstance(answer, Unavailable) or is_sentence(answer.reason)

    def test_probe_leaves_the_process(self, plugin: Any, declaration: Backend, device: torch.device) -> None:
        """Declaring and probing change nothing global."""
        before = Process()
        plugin.tt_backends()
        _probed(plugin, declaration.name, device)

        assert not before.changed()

    def test_payload_has_hooks(self, declaration: Backend, plugin: Any) -> None:
        """A backend that declares a payload implements both tt_dump and tt_restore."""
        hooks = [name for name in ("tt_dump", "tt_restore") if hasattr(plugin, name)]
        if declaration.payload is Payload.NONE:
            pytest.skip(f"{declaration.name} declares Payload.NONE: it is built anew when a plan is loaded")

        assert hooks == ["tt_dump", "tt_restore"]


def _probed(plugin: Any, backend: str, device: torch.device) -> Any:
    """The probe's answer, without containment; None where there is no probe."""
    probe, given = getattr(plugin, "tt_probe", lambda: None), {"backend": backend, "device": device}
    return probe(**{name: given[name] for name in inspect.signature(probe).parameters})
