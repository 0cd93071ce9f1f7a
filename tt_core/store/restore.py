"""One record of a file becomes an entry: each step unpacked and handed to its plugin, or built anew, then proved."""

from __future__ import annotations

from pathlib import Path

import torch

from tt_core import build, install
from tt_core.contain import Caught, attempt
from tt_core.errors import StoreError
from tt_core.install import Entry
from tt_core.plugins import Plugins
from tt_core.store.container import Container
from tt_core.store.folders import private, reason
from tt_core.store.manifest import Record, Step
from tt_core.store.prove import ambient, proved
from tt_core.store.synthetic import Unmade, calls_of
from tt_core.values import EAGER, Built, Calls, Limits, Unit, covers_of, evolve, frozen

SECONDS = 600.0
"""Of a build at load; an overrun is not interrupted."""
_EAGER = EAGER.steps[0][0]


@frozen
class Made:
    """An entry out of a file, and what there is to say about it."""

    entry: Entry
    note: str


@frozen
class Maker:
    """What all records of one file share.

    Attributes:
        plugins: whom to ask.
        box: the open file.
        device: of the object.
    """

    plugins: Plugins
    box: Container
    device: torch.device

    def make(self, record: Record, unit: Unit, *, anew: bool) -> Made | str:
        """The entry of a record, or why there is none; whatever was made by then is closed.

        Args:
            record: its key's devices are those of the object.
            unit: on its original forward.
            anew: build every step, open nothing.
        """
        found = attempt(lambda: self._made(record, unit, anew=anew), where=f"loading {unit.path!r}")
        return f"{found.kind}: {found.reason}" if isinstance(found, Caught) else found

    def _made(self, record: Record, unit: Unit, *, anew: bool) -> Made | str:
        calls = calls_of(unit.forward, record.key, record.covers, record.facts)
        parts: list[Built] = []
        try:
            built, wrong = self._chain(record, unit, calls, parts, anew=anew), ""
            if isinstance(built, str):
                wrong = built
            else:
                fresh = anew or bool(missing(record))
                proof = proved(self.plugins, unit, calls, built, record.tolerance, fresh=fresh)
                wrong = proof.wrong
                made = Made(entry=_entry(record, unit, built), note=proof.note)
                if not wrong:
                    install.dispatcher(unit, [made.entry])  # a key that no guard can be made of shows here
                    return made
        except BaseException:
            build.close(parts)
            raise
        build.close(parts)
        return wrong

    def _chain(
        self, record: Record, unit: Unit, calls: Calls | Unmade, parts: list[Built], *, anew: bool
    ) -> Built | str:
        """The composed chain; its parts so far are in `parts`."""
        steps = list(zip(record.candidate.steps, record.steps, strict=True))
        if self.plugins.named(steps[0][0][0]).layer:  # a layer on its own stands on the original forward
            steps.insert(0, ((_EAGER, ()), Step(version="", dumped=None)))
        for (name, options), step in steps:
            inner = parts[-1] if parts else None
            if anew or step.dumped is None:
                answer = self._build(name, dict(options), unit, calls, inner)
            else:
                answer = self._restored(name, record, step, unit, inner)
            if isinstance(answer, str):
                return answer
            parts.append(answer)
        return _held(build.compose(parts), record) if not anew else build.compose(parts)

    def _build(
        self, name: str, options: dict[str, object], unit: Unit, calls: Calls | Unmade, inner: Built | None
    ) -> Built | str:
        if isinstance(calls, Unmade):
            return f"{name} cannot be built without a sample: {calls.reason}"
        with ambient(calls):
            limits = Limits(seconds=SECONDS)
            answer = self.plugins.build(name, unit, calls, self.device, options, inner, limits)
        return _said(name, answer)

    def _restored(self, name: str, record: Record, step: Step, unit: Unit, inner: Built | None) -> Built | str:
        with private() as folder, torch.no_grad():
            for file, number in step.files:
                _unpacked(self.box, number, folder / file)
            answer = self.plugins.restore(
                name, unit, record.key, record.covers, dict(step.dumped or {}), folder, self.device, inner
            )
        return _said(name, answer)


def missing(record: Record) -> tuple[str, ...]:
    """Why steps are built anew when the record is loaded; empty where everything that takes time is stored."""
    steps = zip(record.candidate.steps, record.steps, strict=True)
    return tuple(f"{name}: {step.reason}" for (name, _), step in steps if step.dumped is None and name != _EAGER)


def _unpacked(box: Container, number: int, target: Path) -> None:
    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        box.copy(number, target)
    except OSError as error:
        if isinstance(error, StoreError):
            raise
        raise StoreError(f"its payloads cannot be unpacked: {reason(error)}") from error


def _said(name: str, answer: Built | Caught) -> Built | str:
    if isinstance(answer, Caught):
        return f"{name}: {answer.reason}" + (f" ({answer.hint})" if answer.hint else "")
    return answer


def _held(built: Built, record: Record) -> Built:
    """A restored built held to what it claimed when it was saved, where that is stricter."""
    claims = record.claims
    return evolve(
        built,
        weights=max(built.weights, claims.weights),
        needs_strides=built.needs_strides or claims.needs_strides,
        fork_safe=built.fork_safe and claims.fork_safe,
        concurrent=built.concurrent and claims.concurrent,
    )


def _entry(record: Record, unit: Unit, built: Built) -> Entry:
    return Entry(
        unit=unit,
        key=record.key,
        built=built,
        covers=covers_of([built.covers, record.covers]),
        facts=record.facts,
        candidate=record.candidate,
        tolerance=record.tolerance,
        verdict=record.verdict,
    )
