"""Where something is wrong, for people: leaf, index, row and sample; and trees compared by their structure."""

from __future__ import annotations

import re
from collections.abc import Sequence

import optree
import torch

from tt_core import trees
from tt_core.values import valued

_FLAT = re.compile(r"\[<flat index (\d+)>\]")


@valued
class Difference:
    """Something that is wrong: one sentence, and where."""

    reason: str
    where: str


def labels(spec: optree.PyTreeSpec, name: str) -> list[str]:
    """The path of each leaf below `name`: `output[0]['mask']`."""
    return [name + _FLAT.sub(r"[\1]", path) for path in trees.names(spec)]


def at(name: str, sample: int, index: Sequence[int] = ()) -> str:
    """`output[0][4,17], row 4, sample 2`; a row is an index of the first axis."""
    spot = f"[{','.join(str(i) for i in index)}], row {index[0]}" if index else ""
    return f"{name}{spot}, sample {sample}"


def unravel(flat: int, shape: Sequence[int]) -> tuple[int, ...]:
    """The index of the element at position `flat` of a contiguous tensor."""
    index = torch.unravel_index(torch.tensor(flat), tuple(shape)) if shape else ()
    return tuple(int(i) for i in index)


def structure(want: optree.PyTreeSpec, got: optree.PyTreeSpec, name: str, sample: int) -> Difference | None:
    """The first place where two trees differ in container type, length or keys; None where they are equal."""
    if want == got:
        return None
    if want.type is not got.type:
        return Difference(reason=f"{name} is {_kind(got)} where eager gives {_kind(want)}", where=at(name, sample))
    if list(want.entries()) != list(got.entries()):
        reason = f"{name} holds {_entries(got)} where eager's holds {_entries(want)}"
        return Difference(reason=reason, where=at(name, sample))
    pairs = zip(want.children(), got.children(), _steps(want), strict=True)
    found = (structure(w, g, name + step, sample) for w, g, step in pairs)
    other = Difference(reason=f"{name} differs in its structure from eager's", where=at(name, sample))
    return next((one for one in found if one is not None), other)


def _kind(spec: optree.PyTreeSpec) -> str:
    return "a single value" if spec.type is None else f"a {spec.type.__name__}"


def _entries(spec: optree.PyTreeSpec) -> str:
    entries = list(spec.entries())
    return f"{len(entries)} entries" if all(isinstance(entry, int) for entry in entries) else repr(entries)


def _steps(spec: optree.PyTreeSpec) -> list[str]:
    """How each child is reached: `[0]`, `['mask']`, `.logits`."""
    accessors = spec.accessors()
    steps, first = [], 0
    for position, child in enumerate(spec.children()):
        step = accessors[first][:1].codify("") if child.num_leaves else f"[{position}]"
        steps.append(_FLAT.sub(r"[\1]", step))
        first += child.num_leaves
    return steps
