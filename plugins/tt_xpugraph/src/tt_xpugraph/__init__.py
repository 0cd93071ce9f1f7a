"""The device-graph backends of tt_core: a unit's work captured once and replayed with one launch, on XPU and CUDA.

Both are layers: over the original forward, and over whatever a capturable backend built (`inductor+xpu_graph`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

import tt_core as tt

__version__ = "0.1.0"


@tt.hookimpl
def tt_backends() -> Sequence[tt.Backend]:
    """Declares `xpu_graph` and `cuda_graph`: one implementation, two device types."""
    return tuple(_backend(name, device) for name, device in (("xpu_graph", "xpu"), ("cuda_graph", "cuda")))


def _backend(name: str, device: str) -> tt.Backend:
    return tt.Backend(
        name=name,
        devices=frozenset({device}),
        # the very operators, but libraries may choose other kernels for some while they are captured
        fidelity=tt.Fidelity.CLOSE,
        priority=45,
        layer=True,
        weights=tt.Weights.STORAGE,
        payload=tt.Payload.DATA,
        keeps=frozenset({tt.Keeps.ALIASES, tt.Keeps.NON_TENSORS, tt.Keeps.RANDOM}),
    )


@tt.hookimpl
def tt_probe(device: torch.device) -> tt.Ready | tt.Unavailable:
    """Whether the device is there and torch can capture graphs on it."""
    from tt_xpugraph import probe

    return probe.ask(device)


@tt.hookimpl
def tt_build(
    unit: tt.Unit,
    calls: tt.Calls,
    device: torch.device,
    options: Mapping[str, Any],
    inner: tt.Built | None,
    limits: tt.Limits,
) -> tt.Built:
    """Captures `unit` for the recorded sizes; see `tt_xpugraph.options.Options` for what may be asked for."""
    from tt_xpugraph import build
    from tt_xpugraph.options import Options

    return build.build(unit, calls, device, Options.of(options), inner, limits)


@tt.hookimpl
def tt_dump(built: tt.Built) -> Mapping[str, Any]:
    """Says which sizes were captured, with which options; writes no file: a graph is captured anew where it is loaded."""
    from tt_xpugraph import stored

    return stored.dump(built)


@tt.hookimpl
def tt_restore(
    unit: tt.Unit,
    key: tt.CallKey,
    covers: tt.Shapes | None,
    dumped: Mapping[str, Any],
    device: torch.device,
    inner: tt.Built | None,
) -> tt.Built:
    """Captures graphs of the dumped sizes over `inner`, on made-up inputs."""
    from tt_xpugraph import stored

    return stored.restore(unit, key, covers, dumped, device, inner)
