"""Whether a record fits the object and this process: asked before any payload is opened, each refusal a sentence."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from tt_core import state
from tt_core.environment import environment
from tt_core.plugins import Plugins
from tt_core.state import Found
from tt_core.store import machine
from tt_core.store.head import Payload
from tt_core.store.manifest import Manifest, Record, SavedUnit
from tt_core.store.structure import difference, structure_form, weights_print
from tt_core.values import CallKey, TensorLeaf, Unit, evolve, frozen
from tt_core.values import Payload as Kind

_PARAMETER = inspect.Parameter


@frozen
class Way:
    """How a record will be installed, or why not.

    Attributes:
        record: the record, its key's devices those of the object.
        path: of the unit, as the object names it.
        unit: the unit; None where the object has none.
        anew: whether it is built anew, nothing of it opened.
        why: why it cannot be installed; empty where it can.
        note: a sentence for the report.
        doubt: why a backend cannot build here; what it wrote may load all the same (a compiler is not needed for that).
    """

    record: Record
    path: str
    unit: Unit | None
    anew: bool = False
    why: str = ""
    note: str = ""
    doubt: str = ""


@frozen
class Problem:
    """What keeps a record from being opened; `cure`: whether building it anew would help."""

    text: str
    cure: bool


class Judge:
    """Looks at one file for one object. The object's tunings are off.

    Args:
        obj: the user's object.
        manifest: of the file.
        payloads: its table.
        plugins: who takes part.
        device: of the object.
        trusted: whether native code may be opened.
        rebuild: whether what does not fit may be built anew.
    """

    def __init__(
        self,
        obj: Any,
        manifest: Manifest,
        payloads: Sequence[Payload],
        plugins: Plugins,
        device: torch.device,
        *,
        trusted: bool,
        rebuild: bool,
    ) -> None:
        self._manifest, self._payloads, self._plugins, self._device = manifest, payloads, plugins, device
        self._trusted, self._rebuild = trusted, rebuild
        self._found = {name: each for each in state.find(obj) for name in (each.path, *each.aliases)}
        self._now, self._flags = environment(device), machine.flags()
        self._missing, self._unready = self._asked()
        self._judged = [self._unit(saved, number) for number, saved in enumerate(manifest.units)]

    def ways(self) -> tuple[Way, ...]:
        """One for each record, in order."""
        return tuple(self._way(record) for record in self._manifest.records)

    def _way(self, record: Record) -> Way:
        unit, problem = self._judged[record.unit]
        path = self._manifest.units[record.unit].path if unit is None else unit.path
        record = evolve(record, key=_moved(record.key, self._manifest.device, self._device))
        if unit is None or (problem is not None and not problem.cure):
            return Way(record=record, path=path, unit=unit, why=problem.text if problem else "")
        problems = [*([problem] if problem else []), *self._problems(record, unit)]
        final = next((one for one in problems if not one.cure), None)
        if final is not None:
            return Way(record=record, path=path, unit=unit, why=final.text)
        doubt = next((self._unready[name] for name, _ in record.candidate.steps if name in self._unready), "")
        if not problems:
            return Way(record=record, path=path, unit=unit, doubt=doubt)
        if doubt or not self._rebuild:
            more = doubt if self._rebuild else "rebuild=True builds it here"
            return Way(record=record, path=path, unit=unit, why=f"{problems[0].text}; {more}")
        return Way(record=record, path=path, unit=unit, anew=True, note=problems[0].text)

    def _unit(self, saved: SavedUnit, number: int) -> tuple[Unit | None, Problem | None]:
        """The unit of the object, and what is different about it."""
        found: Found | None = self._found.get(saved.path)
        if found is None:
            was = saved.structure["modules"][0][1] if saved.structure["modules"] else "module"
            text = f"the object has no module of that name, which was a {was}: load into an object of the same architecture"
            return None, Problem(text=text, cure=False)
        module = found.module
        unit = Unit(path=found.path, aliases=found.aliases, module=module, forward=module.forward)
        facts = [record.facts for record in self._manifest.records if record.unit == number]
        changing = {name for each in facts for name in each.writes_state}
        text = difference(saved.structure, structure_form(module, sorted(changing)))
        if text:
            return unit, Problem(text=text, cure=False)
        if weights_print(module) != saved.weights_print:
            text = "its weights are not those that it was tuned with: load these first"
            return unit, Problem(text=text, cure=True)
        return unit, None

    def _problems(self, record: Record, unit: Unit) -> Iterator[Problem]:
        """What is in the way, the incurable first."""
        names = [name for name, _ in record.candidate.steps]
        built = [name for name, step in zip(names, record.steps, strict=True) if step.dumped is None]
        absent = [self._missing[name] for name in names if name in self._missing]
        absent += [self._unready[name] for name in built if name in self._unready]
        if absent:
            yield Problem(text=absent[0], cure=False)
            return
        lost = record.facts.needs - frozenset.intersection(*(self._plugins.named(name).keeps for name in names))
        if lost:
            what = " and ".join(sorted(keep.value for keep in lost))
            yield Problem(text=f"{record.candidate.name} does not keep {what}", cure=False)
        text = _unlike(unit, record.key)
        if text:
            yield Problem(text=text, cure=False)
        stored = [(name, step) for name, step in zip(names, record.steps, strict=True) if step.dumped is not None]
        if stored:
            yield from (Problem(text=text, cure=True) for text in self._foreign(record, [name for name, _ in stored]))
            yield from self._versions(record, names)

    def _foreign(self, record: Record, names: Sequence[str]) -> Iterator[str]:
        """Code that is not trusted, and what the payloads were made for."""
        kinds = [self._plugins.named(name).payload for name in names]
        files = [self._payloads[number].kind for step in record.steps for _, number in step.files]
        code = Kind.CODE in kinds or "code" in files
        for name, kind in zip(names, kinds, strict=True):
            if kind is Kind.NONE:
                yield f"backend {name!r} of this version reads no payloads"
        if code and not self._trusted:
            yield (
                "its payload is native code, and the file does not carry your seal: trust=True opens it if you know "
                "who made it"
            )
        then = self._manifest.plan.environment
        yield from machine.differences(then, self._now, self._manifest.flags, self._flags, code=code)

    def _versions(self, record: Record, names: Sequence[str]) -> Iterator[Problem]:
        for name, step in zip(names, record.steps, strict=True):
            now = self._plugins.version(name)
            if step.dumped is not None and step.version != now:
                text = (
                    f"it was made with {step.version or 'an unpackaged plugin'}, this is {now or 'an unpackaged one'}"
                )
                yield Problem(text=f"{text}: install {step.version or 'that one'}", cure=True)

    def _asked(self) -> tuple[dict[str, str], dict[str, str]]:
        """Backends of the file that are not there, and those that cannot build here, with a sentence each."""
        wanted = {name for record in self._manifest.records for name, _ in record.candidate.steps}
        known = sorted(wanted & self._plugins.backends.keys())
        _, refused = self._plugins.ready(self._device, only=known, lossy=known)
        hints = {refusal.name: refusal for refusal in refused if refusal.stage != "excluded"}
        missing: dict[str, str] = {}
        unready: dict[str, str] = {}
        for name in sorted(wanted):
            refusal = hints.get(name)
            if refusal is not None:
                text = f"backend {name!r} cannot be used: {refusal.reason}. {refusal.hint}".rstrip(". ")
                (unready if refusal.stage == "probe" else missing)[name] = text
            elif name not in known:
                missing[name] = f"backend {name!r} is not known here: install its plugin, or tune again"
        return missing, unready


def _unlike(unit: Unit, key: CallKey) -> str:
    """Why a key is none of calls of this unit: its arguments must be the parameters, by name and in order."""
    try:
        parameters = list(inspect.signature(unit.forward).parameters.values())
    except (TypeError, ValueError):
        return "the signature of its forward cannot be read"
    other = "it was tuned for a forward with other parameters: load into an object of the same architecture"
    if key.tree.type is not dict or list(key.tree.entries()) != [each.name for each in parameters]:
        return other
    for parameter, spec in zip(parameters, key.tree.children(), strict=True):
        if parameter.kind is _PARAMETER.VAR_POSITIONAL and spec.type is not tuple:
            return other
        if parameter.kind is _PARAMETER.VAR_KEYWORD and (
            spec.type is not dict or not all(type(name) is str for name in spec.entries())
        ):
            return other
    return ""


def _moved(key: CallKey, then: str, now: torch.device) -> CallKey:
    """The key for the device of the object: `cuda:0` becomes `cuda:1`."""
    leaves = tuple(
        evolve(leaf, device=now) if isinstance(leaf, TensorLeaf) and str(leaf.device) == then else leaf
        for leaf in key.leaves
    )
    return evolve(key, leaves=leaves)
