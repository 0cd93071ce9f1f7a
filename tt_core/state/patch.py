"""Replaces the `forward` of instances for the length of a block."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import nn

Spy = Callable[..., Any]
_ABSENT = object()


@contextlib.contextmanager
def patched(pairs: Sequence[tuple[nn.Module, Callable[[Spy], Spy]]]) -> Iterator[None]:
    """Puts a wrapper around the `forward` of each module instance, and takes all of them off again, also on errors.

    The class, the attributes' order and the objects of `vars(module)` are as before afterwards; a `forward` that was
    already in the instance is put back as the very object. The wrapper keeps the signature of what it wraps.

    Args:
        pairs: modules, each with a function from its forward to the wrapper.
    """
    undo: list[tuple[nn.Module, Any]] = []
    try:
        for module, wrap in pairs:
            original = module.forward
            wrapper = functools.wraps(original)(wrap(original))
            undo.append((module, vars(module).get("forward", _ABSENT)))
            vars(module)["forward"] = wrapper
        yield
    finally:
        for module, before in reversed(undo):
            if before is _ABSENT:
                vars(module).pop("forward", None)
            else:
                vars(module)["forward"] = before
