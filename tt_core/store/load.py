"""A file onto an object: everything is looked at before anything is opened, and nothing is left behind by a refusal."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from tt_core import build, install, state
from tt_core.errors import StoreError, UsageError
from tt_core.install import Entry
from tt_core.plugins import Plugins
from tt_core.store import seal, weights
from tt_core.store.container import Container, opened
from tt_core.store.fit import Judge, Way
from tt_core.store.folders import private
from tt_core.store.manifest import Manifest
from tt_core.store.reader import read_manifest
from tt_core.store.reports import Line, LoadReport
from tt_core.store.restore import Made, Maker, missing
from tt_core.values import frozen

_AND_MORE = "strict=False installs what fits and runs the rest in eager"


@frozen
class Loading:
    """The arguments of one load. See `api.load` for their meaning."""

    device: torch.device
    strict: bool = True
    trust: bool = False
    rebuild: bool = False


def load(obj: Any, path: Path, *, plugins: Plugins, loading: Loading) -> LoadReport:
    """See `api.load`."""
    try:
        with opened(path, seal.own_key()) as box:
            manifest = read_manifest(box.manifest, box.payloads)
            with install.suspended(obj) as earlier, _weights(obj, box, manifest, loading) as note:
                lines = _installed(obj, box, manifest, plugins, loading)
                earlier.end()
    except StoreError as error:
        raise StoreError(f"{path} was not loaded: {error}") from error
    left = [Line(unit=unit, candidate="", how="eager", note=why) for unit, why in manifest.left]
    return LoadReport(
        path=path, sealed=box.sealed, lines=(*lines, *left), plan=manifest.plan, notes=(note,) if note else ()
    )


@contextlib.contextmanager
def _weights(obj: Any, box: Container, manifest: Manifest, loading: Loading) -> Iterator[str]:
    """The file's own weights in the object, as long as nothing is refused; yields a sentence about them."""
    saved = manifest.weights
    if saved is None:
        yield ""
        return
    try:
        with private() as folder:
            box.copy(saved.payload, folder / "weights")
            values = weights.read(folder / "weights", saved, obj)
    except StoreError as error:
        if loading.strict:
            raise
        values, note = {}, f"its weights were not loaded: {error}"
    else:
        note = f"its weights were loaded: {len(values)} tensors"
    with weights.written(obj, values):
        yield note


def _installed(obj: Any, box: Container, manifest: Manifest, plugins: Plugins, loading: Loading) -> tuple[Line, ...]:
    """Installs every record that fits."""
    judge = Judge(
        obj,
        manifest,
        box.payloads,
        plugins,
        loading.device,
        trusted=box.sealed or loading.trust,
        rebuild=loading.rebuild,
    )
    ways = judge.ways()
    if loading.strict:
        _refuse([(way, way.why) for way in ways if way.why])
    maker = Maker(plugins=plugins, box=box, device=loading.device)
    made: list[Made] = []
    lines: list[Line] = []
    try:
        with state.kept(obj):
            for way in ways:
                line = _one(maker, way, made, loading)
                lines.append(line)
        _install([one.entry for one in made])
    except BaseException:
        build.close([one.entry.built for one in made])
        raise
    return tuple(lines)


def _one(maker: Maker, way: Way, made: list[Made], loading: Loading) -> Line:
    """What became of one record; what was made for it is in `made`."""
    name = str(way.record.candidate)
    if way.why or way.unit is None:
        return Line(unit=way.path, candidate=name, how="eager", note=way.why)
    anew, note = way.anew, way.note
    found = maker.make(way.record, way.unit, anew=anew)
    if isinstance(found, str) and not anew and loading.rebuild and not way.doubt:
        anew, note = True, found
        found = maker.make(way.record, way.unit, anew=True)
    if isinstance(found, str):
        found += f"; {way.doubt}" if way.doubt else ""
        if loading.strict:
            _refuse([(way, found)])
        return Line(unit=way.path, candidate=name, how="eager", note=found)
    made.append(found)
    built = missing(way.record)
    notes = [text for text in (note, *(() if anew else built), found.note) if text]
    return Line(unit=way.path, candidate=name, how="rebuilt" if anew or built else "restored", note="; ".join(notes))


def _refuse(problems: Sequence[tuple[Way, str]]) -> None:
    """One sentence about the first problem, and how many more there are.

    Raises:
        StoreError: there is a problem.
    """
    if not problems:
        return
    way, why = problems[0]
    title = f"unit {way.path!r}" if way.path else "the whole object"
    more = f" ({len(problems) - 1} more like this)" if len(problems) > 1 else ""
    raise StoreError(f"{title}, {way.record.candidate}: {why}; {_AND_MORE}{more}")


def _install(entries: Sequence[Entry]) -> None:
    if not entries:
        return
    try:
        install.install(entries)
    except UsageError as error:
        raise StoreError(f"its units do not fit together: {error}") from error
