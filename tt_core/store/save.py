"""A tuned object in a file: what is installed on it, asked from the plugins, described, hashed, sealed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import torch

from tt_core import install
from tt_core.contain import Caught
from tt_core.environment import environment
from tt_core.errors import StoreError
from tt_core.forms import candidate_form, key_form, read_key
from tt_core.forms.reading import Json
from tt_core.install import Dispatcher, Entry
from tt_core.plugins import Plugins
from tt_core.store import machine, seal, weights, write
from tt_core.store.folders import private
from tt_core.store.head import Payload
from tt_core.store.manifest import (
    Claims,
    Manifest,
    Record,
    SavedUnit,
    SavedWeights,
    Step,
    manifest_form,
)
from tt_core.store.reader import checked_names, read_manifest
from tt_core.store.reports import Line, SaveReport
from tt_core.store.restore import missing
from tt_core.store.structure import structure_form, weights_print
from tt_core.values import Built, Choice, Cut, Plan, evolve, frozen
from tt_core.values import Payload as Kind

_REASON = 900
"""Characters of a reason that are kept."""


def save(obj: Any, path: Path, *, device: torch.device, plugins: Plugins, with_weights: bool) -> SaveReport:
    """See `api.save`."""
    with private() as folder:
        parts = _Parts(folder)
        saved = [_unit(parts, plugins, found.path, each) for found, each in install.tuned(obj)]
        held = _weights(parts, obj) if with_weights else None
        manifest = _manifest(saved, device, held)
        form = manifest_form(manifest)
        _try(form, parts.table)
        key, why = _key()
        size = write.write(path, form, parts.table, key)
    lines = tuple(line for one in saved for line in one.lines)
    return SaveReport(path=path, size=size, sealed=key is not None, lines=lines, notes=(why,) if why else ())


@attrs.define(eq=False)
class _Parts:
    """The payloads so far, each content once."""

    folder: Path
    table: list[write.Part] = attrs.field(factory=list)
    _known: dict[tuple[str, str], int] = attrs.field(factory=dict)
    _made: int = 0

    def empty(self) -> Path:
        """A new folder for a plugin to write into."""
        self._made += 1
        made = self.folder / str(self._made)
        made.mkdir(mode=0o700)
        return made

    def add(self, path: Path, kind: str) -> int:
        """The number of a file's payload."""
        part = write.Part.of(path, kind)
        number = self._known.setdefault((part.sha256, kind), len(self.table))
        if number == len(self.table):
            self.table.append(part)
        return number


@frozen
class _Saved:
    """A unit that was asked: what was written down of it, and what is said about it."""

    unit: SavedUnit
    records: tuple[Record, ...]
    choices: tuple[Choice, ...]
    lines: tuple[Line, ...]


def _unit(parts: _Parts, plugins: Plugins, path: str, each: Dispatcher) -> _Saved:
    records, choices, lines = [], [], []
    for route in each.routes:
        entry = route.entry
        name = str(entry.candidate)
        why = "its built is out of service" if route.retired else _unwritable(entry)
        if why:
            lines.append(Line(unit=path, candidate=name, how="left out", note=why))
            continue
        record = _record(parts, plugins, entry)
        records.append(record)
        choices.append(
            Choice(unit=path, key=entry.key, candidate=entry.candidate, covers=entry.covers, members=(path,))
        )
        why = "; ".join(missing(record))
        lines.append(Line(unit=path, candidate=name, how="rebuilt at load" if why else "stored", note=why))
    changing = {name for route in each.routes for name in route.entry.facts.writes_state}
    module = each.unit.module
    structure = structure_form(module, sorted(changing))
    unit = SavedUnit(path=path, structure=structure, weights_print=weights_print(module))
    return _Saved(unit=unit, records=tuple(records), choices=tuple(choices), lines=tuple(lines))


def _unwritable(entry: Entry) -> str:
    """Why an entry cannot be written down, empty where it can: what is read again must be what was saved."""
    try:
        candidate_form(entry.candidate)
        same = read_key(json.loads(json.dumps(key_form(entry.key)))) == entry.key
    except StoreError as error:
        return f"its call cannot be written down: {error}"[:_REASON]
    return "" if same else "its call cannot be written down exactly"


def _record(parts: _Parts, plugins: Plugins, entry: Entry) -> Record:
    built = entry.built
    return Record(
        unit=0,
        key=entry.key,
        covers=entry.covers,
        facts=entry.facts,
        candidate=entry.candidate,
        steps=tuple(_steps(parts, plugins, entry)),
        claims=Claims(
            weights=built.weights,
            needs_strides=built.needs_strides,
            fork_safe=built.fork_safe,
            concurrent=built.concurrent,
        ),
        tolerance=entry.tolerance,
        verdict=entry.verdict,
    )


def _steps(parts: _Parts, plugins: Plugins, entry: Entry) -> Iterator[Step]:
    """What the owner of each step wrote, innermost first."""
    chain: list[Built | None] = []
    built: Built | None = entry.built
    for _ in entry.candidate.steps:
        chain.append(built)
        built = None if built is None else built.inner
    for (name, _), part in zip(entry.candidate.steps, reversed(chain), strict=True):
        if name not in plugins.backends:
            yield Step(version="", dumped=None, reason="its plugin is not there any more")
        elif part is None:
            yield Step(version=plugins.version(name), dumped=None, reason="its built is not at hand")
        else:
            yield _step(parts, plugins, name, part)


def _step(parts: _Parts, plugins: Plugins, name: str, built: Built) -> Step:
    version, kind = plugins.version(name), plugins.named(name).payload
    if kind is Kind.NONE:
        return Step(version=version, dumped=None, reason="it writes nothing")
    folder = parts.empty()
    answer = plugins.dump(name, built, folder)
    if isinstance(answer, Caught):
        return Step(version=version, dumped=None, reason=answer.reason[:_REASON])
    try:
        dumped = _plain(answer)
        names = _files(folder)
    except StoreError as error:
        return Step(version=version, dumped=None, reason=str(error)[:_REASON])
    stored = "code" if kind is Kind.CODE else "data"
    files = tuple((each, parts.add(folder / each, stored)) for each in names)
    return Step(version=version, dumped=dumped, files=files)


def _plain(answer: Mapping[str, Any]) -> dict[str, Json]:
    """What a plugin returned, as it will be read again."""
    try:
        found = json.loads(json.dumps(dict(answer), allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise StoreError(f"what it dumped is no JSON ({type(error).__name__}: {error})") from error
    return dict(found)


def _files(folder: Path) -> list[str]:
    """The names of what a plugin wrote: plain files only.

    Raises:
        StoreError: a link, a device, or a name that is not allowed.
    """
    names = []
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() or not (path.is_dir() or path.is_file()):
            raise StoreError(f"it wrote {path.name!r}, which is no plain file")
        if path.is_file():
            names.append(path.relative_to(folder).as_posix())
    return checked_names(sorted(names), "what it dumped")


def _weights(parts: _Parts, obj: Any) -> SavedWeights:
    path = parts.empty() / "weights"
    names = weights.write(obj, path)
    return SavedWeights(payload=parts.add(path, "weights"), names=names)


def _manifest(saved: Sequence[_Saved], device: torch.device, held: SavedWeights | None) -> Manifest:
    kept = [one for one in saved if one.records]
    plan = Plan(
        cut=Cut(depths=(), units=tuple(one.unit.path for one in kept)),
        choices=tuple(choice for one in kept for choice in one.choices),
        environment=environment(device),
    )
    left = [(line.unit, line.note) for one in saved for line in one.lines if line.how == "left out"]
    return Manifest(
        plan=plan,
        device=str(device),
        flags=machine.flags(),
        units=tuple(one.unit for one in kept),
        records=tuple(evolve(record, unit=n) for n, one in enumerate(kept) for record in one.records),
        left=tuple(left),
        weights=held,
    )


def _try(form: Json, parts: Sequence[write.Part]) -> None:
    """Reads what is about to be written: a file that `load` would refuse is not made.

    Raises:
        StoreError: `load` would refuse it.
    """
    table = [Payload(offset=0, size=part.size, sha256=part.sha256, kind=part.kind) for part in parts]
    whole = {**json.loads(json.dumps(form, allow_nan=False)), "kind": "", "format": 0, "payloads": []}
    read_manifest(whole, table)


def _key() -> tuple[bytes | None, str]:
    """This user's key, or why the file is not sealed."""
    try:
        return seal.own_key_or_new(), ""
    except StoreError as error:
        return None, f"not sealed: {error}"
