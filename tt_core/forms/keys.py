"""A call key as JSON and back."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator

import torch

from tt_core.errors import StoreError
from tt_core.forms.leaves import Hashed, leaf_form, name_of, read_leaf, read_name
from tt_core.forms.nodes import read_tree, tree_form
from tt_core.forms.reading import Json, as_bool, as_fields, as_list, as_pair, as_text
from tt_core.values import Ambient, CallKey, ConstLeaf, TensorLeaf

_DIGEST = 8
"""Bytes of a key's print."""
_DEVICES = 16
"""Device types with autocast on at once."""


def key_form(key: CallKey) -> Json:
    """A call key as JSON: its arguments with each leaf in its place, and what surrounds the call.

    Raises:
        StoreError: an argument has no form: a class that no name finds, an uncommon constant.
    """
    return {
        "arguments": tree_form(key.tree, map(leaf_form, key.leaves)),
        "training": key.ambient.training,
        "autocast": [[device, name_of(dtype)] for device, dtype in key.ambient.autocast],
    }


def read_key(form: Json) -> CallKey:
    """The key of a form, equal to the one that it was made of.

    Raises:
        StoreError: malformed, of a class that is not imported, or with a constant of which only the hash was kept.
    """
    key = read_shadow(form)
    for text in _hashed(key.leaves):
        raise StoreError(
            f"a text constant of {text.length} characters is not kept: a call with it cannot be made again"
        )
    return key


def read_shadow(form: Json) -> CallKey:
    """The key of a form, long texts as their hashes: it has the print of the original, and may not be equal to it."""
    fields = as_fields(form, "a call key", ("arguments", "training", "autocast"))
    arguments = fields["arguments"]
    if not isinstance(arguments, dict) or set(arguments) != {"dict"}:
        raise StoreError("the arguments of a call key are no table by parameter")
    spec, leaves = read_tree(arguments, read_leaf)
    if not all(type(name) is str for name in spec.entries()):
        raise StoreError("a parameter's name is no text")
    autocast = as_list(fields["autocast"], "autocast", _DEVICES)
    return CallKey(
        tree=spec,
        leaves=tuple(leaves),
        ambient=Ambient(
            training=as_bool(fields["training"], "training"),
            autocast=tuple(_read_autocast(one) for one in autocast),
        ),
    )


def key_print(key: CallKey) -> str:
    """A short text that equal keys share, now and in another process.

    Raises:
        StoreError: as `key_form`.
    """
    text = json.dumps(key_form(key), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.blake2b(text.encode(), digest_size=_DIGEST).hexdigest()


def _read_autocast(form: Json) -> tuple[str, torch.dtype]:
    device, dtype = as_pair(form, "autocast")
    return as_text(device, "the device of autocast", 32), read_name(dtype, "the dtype of autocast", torch.dtype)


def _hashed(leaves: tuple[TensorLeaf | ConstLeaf, ...]) -> Iterator[Hashed]:
    """Every constant of which only the hash was kept, also inside a slice."""
    for leaf in leaves:
        if isinstance(leaf, ConstLeaf) and isinstance(leaf.value, Hashed):
            yield leaf.value
        elif isinstance(leaf, ConstLeaf) and isinstance(leaf.value, tuple):
            yield from _hashed(tuple(part for part in leaf.value if isinstance(part, ConstLeaf)))
