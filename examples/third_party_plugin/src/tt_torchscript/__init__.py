"""TorchScript as a backend of tt-core: a unit traced, frozen, and optimised for inference."""

from __future__ import annotations

import torch

import tt_core as tt

__version__ = "0.3.0"


@tt.hookimpl
def tt_backends() -> tt.Backend:
    """One backend, whose weights are constants of the optimised program."""
    return tt.Backend(
        name="torchscript",
        devices=frozenset({"cpu", "cuda"}),
        fidelity=tt.Fidelity.CLOSE,
        priority=30,
        weights=tt.Weights.VALUES,
        keeps=frozenset({tt.Keeps.ALIASES, tt.Keeps.NON_TENSORS}),
    )


@tt.hookimpl
def tt_probe(device: torch.device) -> tt.Ready | tt.Unavailable:
    """TorchScript is part of torch; one day it may not be."""
    if not hasattr(torch.jit, "optimize_for_inference"):
        return tt.Unavailable(reason=f"torch {torch.__version__} has no TorchScript", hint="install an older torch")
    return tt.Ready(note=f"TorchScript of torch {torch.__version__} on {device.type}")


@tt.hookimpl
def tt_build(unit: tt.Unit, calls: tt.Calls) -> tt.Built:
    """Traces the unit as a function of tensors, and optimises what came out."""
    from tt_torchscript import program

    return program.build(unit, calls)
