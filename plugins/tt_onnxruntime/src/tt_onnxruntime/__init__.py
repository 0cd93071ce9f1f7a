"""The ONNX Runtime backend of tt-core: a unit exported to ONNX, run in one session on torch's own memory.

Nothing heavy is imported until a probe or a build asks for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

import tt_core as tt

__version__ = "0.1.0"


@tt.hookimpl
def tt_backends() -> tt.Backend:
    """One backend, in the unit's own precision."""
    return tt.Backend(
        name="onnxruntime",
        devices=frozenset({"cpu", "cuda"}),
        fidelity=tt.Fidelity.CLOSE,
        priority=55,
        weights=tt.Weights.VALUES,
        payload=tt.Payload.DATA,
        keeps=frozenset({tt.Keeps.ALIASES, tt.Keeps.NON_TENSORS}),
        own_threads=True,
    )


@tt.hookimpl
def tt_probe(device: torch.device) -> tt.Ready | tt.Unavailable:
    """Whether new enough packages are installed and have a provider for the device."""
    from tt_onnxruntime.probe import probe

    return probe(device)


@tt.hookimpl
def tt_build(unit: tt.Unit, calls: tt.Calls, device: torch.device, options: Mapping[str, Any]) -> tt.Built:
    """Exports a unit and makes a session of it; refuses with a reason what ONNX Runtime would not keep."""
    from tt_onnxruntime.build import build

    return build(unit, calls, device, options)


@tt.hookimpl
def tt_dump(built: tt.Built, folder: Path) -> Mapping[str, Any]:
    """Writes the ONNX models with their weights beside them: data that is parsed, never run as code."""
    from tt_onnxruntime.dump import dump

    return dump(built, folder)


@tt.hookimpl
def tt_restore(
    unit: tt.Unit,
    key: tt.CallKey,
    covers: tt.Shapes | None,
    dumped: Mapping[str, Any],
    folder: Path,
    device: torch.device,
) -> tt.Built:
    """Makes sessions of what `tt_dump` wrote; nothing is exported, and only operators of ONNX itself are taken."""
    from tt_onnxruntime.restore import restore

    return restore(unit, key, covers, dumped, folder, device)
