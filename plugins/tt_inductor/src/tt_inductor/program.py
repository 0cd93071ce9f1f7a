"""An AOTInductor package, shared by twins: one file, one program, the weights of whichever unit it is loaded for."""

from __future__ import annotations

import shutil
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import nn

import tt_core as tt
from tt_inductor.inputs import ALIGNMENT

PREFIX = "unit."  # `Flat.module` holds the unit under this name
_RUNNERS = 4  # calls that may run at once; they share the weights


@attrs.frozen(kw_only=True)
class Constant:
    """What a program assumes of one of its weights."""

    name: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str

    @classmethod
    def of(cls, name: str, tensor: torch.Tensor) -> Constant:
        """What `tensor` is."""
        return cls(name=name, shape=tuple(tensor.shape), stride=tuple(tensor.stride()), dtype=str(tensor.dtype))


@attrs.frozen(kw_only=True, eq=False)
class Package:
    """A compiled program on disk.

    Attributes:
        path: the file; its folder is deleted with the last user.
        device: where it runs.
        constants: the weights it is loaded with; empty where they are baked in.
        ties: which names of the unit's tensors are one tensor.
        fingerprint: of the exported graph: equal for twins.
    """

    path: Path
    device: torch.device
    constants: tuple[Constant, ...]
    ties: tuple[tuple[str, ...], ...]
    fingerprint: str

    def load(self, module: nn.Module) -> Loaded:
        """Loads the program for the weights of `module`, which are used where they are.

        Raises:
            BuildRefusedError: see `weights_of`.
        """
        weights = self.weights_of(module)
        loader = _loader(self.path, self.device)
        if weights:
            loader.load_constants(weights, False, True, True)
        return Loaded(run=loader.run, weights=weights)

    def weights_of(self, module: nn.Module) -> dict[str, torch.Tensor]:
        """The tensors of `module` that the program reads, by its own names.

        Raises:
            BuildRefusedError: a weight is missing, differs in size, strides, dtype or alignment, or others are tied;
                loading such a program would give wrong results without an error.
        """
        tensors = tensors_of(module)
        if ties_of(tensors) != self.ties:
            raise tt.BuildRefusedError("other weights are tied than in the program's first unit")
        return {constant.name: _fitting(constant, tensors, self.device) for constant in self.constants}


@attrs.frozen(kw_only=True, eq=False)
class Loaded:
    """A program in memory. `weights` are read at every call: they live as long as it does."""

    run: Any
    weights: Mapping[str, torch.Tensor]


def owned(package: Package) -> Package:
    """`package`, whose folder goes when it does, at the latest with the process."""
    weakref.finalize(package, shutil.rmtree, package.path.parent, ignore_errors=True)
    return package


def constants_of(path: Path, device: torch.device, module: nn.Module) -> tuple[Constant, ...]:
    """The weights that a package must be loaded with, as they are in `module`."""
    tensors = tensors_of(module)
    found = []
    for name in sorted(asked_of(path, device)):
        tensor = tensors.get(name.removeprefix(PREFIX))
        if tensor is None:
            raise tt.BuildRefusedError(f"the program reads {name!r}, which is neither a parameter nor a buffer")
        found.append(Constant.of(name, tensor))
    return tuple(found)


def asked_of(path: Path, device: torch.device) -> tuple[str, ...]:
    """The names of the weights that a package has to be given."""
    return tuple(_loader(path, device).get_constant_fqns())


def tensors_of(module: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers, also non-persistent ones, under all their names."""
    named = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    return {name: tensor.detach() for name, tensor in named}


def ties_of(tensors: Mapping[str, torch.Tensor]) -> tuple[tuple[str, ...], ...]:
    """Groups of names whose tensors are in one memory."""
    groups: dict[tuple[int, str], list[str]] = {}
    for name, tensor in tensors.items():
        if tensor.numel():
            groups.setdefault((tensor.data_ptr(), str(tensor.device)), []).append(name)
    return tuple(sorted(tuple(group) for group in groups.values() if len(group) > 1))


def _fitting(constant: Constant, tensors: Mapping[str, torch.Tensor], device: torch.device) -> torch.Tensor:
    tensor = tensors.get(constant.name.removeprefix(PREFIX))
    if tensor is None:
        raise tt.BuildRefusedError(f"the unit has no {constant.name.removeprefix(PREFIX)!r}")
    if Constant.of(constant.name, tensor) != constant or tensor.device.type != device.type:
        what = constant.name.removeprefix(PREFIX)
        raise tt.BuildRefusedError(f"{what!r} differs in size, strides, dtype or device from the program's first unit")
    if tensor.data_ptr() & (ALIGNMENT - 1):
        raise tt.BuildRefusedError(f"{constant.name.removeprefix(PREFIX)!r} does not begin at an aligned address")
    return tensor


def concurrent(device: torch.device) -> bool:
    """Whether several calls may run at once: elsewhere than on a CPU they would wait for events, which no graph can capture."""
    return device.type == "cpu"


def _loader(path: Path, device: torch.device) -> Any:
    from torch._C._aoti import AOTIModelPackageLoader

    index = -1 if device.type == "cpu" else device.index or 0  # an index is an error on CPU
    alone = not concurrent(device)
    return AOTIModelPackageLoader(str(path), "model", alone, 1 if alone else _RUNNERS, index)
