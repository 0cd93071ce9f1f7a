"""What a file says about a tuning, as values, and as plain JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tt_core.forms import candidate_form, facts_form, key_form, plan_form, shapes_form
from tt_core.forms.reading import Json
from tt_core.values import CallKey, Candidate, Facts, Plan, Shapes, Tolerance, Verdict, Weights, frozen

FIGURES = ("error", "eager_error", "max_abs", "rel_l2")


@frozen
class Step:
    """One step of a chain in a file.

    Attributes:
        version: distribution and version of the plugin; empty where it is not packaged.
        dumped: what `tt_dump` returned; None: it wrote nothing.
        files: names in the plugin's folder, each with the number of its payload.
        reason: why it wrote nothing.
    """

    version: str
    dumped: Mapping[str, Any] | None
    files: tuple[tuple[str, int], ...] = ()
    reason: str = ""


@frozen
class Claims:
    """What a built said about itself when it was saved."""

    weights: Weights
    needs_strides: bool
    fork_safe: bool
    concurrent: bool


@frozen
class Record:
    """One built on one unit for one call key.

    Attributes:
        unit: number of its unit in the file.
        key: the call key.
        covers: the sizes that it serves.
        facts: what eager runs of the unit showed.
        candidate: what it was built by.
        steps: one for each step of the candidate.
        claims: about the whole chain.
        tolerance: what it was checked with.
        verdict: how far it was from the truth, where that is known.
    """

    unit: int
    key: CallKey
    covers: Shapes | None
    facts: Facts
    candidate: Candidate
    steps: tuple[Step, ...]
    claims: Claims
    tolerance: Tolerance
    verdict: Verdict | None = None


@frozen
class SavedUnit:
    """A unit in a file: its path, what it must be like, and the hash of its weights."""

    path: str
    structure: Json
    weights_print: str


@frozen
class SavedWeights:
    """The payload that holds the object's weights, and where each of them goes: (name in it, names in the object)."""

    payload: int
    names: tuple[tuple[str, ...], ...]


@frozen
class Manifest:
    """All that a file says.

    Attributes:
        plan: what was installed; its environment is where.
        device: of the object.
        flags: instructions of the processor.
        units: the tuned units.
        records: what is installed on them.
        left: (unit, reason) of what was installed and could not be written down.
        weights: where the object's own weights are; None: not in the file.
    """

    plan: Plan
    device: str
    flags: tuple[str, ...]
    units: tuple[SavedUnit, ...]
    records: tuple[Record, ...]
    left: tuple[tuple[str, str], ...] = ()
    weights: SavedWeights | None = None


def manifest_form(manifest: Manifest) -> dict[str, Json]:
    """A manifest as plain JSON."""
    return {
        "plan": plan_form(manifest.plan),
        "device": manifest.device,
        "flags": list(manifest.flags),
        "units": [
            {"path": unit.path, "structure": unit.structure, "weights": unit.weights_print} for unit in manifest.units
        ],
        "records": [_record_form(record) for record in manifest.records],
        "left": [list(pair) for pair in manifest.left],
        "weights": None
        if manifest.weights is None
        else {"payload": manifest.weights.payload, "names": [list(names) for names in manifest.weights.names]},
    }


def _record_form(record: Record) -> Json:
    claims, tolerance, verdict = record.claims, record.tolerance, record.verdict
    return {
        "unit": record.unit,
        "key": key_form(record.key),
        "covers": shapes_form(record.covers),
        "facts": facts_form(record.facts),
        "candidate": candidate_form(record.candidate),
        "steps": [_step_form(step) for step in record.steps],
        "claims": {
            "weights": claims.weights.name,
            "needs_strides": claims.needs_strides,
            "fork_safe": claims.fork_safe,
            "concurrent": claims.concurrent,
        },
        "tolerance": {"factor": tolerance.factor, "relative": tolerance.relative},
        "figures": None if verdict is None else {name: _figure(getattr(verdict, name)) for name in FIGURES},
    }


def _figure(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _step_form(step: Step) -> Json:
    return {
        "version": step.version,
        "dumped": None if step.dumped is None else dict(step.dumped),
        "files": [list(pair) for pair in step.files],
        "reason": step.reason,
    }
