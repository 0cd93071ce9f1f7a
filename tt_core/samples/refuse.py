"""Objects that cannot be tuned, each with its sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from tt_core.errors import KindError, UsageError
from tt_core.state import Found, find

_WRAPPERS = {
    "OptimizedModule": "is already compiled by torch.compile: give the module that it wraps, `._orig_mod`",
    "DataParallel": "replicates its module over several devices on each call: give the module that it wraps, `.module`",
    "DistributedDataParallel": "is wrapped for distributed training: give the module that it wraps, `.module`",
    "FullyShardedDataParallel": "keeps only shards of its weights here: gather them into a plain module first",
    "FSDPModule": "keeps only shards of its weights here: gather them into a plain module first",
}
"""Class names, also of bases: importing the classes would load torch.distributed and dynamo."""


def refuse(obj: Any) -> None:
    """Raises where `obj` cannot be tuned; before any work.

    Args:
        obj: what the user wants tuned.

    Raises:
        KindError: compiled, scripted, parallel or sharded modules, modules spread over several devices.
        UsageError: no module inside, or lazy modules that have no weights yet.
    """
    found = find(obj)
    if not found:
        raise UsageError(
            f"{type(obj).__name__!r} holds no torch.nn.Module: give a module, or an object that holds some"
        )
    for each in found:
        _refuse_wrapped(each)
        _refuse_spread(each)
    _refuse_script(found)


def _refuse_wrapped(each: Found) -> None:
    for kind in type(each.module).__mro__:
        if kind.__name__ in _WRAPPERS and kind.__module__.startswith("torch."):
            raise KindError(f"{_what(each)} {_WRAPPERS[kind.__name__]}")
    if getattr(each.module, "_compiled_call_impl", None) is not None:
        raise KindError(f"{_what(each)} was compiled with .compile(): give a module that was not")
    if any(isinstance(p, nn.UninitializedParameter) for p in vars(each.module).get("_parameters", {}).values()):
        raise UsageError(f"{_what(each)} is lazy and has no weights yet: run the object once on a sample first")


def _refuse_spread(each: Found) -> None:
    placed = getattr(each.module, "hf_device_map", None)
    devices = sorted({str(device) for device in placed.values()}) if isinstance(placed, dict) else []
    if len(devices) > 1:
        names = ", ".join(devices)
        raise KindError(f"{_what(each)} is spread over several devices ({names}): load it on one, without device_map")


def _refuse_script(found: Sequence[Found]) -> None:
    """Scripted parts inside a plain module stay eager with it; an object of nothing else has nothing to tune."""
    outer = found[0]
    if isinstance(outer.module, torch.jit.ScriptModule) and (
        not outer.path or all(isinstance(each.module, torch.jit.ScriptModule) for each in found)
    ):
        raise KindError(
            f"{_what(outer)} is a ScriptModule, compiled by torch.jit: give the Python module it was made of"
        )


def _what(each: Found) -> str:
    kind = type(each.module).__name__
    return f"{each.path!r} ({kind})" if each.path else f"the object ({kind})"
