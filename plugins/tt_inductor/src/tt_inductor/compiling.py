"""Exported programs compiled into packages, in a process of their own: a hang or a crash costs only the candidate.

The program travels as a file in a private folder, and the package comes back as one. Its weights do not travel where the
package is not to hold them: the other process compiles for tensors of the same form, whose content nobody wrote. Baked
weights are written once with the program and once into the package.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

import tt_core as tt
from tt_inductor import linears

_JOB = "tt_inductor.compiling:compile_job"
_PROGRAM, _PACKAGE = "program.pt2", "package.pt2"
_PLAIN = (bool, int, float, str, type(None))


def compiled(
    exported: torch.export.ExportedProgram, *, baked: bool, patches: Mapping[str, Any], seconds: float, raced: bool
) -> Path:
    """Compiles an exported program into a package in a private folder, and lets go of the program's weights.

    Args:
        exported: takes and returns flat tensors; without weights afterwards, unless they are baked.
        baked: keep the weights in the package.
        patches: Inductor's configuration for it.
        seconds: the time limit.
        raced: race oneDNN with MKL for its linear layers.

    Raises:
        BuildRefusedError: it cannot be written, or the compiler failed or crashed.
        OverrunError: the limit was reached.
    """
    folder = private()
    try:
        arguments = {
            "config": {
                **_changed_config(),
                **patches,
                "aot_inductor.package_constants_in_so": baked,
                "always_keep_tensor_constants": True,  # else small weights are written into the code, and twins get them
            },
            "flags": _flags(),
            "raced": raced,
            "weights": [] if baked else _emptied(exported.state_dict),
        }
        _save(exported, folder / _PROGRAM)
        tt.in_worker(_JOB, arguments, folder=folder, seconds=seconds)
        (folder / _PROGRAM).unlink()
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder / _PACKAGE


def compile_job(
    folder: Path,
    config: Mapping[str, Any],
    flags: Mapping[str, Any],
    weights: Sequence[Mapping[str, Any]],
    *,
    raced: bool,
) -> None:
    """Runs in the other process: the program of `folder` becomes a package there."""
    import torch._inductor

    _set_flags(flags)
    program = torch.export.load(folder / _PROGRAM)
    _fill(program.state_dict, weights)
    layers = linears.made() if raced else None
    configs = dict(config) | ({} if layers is None else {linears.SETTING: layers})
    with torch.no_grad():
        package = str(folder / _PACKAGE)
        torch._inductor.aoti_compile_and_package(program, package_path=package, inductor_configs=configs)


def private() -> Path:
    """A new folder that only this user can read."""
    return Path(tempfile.mkdtemp(prefix="tt_inductor_"))


def _save(exported: torch.export.ExportedProgram, path: Path) -> None:
    try:
        torch.export.save(exported, path)
    except (RuntimeError, TypeError, ValueError, AttributeError, AssertionError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise tt.BuildRefusedError(f"its exported program cannot be written: {lines[0]}") from error


def _emptied(state: dict[str, Any]) -> list[dict[str, Any]]:
    """Puts tensors of one element in the place of weights; what the weights were, those in one memory together."""
    groups: dict[tuple[int, str], dict[str, Any]] = {}
    for name, tensor in list(state.items()):
        storage = tensor.untyped_storage()
        place = (storage.data_ptr() or id(tensor), str(tensor.device))
        group = groups.setdefault(place, {"bytes": storage.nbytes(), "device": str(tensor.device), "tensors": []})
        form = [name, tensor.storage_offset(), list(tensor.shape), list(tensor.stride())]
        group["tensors"].append(form)
        state[name] = _like(tensor, torch.empty(1, dtype=tensor.dtype, device=tensor.device))
    return list(groups.values())


def _fill(state: dict[str, Any], weights: Sequence[Mapping[str, Any]]) -> None:
    """Gives a program weights of the form that they had; their content is never looked at."""
    for group in weights:
        storage = torch.UntypedStorage(group["bytes"], device=group["device"])
        for name, offset, shape, stride in group["tensors"]:
            bare = torch.empty(0, dtype=state[name].dtype, device=group["device"])
            state[name] = _like(state[name], bare.set_(storage, offset, shape, stride))


def _like(old: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    return nn.Parameter(tensor, requires_grad=old.requires_grad) if isinstance(old, nn.Parameter) else tensor


def _changed_config() -> dict[str, Any]:
    """What somebody changed of Inductor's configuration in this process, as far as it is plain."""
    from torch._inductor import config as stated

    config: Any = stated  # what says whether a value is the default is private
    values = config.get_config_copy()
    return {name: value for name, value in values.items() if isinstance(value, _PLAIN) and not config._is_default(name)}


def _flags() -> dict[str, Any]:
    """Torch's own switches that code is generated for."""
    return {
        "threads": torch.get_num_threads(),
        "matmul": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "cudnn_tf32": torch.backends.cudnn.allow_tf32,
    }


def _set_flags(flags: Mapping[str, Any]) -> None:
    torch.set_num_threads(flags["threads"])
    torch.set_float32_matmul_precision(flags["matmul"])
    torch.use_deterministic_algorithms(flags["deterministic"])
    torch.backends.cudnn.allow_tf32 = flags["cudnn_tf32"]
