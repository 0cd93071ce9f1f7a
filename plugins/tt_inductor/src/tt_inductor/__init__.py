"""The `inductor` backend of tt_core: PyTorch's own compiler, its programs cached apart from everybody else's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

import tt_core as tt

__version__ = "0.1.0"


@tt.hookimpl
def tt_backends() -> tt.Backend:
    """Declares `inductor`, with and without baked weights; imports no compiler."""
    return tt.Backend(
        name="inductor",
        devices=frozenset({"cpu", "cuda", "xpu"}),
        fidelity=tt.Fidelity.CLOSE,
        priority=50,
        options=({}, {"freezing": True}),
        capturable=True,
        weights=tt.Weights.LIVE,
        payload=tt.Payload.CODE,
        keeps=frozenset(tt.Keeps),
    )


@tt.hookimpl
def tt_probe(device: torch.device) -> tt.Ready | tt.Unavailable:
    """Looks for the compilers that generated kernels need; takes well under 2 s and imports none of them."""
    from tt_inductor import probe

    return probe.ask(device)


@tt.hookimpl
def tt_build(
    unit: tt.Unit, calls: tt.Calls, device: torch.device, options: Mapping[str, Any], limits: tt.Limits
) -> tt.Built:
    """Compiles `unit` for `calls`; see `tt_inductor.options.Options` for what may be asked for."""
    from tt_inductor import aot, auto, jit
    from tt_inductor.options import Options

    wanted = Options.of(options)
    if wanted.mode == "aot":
        return aot.build(unit, calls, wanted, device, limits)
    if wanted.mode == "jit":
        return jit.build(unit, calls, wanted, device)
    return auto.build(unit, calls, wanted, device, limits)


@tt.hookimpl
def tt_rebind(built: tt.Built, unit: tt.Unit) -> tt.Built | None:
    """Loads a package once more with a twin's weights; None for what was built with mode "jit"."""
    from tt_inductor import aot

    return aot.rebind(built, unit)


@tt.hookimpl
def tt_dump(built: tt.Built, folder: Path) -> Mapping[str, Any]:
    """Writes the package of a built of mode "aot"; refuses one of mode "jit", which is built anew when it is loaded."""
    from tt_inductor import stored

    return stored.dump(built, folder)


@tt.hookimpl
def tt_restore(
    unit: tt.Unit,
    key: tt.CallKey,
    covers: tt.Shapes | None,
    dumped: Mapping[str, Any],
    folder: Path,
    device: torch.device,
) -> tt.Built:
    """Loads what `tt_dump` wrote, without compiling."""
    from tt_inductor import stored

    if covers is None:
        raise tt.BuildRefusedError("the sizes that it covered were not kept")
    return stored.restore(unit, key, covers, dumped, folder, device)
