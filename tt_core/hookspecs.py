"""The hooks of tt_core: what a plugin may implement, when each is asked, and what its answers mean.

An implementation may take any subset of a hook's arguments, without default values. Raising is contained and costs
only the plugin that raises. See `docs/hooks.md` for the order of calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import pluggy
import torch

from tt_core.values import (
    Backend,
    Built,
    Call,
    CallKey,
    Calls,
    Facts,
    Limits,
    Observation,
    Ready,
    Shapes,
    Tolerance,
    Trial,
    Unavailable,
    Unit,
    Verdict,
)

PROJECT = "tt_core"
API = 1
"""The version of these specs; `Backend.api` must lie in `OLDEST_API..API`."""
OLDEST_API = 1

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
"""Marks a function or method of a plugin as the implementation of the hook of the same name."""


@runtime_checkable
class Timer(Protocol):
    """Measures on one device. Rounds and statistics are not its business."""

    def now(self) -> float:
        """Seconds of a monotonic clock."""
        ...

    def block(self, call: Any, calls: Sequence[Call]) -> list[float]:
        """Runs `call(*c.args, **c.kwargs)` for each of `calls` in order.

        Returns:
            Seconds of each call, the device synchronised before and after each.
        """
        ...


@hookspec
def tt_backends() -> Backend | Sequence[Backend]:  # type: ignore[empty-body]
    """Asked of each plugin once, right after it was loaded: the backends it declares. Must be cheap: no heavy imports."""


@hookspec(firstresult=True)
def tt_probe(backend: str, device: torch.device) -> Ready | Unavailable | None:
    """Asked of the owner once per (backend, device) and process: can it run here?

    Returns:
        `Ready(note)` or None: yes. `Unavailable(reason, hint)`: no. Raising counts as unavailable.
    """


@hookspec(firstresult=True)
def tt_build(  # type: ignore[empty-body]
    backend: str,
    unit: Unit,
    calls: Calls,
    device: torch.device,
    options: Mapping[str, Any],
    inner: Built | None,
    limits: Limits,
) -> Built:
    """Asked of the owner for each candidate of each unit and call key, under `torch.no_grad()`.

    Args:
        backend: the name, for plugins that declare several.
        unit: `unit.module` runs its original forward, and so do its children; `unit.forward` is that original.
        calls: key, sizes, recorded samples and facts; the samples' tensors must not be written to.
        device: where the unit's tensors are.
        options: one of the declared option variants, or what the user asked for.
        inner: what the inner candidate built, for layers; None otherwise.
        limits: seconds, bytes and a private folder.

    Returns:
        A `Built` that is right for all of `calls`. Raise `BuildRefusedError(reason, hint)` to refuse with a reason; any
        other exception counts as a failed build.
    """


@hookspec(firstresult=True)
def tt_rebind(backend: str, built: Built, unit: Unit, limits: Limits) -> Built | None:
    """Asked of the owner for a unit of the same program with other weights (twins, refresh, load).

    Returns:
        A `Built` for `unit`, or None: build it anew.
    """


@hookspec
def tt_check(
    facts: Facts,
    expected: Sequence[Observation],
    actual: Sequence[Observation],
    truth: Sequence[Observation | None],
    tolerance: Tolerance,
) -> Verdict | None:
    """Asked of every plugin for each built; all must agree. A check can only veto, and is not told the backend.

    Args:
        facts: what eager runs of the unit showed.
        expected: eager's observation of each sample.
        actual: the candidate's observation of each sample, read after the last sample ran.
        truth: the float64 observation of each sample, None where float64 could not run.
        tolerance: the caller's tolerance.

    Returns:
        A verdict, or None: no opinion. Raising counts as a veto.
    """


@hookspec(firstresult=True)
def tt_timer(device: torch.device) -> Timer | None:
    """Asked once a run; the first answer measures every candidate and eager alike. None: let others answer."""


@hookspec
def tt_trial_done(trial: Trial) -> None:
    """Told to each plugin after every trial. Answers and errors are ignored."""


@hookspec(firstresult=True)
def tt_dump(backend: str, built: Built, folder: Path) -> Mapping[str, Any]:  # type: ignore[empty-body]
    """Asked of the owner to write a built into an empty `folder`; returns JSON that `tt_restore` gets back.

    File names are plain (letters, digits, `_`, `-`, `.`), at most four folders deep. A built that was restored can be
    written again.
    """


@hookspec(firstresult=True)
def tt_restore(  # type: ignore[empty-body]
    backend: str,
    unit: Unit,
    key: CallKey,
    covers: Shapes | None,
    dumped: Mapping[str, Any],
    folder: Path,
    device: torch.device,
    inner: Built | None,
) -> Built:
    """Asked of the owner to make a built again from what `tt_dump` returned and wrote; no samples exist here.

    The folder is private, and gone when the hook returns. A backend of payload DATA parses both as input that nobody
    vouches for; what runs native code declares `Payload.CODE`.
    """
