"""Mode "auto": which of the two ways to the same kernels a unit takes, and why."""

from __future__ import annotations

import attrs
import torch

import tt_core as tt
from tt_inductor import aot, jit, small
from tt_inductor.options import Options

_TWINS = 3
"""From so many units on, one package costs less than a compile for each: on a CPU a package takes about three times as
long (14 s and 5 s for two linear layers). On other devices, where this was not measured, twins are compiled one by one."""

_ALONE = "mode jit: its program is neither shared nor to be saved"
_FASTER = 1.05
"""A package takes longer to build, and falls back where weights are replaced: it has to be worth that."""


def build(unit: tt.Unit, calls: tt.Calls, options: Options, device: torch.device, limits: tt.Limits) -> tt.Built:
    """Builds ahead of time where that is worth its longer build, just in time elsewhere; the notes say which and why.

    Raises:
        BuildRefusedError: neither can; or weights are to be baked where a program is to be shared or saved.
        OverrunError: a build ahead of time reached its limit: another one would only add to it.
    """
    why = _why_aot(unit, options, device, limits)
    if not why:
        built = jit.build(unit, calls, options, device, why=_ALONE)
        raced = not unit.path and not options.freezing and device.type == "cpu" and small.is_small(built, calls, device)
        return _raced(built, unit, calls, options, device, limits) if raced else built
    if options.freezing:
        raise tt.BuildRefusedError(
            f"{why}, and baked weights cannot be shared or saved", 'mode="jit" bakes them for each unit on its own'
        )
    try:
        return aot.build(unit, calls, options, device, limits, why=f"mode aot: {why}")
    except tt.BuildRefusedError as refused:
        return jit.build(unit, calls, options, device, why=f"mode jit: {why}, but mode aot was refused: {refused}")


def _raced(
    just: tt.Built, unit: tt.Unit, calls: tt.Calls, options: Options, device: torch.device, limits: tt.Limits
) -> tt.Built:
    """A whole object of short calls: the faster one of both ways."""
    try:
        ahead = aot.build(unit, calls, options, device, limits)
    except (tt.BuildRefusedError, tt.OverrunError) as refused:
        return _noted(just, f"{_ALONE}; its calls are short, but mode aot was refused: {refused}")
    times = small.speedup(just, ahead, calls, device)
    kept, lost, mode = (ahead, just, "aot") if times > _FASTER else (just, ahead, "jit")
    lost.close()
    return _noted(kept, f"mode {mode}: its calls are short, and mode aot was {times:.2f}x as fast as mode jit, or more")


def _noted(built: tt.Built, note: str) -> tt.Built:
    return attrs.evolve(built, notes=(note, *(each for each in built.notes if each != _ALONE)))  # type: ignore[misc]  # tt.Built is one


def _why_aot(unit: tt.Unit, options: Options, device: torch.device, limits: tt.Limits) -> str:
    if limits.saveable:
        return "it is to be saved"
    if unit.twins >= _TWINS and device.type == "cpu":
        return f"{unit.twins} units share its program"
    if options.max_autotune and not options.freezing:
        return "max_autotune may take very long, and only a process of its own can be stopped"
    return ""
