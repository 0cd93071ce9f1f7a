"""A manifest read strictly: what is malformed, out of range or contradicts itself is a `StoreError` with a sentence."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tt_core.errors import StoreError
from tt_core.forms import read_candidate, read_facts, read_key, read_plan, read_shapes
from tt_core.forms.reading import Json, as_bool, as_fields, as_int, as_list, as_pair, as_text
from tt_core.store.head import Payload
from tt_core.store.manifest import FIGURES, Claims, Manifest, Record, SavedUnit, SavedWeights, Step
from tt_core.store.structure import read_structure
from tt_core.values import Tolerance, Verdict, Weights, evolve

RECORDS = 20_000
FILES = 10_000
DEPTH = 4
"""Folders that a plugin's file may lie in."""
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,120}")
_DIGEST = re.compile(r"[0-9a-f]{32}")
_FIELDS = ("plan", "device", "flags", "units", "records", "left", "weights")
_ADDED = ("kind", "format", "payloads")


def read_manifest(form: Json, payloads: Sequence[Payload]) -> Manifest:
    """The manifest of a form.

    Args:
        form: plain JSON, kind, format and table looked at already.
        payloads: the table.

    Raises:
        StoreError: it is malformed or contradicts itself.
    """
    fields = as_fields(form, "its manifest", (*_FIELDS, *_ADDED))
    units = tuple(_read_unit(row, n) for n, row in enumerate(as_list(fields["units"], "its units", RECORDS)))
    records = tuple(
        _read_record(row, f"record {n}", len(units), payloads)
        for n, row in enumerate(as_list(fields["records"], "its records", RECORDS))
    )
    if len({unit.path for unit in units}) != len(units):
        raise StoreError("it names one unit twice")
    if len({(record.unit, record.key) for record in records}) != len(records):
        raise StoreError("it has two records for one call of one unit")
    left = [as_pair(pair, "what was left out") for pair in as_list(fields["left"], "what was left out", RECORDS)]
    return Manifest(
        plan=read_plan(fields["plan"]),
        device=as_text(fields["device"], "its device", 64),
        flags=tuple(as_text(flag, "an instruction", 64) for flag in as_list(fields["flags"], "its instructions", 4096)),
        units=units,
        records=records,
        left=tuple((as_text(unit, "a unit left out"), as_text(why, "a reason")) for unit, why in left),
        weights=None if fields["weights"] is None else _read_weights(fields["weights"], payloads),
    )


def _read_unit(form: Json, number: int) -> SavedUnit:
    where = f"unit {number}"
    fields = as_fields(form, where, ("path", "structure", "weights"))
    weights = as_text(fields["weights"], f"the weights' hash of {where}", 64)
    if not _DIGEST.fullmatch(weights):
        raise StoreError(f"the weights' hash of {where} is no hash")
    return SavedUnit(
        path=as_text(fields["path"], f"the path of {where}"),
        structure=read_structure(fields["structure"], where),
        weights_print=weights,
    )


def _read_record(form: Json, where: str, units: int, payloads: Sequence[Payload]) -> Record:
    named = ("unit", "key", "covers", "facts", "candidate", "steps", "claims", "tolerance", "figures")
    fields = as_fields(form, where, named)
    key, covers = read_key(fields["key"]), read_shapes(fields["covers"])
    if covers is not None and [len(leaf) for leaf in covers.leaves] != [leaf.rank for leaf in key.tensors]:
        raise StoreError(f"the sizes of {where} are not those of its call key's tensors")
    candidate = read_candidate(fields["candidate"])
    steps = as_list(fields["steps"], f"the steps of {where}", 16)
    if len(steps) != len(candidate.steps):
        raise StoreError(f"{where} has {len(steps)} steps for a chain of {len(candidate.steps)}")
    return Record(
        unit=as_int(fields["unit"], f"the unit of {where}", 0, units - 1),
        key=key,
        covers=covers,
        facts=read_facts(fields["facts"]),
        candidate=candidate,
        steps=tuple(_read_step(step, f"a step of {where}", payloads) for step in steps),
        claims=_read_claims(fields["claims"], where),
        tolerance=_read_tolerance(fields["tolerance"], where),
        verdict=_read_figures(fields["figures"], where),
    )


def _read_step(form: Json, where: str, payloads: Sequence[Payload]) -> Step:
    fields = as_fields(form, where, ("version", "dumped", "files", "reason"))
    dumped = fields["dumped"]
    if dumped is not None and not isinstance(dumped, dict):
        raise StoreError(f"what was dumped for {where} is no table")
    pairs = [as_pair(pair, f"a file of {where}") for pair in as_list(fields["files"], f"the files of {where}", FILES)]
    if dumped is None and pairs:
        raise StoreError(f"{where} has files, and nothing was dumped")
    names = checked_names([name for name, _ in pairs], where)
    numbers = [as_int(number, f"a payload of {where}", 0, len(payloads) - 1) for _, number in pairs]
    files = tuple(zip(names, numbers, strict=True))
    if any(payloads[n].kind == "weights" for _, n in files):
        raise StoreError(f"{where} names the object's weights as a payload of its own")
    return Step(
        version=as_text(fields["version"], f"the version of {where}", 256),
        dumped=dumped,
        files=files,
        reason=as_text(fields["reason"], f"the reason of {where}"),
    )


def checked_names(names: Sequence[Json], where: str) -> list[str]:
    """A plugin's file names: plain characters, relative, at most `DEPTH` folders deep, no two in one place.

    Raises:
        StoreError: one is not.
    """
    found = [_checked_name(name, where) for name in names]
    lower = [name.lower() for name in found]  # a disk may not tell them apart
    folders = {name[:at] for name in lower for at, letter in enumerate(name) if letter == "/"}
    if len(set(lower)) != len(lower) or folders & set(lower):
        raise StoreError(f"{where} has two files in one place")
    return found


def _checked_name(name: Json, where: str) -> str:
    text = as_text(name, f"a file name of {where}", 512)
    parts = text.split("/")
    if len(parts) > DEPTH + 1 or not all(NAME.fullmatch(part) for part in parts):
        raise StoreError(f"a file of {where} has a name that is not allowed: {text[:80]!r}")
    return text


def _read_claims(form: Json, where: str) -> Claims:
    fields = as_fields(form, f"the claims of {where}", ("weights", "needs_strides", "fork_safe", "concurrent"))
    level = as_text(fields["weights"], f"the weights' level of {where}", 16)
    if level not in Weights.__members__:
        raise StoreError(f"the weights' level of {where} is {level!r}, and there is none of that name")
    flags = {name: as_bool(fields[name], f"{name} of {where}") for name in fields if name != "weights"}
    return Claims(weights=Weights[level], **flags)


def _read_tolerance(form: Json, where: str) -> Tolerance:
    fields = as_fields(form, f"the tolerance of {where}", ("factor", "relative"))
    relative = fields["relative"]
    return Tolerance(
        factor=_read_number(fields["factor"], f"the tolerance of {where}"),
        relative=None if relative is None else _read_number(relative, f"the tolerance of {where}"),
    )


def _read_figures(form: Json, where: str) -> Verdict | None:
    if form is None:
        return None
    fields = as_fields(form, f"the figures of {where}", FIGURES)
    numbers = {
        name: None if value is None else _read_number(value, f"the figures of {where}", zero=True)
        for name, value in fields.items()
    }
    return evolve(Verdict(ok=True), **numbers)


def _read_number(form: Json, where: str, *, zero: bool = False) -> float:
    if type(form) not in {int, float} or not (0 <= form <= 1e12) or (form == 0 and not zero):  # noqa: PLR2004
        raise StoreError(f"{where} is no number above 0")
    return float(form)


def _read_weights(form: Json, payloads: Sequence[Payload]) -> SavedWeights:
    fields = as_fields(form, "its weights", ("payload", "names"))
    number = as_int(fields["payload"], "the payload of its weights", 0, len(payloads) - 1)
    if payloads[number].kind != "weights":
        raise StoreError("the payload of its weights holds something else")
    names = [
        tuple(as_text(name, "the name of a weight") for name in as_list(row, "the names of a weight"))
        for row in as_list(fields["names"], "its weights")
    ]
    if not all(names) or len({name for row in names for name in row}) != sum(map(len, names)):
        raise StoreError("its weights have no name, or two have one")
    return SavedWeights(payload=number, names=tuple(names))
