"""Whether graphs can be captured here."""

from __future__ import annotations

import torch

import tt_core as tt
from tt_xpugraph.interface import interface_of

_NEVER_RUN = "never run on an XPU so far"


def ask(device: torch.device) -> tt.Ready | tt.Unavailable:
    """Whether torch sees the device, and has a graph interface for it. Captures nothing.

    Args:
        device: where the units are.
    """
    module = getattr(torch, device.type, None)
    if module is None or not module.is_available():
        hint = f"install a build of torch for {device.type}"
        return tt.Unavailable(reason=f"torch {torch.__version__} sees no {device.type} device", hint=hint)
    count = module.device_count()
    if device.index is not None and device.index >= count:
        return tt.Unavailable(reason=f"there is no {device}: torch sees {count} of them")
    interface = interface_of(device)
    if interface is None:
        reason = f"torch {torch.__version__} has no graphs for {device.type}"
        return tt.Unavailable(reason=reason, hint="install torch 2.11 or newer")
    untried = f", {_NEVER_RUN}" if device.type == "xpu" else ""
    return tt.Ready(note=f"torch {torch.__version__}, {interface.name}{untried}")
