"""Whether two trees of arguments or results are equal, containers included."""

from __future__ import annotations

from typing import Any

import torch

from tt_core import trees
from tt_core.state import identical
from tt_core.state.nodes import equal_values, is_array
from tt_core.state.walk import plain
from tt_core.values import Observation


def same_tree(a: Any, b: Any) -> bool:
    """Equal containers (keys and their order too) with equal leaves: tensors bit for bit, constants by value.

    Opaque objects count as equal where they are of one class: nothing is known about them.
    """
    left, left_tree = trees.flatten(a)
    right, right_tree = trees.flatten(b)
    return left_tree == right_tree and all(_same_leaf(x, y) for x, y in zip(left, right, strict=True))


def same_observation(a: Observation, b: Observation) -> bool:
    """Whether two runs gave the same results, and left the same inputs and the same state."""
    return (
        same_tree(a.result, b.result)
        and same_tree(a.inputs_after, b.inputs_after)
        and same_tree(dict(sorted(a.state_after.items())), dict(sorted(b.state_after.items())))
    )


def _same_leaf(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and identical(a, b)
    if plain(a) or is_array(a):
        return equal_values(a, b)
    return type(a) is type(b)
