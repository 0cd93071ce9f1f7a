"""The compiled test of tensors and dicts, where tt-native is installed: one call in the place of one for each.

One that overlooks a change in a trial is not trusted, as dicts' versions are not: then each is asked in Python.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from tt_core.guards.versions import Version, notices

_Tensors = Sequence[torch.Tensor]
_Dicts = Sequence[dict[Any, Any]]
Snapshot = Callable[[_Tensors, _Tensors, _Dicts, _Dicts, Sequence[type[Any]]], Callable[[], bool]]
"""`Snapshot(tensors, written, dicts, empty, classes)()`: whether tensors are as they were (those in `written` but for their
values), dicts were not written to, empty ones are empty, and classes have the `forward` that they had."""

CHANGES: tuple[Callable[[torch.Tensor], object], ...] = (
    lambda t: t.untyped_storage().resize_(1 << 12),
    lambda t: setattr(t, "data", t.data.clone()),
    lambda t: setattr(t, "data", t.data.t()),
    lambda t: setattr(t, "data", t.data[:1]),
    lambda t: setattr(t, "data", t.data[1:]),
    lambda t: setattr(t, "data", t.data.view(torch.int32)),
    lambda t: setattr(t, "__class__", torch.nn.Parameter),
)
"""What must show of any tensor."""


def _write(tensor: torch.Tensor) -> object:
    return tensor.add_(0)


def tried(snapshot: Snapshot) -> Snapshot | None:
    """The same, or None where it overlooks a change, or sees one where there is none."""
    try:
        return snapshot if _trusted(snapshot) else None
    except (TypeError, ValueError, RuntimeError):
        return None


def _trusted(snapshot: Snapshot) -> bool:
    return notices(_counted(snapshot)) and all(_sees(*trial) for trial in _trials(snapshot))


def _sees(same: Callable[[], bool], change: Callable[[], object]) -> bool:
    if not (same() and same()):
        return False
    change()
    return not same()


def _trials(snapshot: Snapshot) -> Iterator[tuple[Callable[[], bool], Callable[[], object]]]:
    """Snapshots, each with a change that it must see."""
    empty: dict[str, int] = {}
    yield snapshot([], [], [], [empty], []), lambda: empty.update(entry=0)
    kind = type("Kind", (), {"forward": len})
    yield snapshot([], [], [], [], [kind]), lambda: setattr(kind, "forward", repr)
    for change in (*CHANGES, _write):
        tensor, other = torch.arange(4.0).view(2, 2), torch.zeros(1)
        yield snapshot([other, tensor], [], [], [], []), partial(change, tensor)
    for change in CHANGES:
        tensor = torch.arange(4.0).view(2, 2)
        same = snapshot([], [tensor], [], [], [])
        _write(tensor)
        yield same, partial(change, tensor)


def _counted(snapshot: Snapshot) -> Version:
    """Versions made of snapshots: how often one had to be taken anew."""
    taken: list[Callable[[], bool]] = []

    def version(holder: dict[Any, Any]) -> int:
        if not (taken and taken[-1]()):
            taken.append(snapshot([], [], [holder], [], []))
        return len(taken)

    return version


def _installed() -> tuple[Snapshot | None, str]:
    try:
        import tt_native
    except (ImportError, OSError) as error:  # not there, built for another torch, or its libraries are gone
        return None, "not installed" if getattr(error, "name", "") == "tt_native" else f"not in use: {error}"
    trusted = tried(tt_native.Snapshot)
    return trusted, "" if trusted is not None else "not in use: it overlooks changes on this Python and torch"


snapshot, why = _installed()
"""The compiled test, None where there is none to trust; and why there is none, empty where there is one."""
