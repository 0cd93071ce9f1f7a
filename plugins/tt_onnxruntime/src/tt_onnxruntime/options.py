"""What a user may ask of the backend, as settings of a session."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

import tt_core as tt
from tt_onnxruntime.cores import affinities
from tt_onnxruntime.probe import PROVIDERS, installed, numbers

_WAITING = {
    True: ("session.force_spinning_stop", "1"),
    False: ("session.intra_op.allow_spinning", "0"),
    "briefly": ("session.intra_op.spin_duration_us", "1000"),
    "always": ("session.intra_op.allow_spinning", "1"),
}
"""As it comes a pool spins for up to 60 ms after each call, and takes a core from the neighbour all that time; told to
spin for 1 ms it was seen to take 4."""
_KNOWN = {"spinning": tuple(_WAITING)}
_KNOWS_DURATION = (1, 32)
"""A release that limits how long threads spin; older ones (which of them is not known) spin on, or stop."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How sessions are made.

    Attributes:
        device: of the tensors.
        threads: of the session's pool, the caller's own among them.
        spinning: whether its threads wait for the next operator by spinning: True: until the call returns; "briefly": for
            some 4 ms after it too, until the next call where they come back to back; "always": for up to 60 ms, as ONNX
            Runtime comes.
    """

    device: torch.device
    threads: int
    spinning: bool | str

    def session_options(self) -> Any:
        """The options of a session: everything optimised, nothing printed."""
        import onnxruntime as ort

        made = ort.SessionOptions()
        made.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
        made.intra_op_num_threads = self.threads
        made.inter_op_num_threads = 1
        made.log_severity_level = 4
        made.add_session_config_entry(*_WAITING[self.spinning])
        if self.device.type == "cpu" and (bound := affinities(self.threads)):
            made.add_session_config_entry("session.intra_op_thread_affinities", bound)
        return made

    def providers(self) -> list[Any]:
        """The device's provider, and on a GPU the CPU's for what it lacks; float32 stays float32."""
        if self.device.type == "cpu":
            return [PROVIDERS["cpu"]]
        options = {"device_id": self.device.index or 0, "use_tf32": 0}
        return [(PROVIDERS[self.device.type], options), PROVIDERS["cpu"]]


def settings_of(device: torch.device, options: Mapping[str, Any], *, whole: bool = False) -> Settings:
    """Reads the options.

    Args:
        device: of the tensors.
        options: by name.
        whole: whether the unit is all of the object: no neighbour of its own needs the cores right after its call, so its
            threads wait "briefly" unless `spinning` says otherwise.

    Raises:
        BuildRefusedError: an unknown option or value; the known ones are named.
    """
    for name, value in options.items():
        if name not in _KNOWN:
            raise tt.BuildRefusedError(f"unknown option {name!r}", f"known options: {', '.join(_KNOWN)}")
        if value not in _KNOWN[name]:
            known = ", ".join(map(str, _KNOWN[name]))
            raise tt.BuildRefusedError(f"unknown {name} {value!r}", f"known values: {known}")
    brief = whole and numbers(installed("onnxruntime") or "") >= _KNOWS_DURATION
    spinning = options.get("spinning", "briefly" if brief else True)
    return Settings(device=device, threads=torch.get_num_threads(), spinning=spinning)
