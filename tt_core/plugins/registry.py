"""Which plugins and backends take part, and why the others do not."""

from __future__ import annotations

import functools
import importlib
import os
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import metadata
from typing import Any, Self

import pluggy
import torch

from tt_core import hookspecs
from tt_core.contain import Caught, attempt
from tt_core.errors import PluginError, UnknownBackendError
from tt_core.hookspecs import API, OLDEST_API, PROJECT
from tt_core.values import Backend, Fidelity, Ready, Refusal, Unavailable, frozen

BUILTIN = ("tt_core.eager", "tt_core.check", "tt_core.clock")
"""Our own parts, which enter by the same door; eager's backend cannot be blocked."""
ESSENTIAL = "eager"
_NOT_BACKENDS = {"all", "dev", "native"}


class _Manager(pluggy.PluginManager):
    def parse_hookimpl_opts(self, plugin: object, name: str) -> Any:
        """Looks at `tt_` names only: a plugin object may have properties that do anything."""
        return super().parse_hookimpl_opts(plugin, name) if name.startswith("tt_") else None


@frozen
class _Owned:
    backend: Backend
    plugin: object


class Registry:
    """The plugins of one run. What could not take part is in `refused`, each with its sentence."""

    def __init__(self) -> None:
        self._manager = _Manager(PROJECT)
        self._manager.add_hookspecs(hookspecs)
        self._owned: dict[str, _Owned] = {}
        self._names: dict[str, str] = {}
        self.refused: list[Refusal] = []

    @classmethod
    def load(cls, *, extra: Sequence[object] = (), environ: Mapping[str, str] | None = None) -> Self:
        """All plugins: built in, installed, named by `TT_PLUGINS`, and `extra` objects.

        Args:
            extra: plugin modules or objects that are not installed as packages.
            environ: `os.environ` unless a test gives another.
        """
        environ = os.environ if environ is None else environ
        plugins = cls()
        disabled = _split(environ.get("TT_DISABLE_BACKENDS", ""))
        for name in BUILTIN:
            plugins._add(name.rpartition(".")[2], importlib.import_module(name), frozenset())
        found = [] if environ.get("TT_DISABLE_AUTOLOAD") == "1" else _entry_points()
        for point in found:
            plugins._load(point.name, point.load, disabled)
        for name in _split(environ.get("TT_PLUGINS", "")):
            plugins._load(name, functools.partial(importlib.import_module, name), disabled)
        for index, plugin in enumerate(extra):
            plugins._add(getattr(plugin, "__name__", None) or f"{type(plugin).__name__}-{index}", plugin, disabled)
        plugins._note_missing(disabled, autoload=environ.get("TT_DISABLE_AUTOLOAD") != "1")
        plugins._note_unknown(disabled)
        return plugins

    def _load(self, name: str, load: Callable[[], object], disabled: frozenset[str]) -> None:
        if name in disabled:
            self.refuse(name, "disabled", "disabled by TT_DISABLE_BACKENDS")
            return
        plugin = attempt(load, where=f"import of plugin {name!r}")
        if isinstance(plugin, Caught):
            self.refuse(name, "import", f"its import failed: {plugin.kind}: {plugin.reason}", plugin.hint)
        else:
            self._add(name, plugin, disabled)

    def _add(self, name: str, plugin: object, disabled: frozenset[str]) -> None:
        done = attempt(lambda: self._register(name, plugin), where=f"registration of plugin {name!r}")
        if isinstance(done, Caught):
            if self._manager.is_registered(plugin):
                self._manager.unregister(plugin)
            self.refuse(name, "declare", f"its hooks do not fit: {done.reason}")
            return
        declared = attempt(lambda: self._declared(plugin), where=f"tt_backends of plugin {name!r}")
        if isinstance(declared, Caught):
            self._manager.unregister(plugin)
            self.refuse(name, "declare", f"tt_backends failed: {declared.kind}: {declared.reason}")
            return
        for backend in declared:
            self._own(name, plugin, backend, disabled)

    def _register(self, name: str, plugin: object) -> None:
        if self._manager.has_plugin(name) or self._manager.is_registered(plugin):
            raise PluginError(f"a plugin named {name!r} is loaded already")
        try:
            self._manager.register(plugin, name=name)
            self._manager.check_pending()
        except pluggy.PluginValidationError as error:
            raise PluginError(" ".join(str(error).split())) from error

    def _declared(self, plugin: object) -> list[Backend]:
        answers = self._only(plugin, "tt_backends")()
        listed: list[Backend] = []
        for answer in answers:
            many = [answer] if isinstance(answer, Backend) or not isinstance(answer, Iterable) else list(answer)
            wrong = [item for item in many if not isinstance(item, Backend)]
            if wrong:
                raise PluginError(f"it answered {type(wrong[0]).__name__}, not tt.Backend")
            listed += many
        return listed

    def _own(self, name: str, plugin: object, backend: Backend, disabled: frozenset[str]) -> None:
        owner = self._owned.get(backend.name)
        if owner is not None:
            other = self._manager.get_name(owner.plugin)
            self.refuse(backend.name, "declare", f"plugin {name!r} declares it, but plugin {other!r} did so before")
        elif not OLDEST_API <= backend.api <= API:
            reason = f"speaks API {backend.api}, this core speaks {OLDEST_API} to {API}"
            self.refuse(backend.name, "api", reason, "install a matching version of the plugin")
        elif backend.name in disabled and backend.name != ESSENTIAL:
            self.refuse(backend.name, "disabled", "disabled by TT_DISABLE_BACKENDS")
        else:
            self._owned[backend.name] = _Owned(backend=backend, plugin=plugin)

    def _note_missing(self, disabled: frozenset[str], *, autoload: bool) -> None:
        known = {refusal.name for refusal in self.refused} | {
            self._manager.get_name(p) for p in self._manager.get_plugins()
        }
        for extra in _extras():
            if extra not in known and extra not in disabled:
                reason = f"{extra} is not installed" if autoload else "not loaded: TT_DISABLE_AUTOLOAD=1"
                self.refuse(extra, "missing", reason, f'pip install "tt-core[{extra}]"' if autoload else "")

    def _note_unknown(self, disabled: frozenset[str]) -> None:
        known = {*self._owned, *_extras(), *(refusal.name for refusal in self.refused)}
        for name in sorted(disabled - known):
            self.refuse(name, "disabled", "named by TT_DISABLE_BACKENDS, but nothing of that name is known")
        if ESSENTIAL in disabled:
            self.refuse(ESSENTIAL, "disabled", "the baseline cannot be disabled; TT_DISABLE_BACKENDS is ignored for it")

    def refuse(self, name: str, stage: str, reason: str, hint: str = "") -> None:
        """Notes that a plugin or backend does not take part."""
        self.refused.append(Refusal(name=name, stage=stage, reason=reason, hint=hint))

    # what takes part

    @property
    def backends(self) -> Mapping[str, Backend]:
        """Every declared backend that was not refused, by name."""
        return {name: owned.backend for name, owned in self._owned.items()}

    def named(self, name: str) -> Backend:
        """The backend of that name.

        Raises:
            UnknownBackendError: nobody declared it; lists what is ready and what was refused.
        """
        if name in self._owned:
            return self._owned[name].backend
        refused = [f"{r.name} ({r.reason})" for r in self.refused]
        raise UnknownBackendError(
            f"backend {name!r} is not known here. Known: {', '.join(sorted(self._owned))}."
            + (f" Refused: {'; '.join(refused)}." if refused else ""),
            name,
            tuple(sorted(self._owned)),
        )

    def version(self, name: str) -> str:
        """Distribution and version of the plugin that declares a backend; empty where it is not packaged."""
        return self._versions.get(str(self._manager.get_name(self._owned[name].plugin)), "")

    @functools.cached_property
    def _versions(self) -> Mapping[str, str]:
        return {p.name: f"{p.dist.name} {p.dist.version}" for p in _entry_points() if p.dist is not None}

    def ready(
        self,
        device: torch.device,
        *,
        only: Sequence[str] | None = None,
        exclude: Sequence[str] = (),
        lossy: Sequence[str] = (),
    ) -> tuple[tuple[Backend, ...], tuple[Refusal, ...]]:
        """The backends that run on `device`, in no particular order, and why the others do not.

        Args:
            device: where the units are.
            only: names to consider; None: all. A LOSSY backend takes part when it is named here or in `lossy`.
            exclude: names to leave out.
            lossy: names whose fidelity is accepted.

        Raises:
            UnknownBackendError: a name in `only` or `exclude` that nobody declared.
        """
        for name in (*(only or ()), *exclude):
            self.named(name)
        ready: list[Backend] = []
        refused = list(self.refused)
        wanted = {*(only or ()), *lossy}
        for backend in self.backends.values():
            drop = self._dropped(backend, device, only, exclude, wanted)
            refused += [drop] if drop else []
            ready += [] if drop else [backend]
        return tuple(ready), tuple(refused)

    def _dropped(
        self,
        backend: Backend,
        device: torch.device,
        only: Sequence[str] | None,
        exclude: Sequence[str],
        wanted: set[str],
    ) -> Refusal | None:
        name = backend.name
        if name == ESSENTIAL:
            return None
        if name in exclude or (only is not None and name not in only):
            return Refusal(name=name, stage="excluded", reason="left out by you")
        if not {"*", device.type} & backend.devices:
            runs = ", ".join(sorted(backend.devices))
            return Refusal(name=name, stage="device", reason=f"runs on {runs}, not on {device.type}")
        if backend.fidelity > Fidelity.CLOSE and name not in wanted:
            reason = f"changes the precision ({backend.fidelity.name.lower()})"
            return Refusal(
                name=name, stage="fidelity", reason=reason, hint=f"ask for it by name: backends=[{name!r}, ...]"
            )
        answer = self.probe(name, device)
        if isinstance(answer, Unavailable):
            return Refusal(name=name, stage="probe", reason=answer.reason, hint=answer.hint)
        return None

    @abstractmethod
    def probe(self, name: str, device: torch.device) -> Ready | Unavailable:
        """Whether a backend can run on `device`."""

    def _only(self, plugin: object, hook: str) -> Any:
        others = [other for other in self._manager.get_plugins() if other is not plugin]
        return self._manager.subset_hook_caller(hook, others)


def _split(text: str) -> frozenset[str]:
    return frozenset(part.strip() for part in text.split(",") if part.strip())


def _entry_points() -> list[metadata.EntryPoint]:
    """Installed plugins, sorted by name; of several of one name the first wins."""
    points = {point.name: point for point in reversed(list(metadata.entry_points(group=PROJECT)))}
    return [points[name] for name in sorted(points)]


def _extras() -> list[str]:
    """The backends that tt-core's own extras offer: known from metadata, so no list stands in code."""
    try:
        offered = metadata.metadata("tt-core").get_all("Provides-Extra") or []
    except metadata.PackageNotFoundError:  # run from a source tree
        return []
    return sorted(set(offered) - _NOT_BACKENDS)
