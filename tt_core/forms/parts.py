"""Shapes, facts, candidates and cuts as JSON and back."""

from __future__ import annotations

import math
import re
from typing import Any

import attrs

from tt_core.errors import StoreError
from tt_core.forms.reading import (
    LARGEST,
    Json,
    as_bool,
    as_fields,
    as_int,
    as_list,
    as_text,
    shown,
)
from tt_core.values import Axis, Candidate, Cut, Facts, Shapes

_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_STEPS = 8
_OPTIONS = 64
_RANK = 64
_NEVER = -1


def shapes_form(shapes: Shapes | None) -> Json:
    """Sizes as JSON: a list a tensor, a number or a range an axis; None: any sizes."""
    return None if shapes is None else [[_size_form(size) for size in leaf] for leaf in shapes.leaves]


def read_shapes(form: Json) -> Shapes | None:
    """The sizes of a form."""
    if form is None:
        return None
    leaves = [as_list(leaf, "the sizes of a tensor", _RANK) for leaf in as_list(form, "sizes")]
    return Shapes(leaves=tuple(tuple(_read_size(size) for size in leaf) for leaf in leaves))


def _size_form(size: int | Axis) -> Json:
    return {"lo": size.lo, "hi": size.hi, "symbol": size.symbol} if isinstance(size, Axis) else size


def _read_size(form: Json) -> int | Axis:
    if not isinstance(form, dict):
        return as_int(form, "a size", _NEVER)
    fields = as_fields(form, "an axis", ("lo", "hi", "symbol"))
    lo = as_int(fields["lo"], "the smallest size of an axis")
    return Axis(
        lo=lo,
        hi=as_int(fields["hi"], "the largest size of an axis", lo, LARGEST),
        symbol=as_text(fields["symbol"], "the symbol of an axis"),
    )


def _fields(facts: Any) -> dict[str, Any]:
    return attrs.asdict(facts)


def facts_form(facts: Facts) -> Json:
    """Facts as JSON: those that are not usual."""
    plain, held = _fields(Facts()), _fields(facts)
    told = {name: value for name, value in held.items() if value != plain[name]}
    return {name: value if isinstance(value, bool) else sorted(value) for name, value in told.items()}


def read_facts(form: Json) -> Facts:
    """The facts of a form."""
    plain = _fields(Facts())
    fields = as_fields(form, "facts", (), plain)
    return Facts(**{name: _read_fact(value, name, plain[name]) for name, value in fields.items()})


def _read_fact(form: Json, name: str, usual: Any) -> Any:
    if isinstance(usual, bool):
        return as_bool(form, f"fact {name!r}")
    texts = [as_text(one, f"fact {name!r}") for one in as_list(form, f"fact {name!r}")]
    return type(usual)(texts)


def candidate_form(candidate: Candidate) -> Json:
    """A candidate as JSON: its steps, innermost first.

    Raises:
        StoreError: an option is neither a plain constant nor a flat list of some.
    """
    return [
        {"backend": name} | ({"options": {k: _option_form(k, v) for k, v in options}} if options else {})
        for name, options in candidate.steps
    ]


def read_candidate(form: Json) -> Candidate:
    """The candidate of a form."""
    steps = [_read_step(step) for step in as_list(form, "a candidate", _STEPS)]
    if not steps:
        raise StoreError("a candidate has no step")
    return Candidate(steps=steps)


def _read_step(form: Json) -> tuple[str, dict[str, Any]]:
    fields = as_fields(form, "a step of a candidate", ("backend",), ("options",))
    name = as_text(fields["backend"], "the name of a backend")
    if not _NAME.fullmatch(name):
        raise StoreError(f"{shown(name)} is no name of a backend")
    options = fields.get("options", {})
    if not isinstance(options, dict) or len(options) > _OPTIONS:
        raise StoreError(f"the options of {name!r} are no table of at most {_OPTIONS}")
    return name, {
        as_text(k, f"an option of {name!r}", 64): _read_option(v, f"option {k!r}") for k, v in options.items()
    }


def _option_form(name: str, value: Any) -> Json:
    if isinstance(value, list | tuple):
        return [_scalar(name, one) for one in value]
    return _scalar(name, value)


def _scalar(name: str, value: Any) -> Json:
    plain = value is None or type(value) in {bool, int, str} or (type(value) is float and math.isfinite(value))
    if not plain:
        raise StoreError(
            f"option {name}={shown(value)} has no form: a number, a text, true, false, none or a list of them"
        )
    return value


def _read_option(form: Json, where: str) -> Any:
    if isinstance(form, list):
        return tuple(_read_scalar(one, where) for one in as_list(form, where, _OPTIONS))
    return _read_scalar(form, where)


def _read_scalar(form: Json, where: str) -> Any:
    if form is None or type(form) is bool:
        return form
    if type(form) is int:
        return as_int(form, where, -LARGEST)
    if type(form) is float and math.isfinite(form):
        return form
    return as_text(form, where)


def cut_form(cut: Cut) -> Json:
    """A cut as JSON."""
    return {"depths": list(cut.depths), "units": list(cut.units)}


def read_cut(form: Json) -> Cut:
    """The cut of a form."""
    fields = as_fields(form, "a cut", ("depths", "units"))
    units = tuple(as_text(path, "a unit") for path in as_list(fields["units"], "the units of a cut"))
    depths = tuple(as_int(depth, "a depth", 0, 10_000) for depth in as_list(fields["depths"], "the depths of a cut"))
    if len(set(units)) != len(units):
        raise StoreError("a cut names one unit twice")
    return Cut(depths=depths, units=units)
