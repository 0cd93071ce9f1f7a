"""What a program is, and what its weights are, as short texts that are equal where the things are."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from tt_core.values import frozen


def program_print(program: torch.export.ExportedProgram) -> str:
    """Equal for programs that differ in the values of their weights only.

    Names, sizes, strides and dtypes of inputs, weights and results; every operation with its constants, tensors that are no
    weights by value; the sizes that the trace assumed.
    """
    signature = program.graph_signature
    metas = [_meta(node.meta.get("val")) for node in program.graph.nodes if node.op in {"placeholder", "output"}]
    specs = [str(spec) for spec in (*signature.input_specs, *signature.output_specs)]
    ranges = sorted((str(symbol), str(bounds)) for symbol, bounds in program.range_constraints.items())
    guards = getattr(program, "_guards_code", None)  # the public API has none
    parts = (program.graph_module.code, metas, specs, ranges, guards, _constants(program))
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _constants(program: torch.export.ExportedProgram) -> list[tuple[str, str]]:
    weights = set(program.graph_signature.buffers) | set(program.graph_signature.parameters)
    held = [(name, value) for name, value in sorted(program.constants.items()) if name not in weights]
    return [
        (name, weights_print([(name, value)]) if isinstance(value, torch.Tensor) else repr(value))
        for name, value in held
    ]


def _meta(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return str(value.dtype), str(value.device), str(tuple(value.shape)), str(value.stride())
    return repr(value)


def weights_print(tensors: Iterable[tuple[str, torch.Tensor]]) -> str:
    """Equal for tensors of equal names, dtypes, sizes and values, bit for bit; about a second a gigabyte."""
    digest = hashlib.sha256()
    for name, tensor in tensors:
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(repr((name, str(tensor.dtype), tuple(tensor.shape))).encode())
        if flat.numel():
            digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def named_tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers of a module by dotted name; one of each that is there under several."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def version_of(tensor: torch.Tensor) -> int | None:
    """How often a tensor was written to; None for an inference tensor, which does not count."""
    return None if tensor.is_inference() else tensor._version


@frozen
class Versions:
    """The tensors of a module as they were at one moment.

    Attributes:
        known: tensor and version by name.
    """

    known: Mapping[str, tuple[torch.Tensor, int | None]]

    @classmethod
    def of(cls, module: nn.Module) -> Versions:
        """The tensors as they are now."""
        return cls(known={name: (tensor, version_of(tensor)) for name, tensor in named_tensors(module).items()})

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """The tensors by name."""
        return {name: tensor for name, (tensor, _) in self.known.items()}

    @property
    def unchanged(self) -> bool:
        """Whether none was written to since, as far as versions tell."""
        return all(version == version_of(tensor) for tensor, version in self.known.values())
