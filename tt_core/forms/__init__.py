"""Values as plain JSON and back: small, readable, strict. Nothing is imported or run because a form says so."""

from __future__ import annotations

from tt_core.forms.keys import key_form, key_print, read_key
from tt_core.forms.parts import (
    candidate_form,
    cut_form,
    facts_form,
    read_candidate,
    read_cut,
    read_facts,
    read_shapes,
    shapes_form,
)
from tt_core.forms.plans import FORMAT, choice_form, plan_form, plan_of, read_choice, read_plan
from tt_core.forms.reading import Json

__all__ = [
    "FORMAT",
    "Json",
    "candidate_form",
    "choice_form",
    "cut_form",
    "facts_form",
    "key_form",
    "key_print",
    "plan_form",
    "plan_of",
    "read_candidate",
    "read_choice",
    "read_cut",
    "read_facts",
    "read_key",
    "read_plan",
    "read_shapes",
    "shapes_form",
]
