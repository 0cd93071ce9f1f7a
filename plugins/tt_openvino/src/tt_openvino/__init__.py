"""The OpenVINO backend of tt-core: a unit exported, compiled for one device, run without copies where that pays.

Nothing heavy is imported until a probe or a build asks for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import tt_core as tt

__version__ = "0.1.0"


@tt.hookimpl
def tt_backends() -> Sequence[tt.Backend]:
    """One backend in the unit's own precision, and one for each lower precision, which only a user's asking brings in."""
    return tuple(_backend(name) for name in ("openvino", "openvino_bf16", "openvino_f16"))


def _backend(name: str) -> tt.Backend:
    return tt.Backend(
        name=name,
        devices=frozenset({"cpu", "xpu"}),
        fidelity=tt.Fidelity.CLOSE if name == "openvino" else tt.Fidelity.LOSSY,
        priority=60,
        weights=tt.Weights.VALUES,
        payload=tt.Payload.DATA,
        keeps=frozenset({tt.Keeps.ALIASES, tt.Keeps.NON_TENSORS}),
        own_threads=True,
    )


@tt.hookimpl
def tt_probe(backend: str, device: torch.device) -> tt.Ready | tt.Unavailable:
    """Whether a new enough OpenVINO is installed and sees the device."""
    from tt_openvino.probe import probe

    return probe(backend, device)


@tt.hookimpl
def tt_build(
    backend: str, unit: tt.Unit, calls: tt.Calls, device: torch.device, options: Mapping[str, Any]
) -> tt.Built:
    """Exports, converts and compiles a unit; refuses with a reason what OpenVINO would not keep."""
    from tt_openvino.build import build

    return build(backend, unit, calls, device, options)


@tt.hookimpl
def tt_dump(built: tt.Built, folder: Path) -> Mapping[str, Any]:
    """Writes OpenVINO's own description of each model, with its weights: data that is parsed, never run as code."""
    from tt_openvino.dump import dump

    return dump(built, folder)


@tt.hookimpl
def tt_restore(
    backend: str,
    unit: tt.Unit,
    key: tt.CallKey,
    covers: tt.Shapes | None,
    dumped: Mapping[str, Any],
    folder: Path,
    device: torch.device,
) -> tt.Built:
    """Compiles what `tt_dump` wrote; nothing is exported or converted, and only OpenVINO's own operators are taken."""
    from tt_openvino.restore import restore

    return restore(backend, unit, key, covers, dumped, folder, device)
