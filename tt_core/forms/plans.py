"""A plan as JSON and back: the recipe that is committed."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from tt_core.errors import StoreError
from tt_core.forms.keys import key_form, read_shadow
from tt_core.forms.leaves import told
from tt_core.forms.parts import candidate_form, cut_form, read_candidate, read_cut, read_shapes, shapes_form
from tt_core.forms.reading import Json, as_fields, as_int, as_list, as_text, shown
from tt_core.values import EAGER, Choice, Plan, evolve

KIND = "tt_core plan"
FORMAT = 1
_FACTS = 256
"""Entries of an environment."""


def plan_form(plan: Plan) -> Json:
    """A plan as JSON.

    Raises:
        StoreError: a part has no form.
    """
    return {
        "kind": KIND,
        "format": FORMAT,
        "cut": cut_form(plan.cut),
        "choices": [form for choice in plan.choices if (form := _told(choice)) is not None],
        "environment": {name: str(value) for name, value in sorted(plan.environment.items())},
        "weights_print": plan.weights_print,
    }


def _told(choice: Choice) -> Json:
    """A choice as JSON; None for a call without a form that stays eager, as calls that a plan does not know do."""
    try:
        return choice_form(choice)
    except StoreError:
        if choice.candidate == EAGER:
            return None
        raise


def plan_of(given: Any) -> Plan:
    """The plan of a form, or of the JSON text of one.

    Raises:
        StoreError: as `read_plan`; a text that is no JSON.
    """
    if isinstance(given, bytes | str):
        try:
            given = json.loads(given)
        except (ValueError, RecursionError) as error:  # ValueError: no JSON, no UTF-8, a number of too many digits
            raise StoreError(f"this is no plan: the text is no JSON ({error})") from error
    return read_plan(dict(given) if isinstance(given, Mapping) else given)


def read_plan(form: Json) -> Plan:
    """The plan of a form. A key with a long text has the print of the original, and is not equal to it.

    Raises:
        StoreError: malformed, or of a newer format.
    """
    if not isinstance(form, dict) or form.get("kind") != KIND:
        raise StoreError(f"this is no plan: a table with the kind {KIND!r} is needed, as plan.to_json() makes it")
    if type(form.get("format")) is int and form["format"] > FORMAT:
        raise StoreError(f"the plan has format {form['format']}, this tt-core reads {FORMAT}: install a newer tt-core")
    fields = as_fields(form, "the plan", ("kind", "format", "cut", "choices", "environment"), ("weights_print",))
    as_int(fields["format"], "the format of the plan", FORMAT, FORMAT)
    plan = Plan(
        cut=read_cut(fields["cut"]),
        choices=tuple(read_choice(one) for one in as_list(fields["choices"], "the choices of the plan")),
        environment=_read_environment(fields["environment"]),
        weights_print=as_text(fields.get("weights_print", ""), "the weights' print"),
    )
    for choice in plan.choices:
        stray = [path for path in (choice.unit, *choice.members) if path not in plan.cut.units]
        if stray:
            raise StoreError(f"the plan has a choice for {shown(stray[0])}, which is no unit of its cut")
    return plan


def choice_form(choice: Choice) -> Json:
    """A choice as JSON; `call` is for people and not read.

    Raises:
        StoreError: its key or candidate has no form.
    """
    from tt_core.callkey import describe  # here: `values` asks this room for its plans, and callkey is made of values

    members = [] if choice.members in {(), (choice.unit,)} else list(choice.members)
    return {
        "unit": choice.unit,
        **({"members": members} if members else {}),
        "candidate": candidate_form(choice.candidate),
        "call": describe(evolve(choice.key, leaves=tuple(map(told, choice.key.leaves))), choice.covers),
        "why": choice.why,
        "covers": shapes_form(choice.covers),
        "key": key_form(choice.key),
    }


def read_choice(form: Json) -> Choice:
    """The choice of a form."""
    fields = as_fields(form, "a choice", ("unit", "candidate", "key"), ("members", "call", "why", "covers"))
    unit = as_text(fields["unit"], "the unit of a choice")
    members: list[Any] = as_list(fields.get("members", [unit]), "the members of a choice")
    key = read_shadow(fields["key"])
    covers = read_shapes(fields.get("covers"))
    if covers is not None and [len(leaf) for leaf in covers.leaves] != [leaf.rank for leaf in key.tensors]:
        raise StoreError(f"the sizes of the choice for {shown(unit)} do not fit its call key")
    return Choice(
        unit=unit,
        key=key,
        candidate=read_candidate(fields["candidate"]),
        covers=covers,
        members=tuple(as_text(path, "a member of a choice") for path in members),
        why=re.sub(r"\s+", " ", as_text(fields.get("why", ""), "the reason of a choice", 10_000)),
    )


def _read_environment(form: Json) -> dict[str, str]:
    if not isinstance(form, dict) or len(form) > _FACTS:
        raise StoreError(f"the environment of the plan is no table of at most {_FACTS}")
    return {as_text(name, "a fact's name"): as_text(value, f"fact {name!r}") for name, value in form.items()}
