"""What a user may ask of the backend, as OpenVINO properties."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

import tt_core as tt
from tt_openvino.probe import capabilities, core, target_of

_KNOWN = {"performance_hint": ("LATENCY", "THROUGHPUT")}
_LOWER = {"openvino_bf16": "bf16", "openvino_f16": "f16"}
_OWN = {torch.bfloat16: ("bf16", "BF16"), torch.float16: ("f16", "FP16")}


@dataclass(frozen=True, kw_only=True, eq=False)
class Settings:
    """How models are compiled.

    Attributes:
        target: OpenVINO's device name.
        hint: `LATENCY`, or `THROUGHPUT`: several streams for calls from several threads.
        lower: the precision that was asked for, None for the unit's own.
        threads: CPU threads.
    """

    target: str
    hint: str
    lower: str | None
    threads: int

    @property
    def options(self) -> dict[str, str]:
        """What the user asked for, all of it."""
        return {"performance_hint": self.hint}

    def precision_for(self, floats: set[torch.dtype]) -> str:
        """What to compute in: the unit's own type where the device has it, else f32, which is never less exact."""
        if self.lower is not None:
            return self.lower
        name, capability = _OWN.get(next(iter(floats)), ("f32", "FP32")) if len(floats) == 1 else ("f32", "FP32")
        return name if capability in capabilities(self.target) else "f32"

    def allows(self, precision: str, floats: set[torch.dtype]) -> bool:
        """Whether a program of a unit with these types may be computed in `precision`."""
        if self.lower is not None:
            return precision == self.lower
        return precision in {"f32", *(name for dtype, (name, _) in _OWN.items() if dtype in floats)}

    def config(self, precision: str) -> dict[str, Any]:
        """The properties for `compile_model`: precision is explicit, since devices default to lower ones."""
        properties: dict[str, Any] = {
            "PERFORMANCE_HINT": self.hint,
            "INFERENCE_PRECISION_HINT": precision,
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
        }
        if self.target == "CPU":
            properties["INFERENCE_NUM_THREADS"] = self.threads
        return properties


def settings_of(backend: str, device: torch.device, options: Mapping[str, Any]) -> Settings:
    """Reads the options.

    Raises:
        BuildRefusedError: an unknown option or value; the known ones are named.
    """
    for name, value in options.items():
        if name not in _KNOWN:
            raise tt.BuildRefusedError(f"unknown option {name!r}", f"known options: {', '.join(_KNOWN)}")
        if value not in _KNOWN[name]:
            raise tt.BuildRefusedError(f"unknown {name} {value!r}", f"known values: {', '.join(_KNOWN[name])}")
    target = target_of(device, tuple(core().available_devices))
    if target is None:
        raise tt.BuildRefusedError(f"OpenVINO sees no device for {device}")
    hint = str(options.get("performance_hint", "LATENCY"))
    return Settings(target=target, hint=hint, lower=_LOWER.get(backend), threads=torch.get_num_threads())
