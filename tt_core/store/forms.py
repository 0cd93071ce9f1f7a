"""The forms that a file is made of."""

from __future__ import annotations

from tt_core.forms import (
    FORMAT,
    Json,
    candidate_form,
    choice_form,
    cut_form,
    facts_form,
    key_form,
    key_print,
    plan_form,
    read_candidate,
    read_choice,
    read_cut,
    read_facts,
    read_key,
    read_plan,
    read_shapes,
    shapes_form,
)

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
    "read_candidate",
    "read_choice",
    "read_cut",
    "read_facts",
    "read_key",
    "read_plan",
    "read_shapes",
    "shapes_form",
]
