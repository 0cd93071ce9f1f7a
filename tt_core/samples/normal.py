"""One sample as the user wrote it becomes one call."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from tt_core import trees
from tt_core.errors import KindError, UsageError
from tt_core.values import Call

_ANY = inspect.signature(lambda *args, **kwargs: None)  # noqa: ARG005  the signature of what has none


def signature_of(obj: Any) -> inspect.Signature | None:
    """How `obj` is called: a module's `forward`, or the object itself; None where it cannot be called."""
    target = obj.forward if isinstance(obj, nn.Module) else obj
    if not callable(target):
        return None
    try:
        return inspect.signature(target)
    except (TypeError, ValueError):
        return _ANY


def call_of(sample: Any, signature: inspect.Signature, place: str, *, from_loader: bool = False) -> Call:
    """The call that a sample stands for.

    Args:
        sample: a `Call`; a tuple: positional arguments, or exactly (tuple, dict with str keys): both; a Mapping: keyword
            arguments where the signature binds them, else one argument; anything else: one argument.
        signature: of the object.
        place: `sample 3`, for messages.
        from_loader: whether a list is a tuple that a DataLoader collated.

    Raises:
        UsageError: the signature does not take it.
        KindError: a sample that cannot be an argument.
    """
    if sample is None or isinstance(sample, nn.Module):
        raise KindError(
            f"{place} is {'None' if sample is None else 'a module'}: a sample holds what the model is called with"
        )
    call = _spelled(sample, signature, place, from_loader=from_loader)
    problem = why_unbound(signature, call)
    if problem is not None:
        raise UsageError(
            f"{place} does not fit {_text(signature)}: {problem}.{prefix_hint(signature, call)}"
        ) from problem
    return call


def _spelled(sample: Any, signature: inspect.Signature, place: str, *, from_loader: bool) -> Call:
    if isinstance(sample, Call):
        return sample
    if type(sample) is tuple or (from_loader and type(sample) is list):
        both = len(sample) == 2 and isinstance(sample[0], tuple) and _keywords(sample[1])  # noqa: PLR2004
        return Call(*sample[0], **sample[1]) if both else Call(*sample)
    if isinstance(sample, Mapping):
        return _mapping(sample, signature, place)
    return Call(sample)


def _keywords(value: Any) -> bool:
    return type(value) is dict and all(isinstance(key, str) for key in value)


def _mapping(sample: Mapping[Any, Any], signature: inspect.Signature, place: str) -> Call:
    if all(isinstance(key, str) for key in sample):
        named = Call(**dict(sample))
        if why_unbound(signature, named) is None:
            return named
    meant = set(sample) & set(signature.parameters)  # some keys are parameters: it was meant as keyword arguments
    if not meant and why_unbound(signature, Call(sample)) is None:
        return Call(sample)
    keys = ", ".join(map(repr, list(sample)[:12]))
    raise UsageError(f"{place} has the keys {keys}, which {_text(signature)} does not take: rename or drop keys")


def why_unbound(signature: inspect.Signature, call: Call) -> TypeError | None:
    """Why the signature does not take the call, None where it does."""
    try:
        signature.bind(*call.args, **call.kwargs)
    except TypeError as error:
        return error
    return None


def prefix_hint(signature: inspect.Signature, call: Call) -> str:
    """The advice for samples that carry labels: which prefix of the positional arguments the object takes."""
    for count in range(1, len(call.args)):
        if why_unbound(signature, Call(*call.args[:count], **call.kwargs)) is None:
            part = "s[0]" if count == 1 else f"*s[:{count}]"
            return f" If the rest are labels, give inference_function=lambda m, s: m({part})"
    return ""


def whole_hint(signature: inspect.Signature, call: Call) -> str:
    """The advice for a mapping that was passed whole since its keys are no parameters."""
    if len(call.args) == 1 and not call.kwargs and isinstance(call.args[0], Mapping):
        return f" The mapping was passed whole: its keys are no parameters of {_text(signature)}"
    return ""


def _text(signature: inspect.Signature) -> str:
    names = ", ".join(str(p).split(":")[0].split("=")[0].strip() for p in signature.parameters.values())
    return f"forward({names})"


def tensors_in(sample: Any) -> list[torch.Tensor]:
    """The tensors of a sample, normalised or not, in order."""
    return trees.tensors((sample.args, sample.kwargs) if isinstance(sample, Call) else sample)
