"""tt_core: finds the fastest correct way to run a PyTorch model on this device, and installs it in place."""

from __future__ import annotations

from tt_core.errors import (
    BuildRefusedError,
    BusyError,
    FallbackWarning,
    KindError,
    PluginError,
    SampleError,
    TTError,
    UnknownBackendError,
    UsageError,
)
from tt_core.hookspecs import API, Timer, hookimpl
from tt_core.values import (
    Axis,
    Backend,
    Built,
    Call,
    CallKey,
    Calls,
    Candidate,
    Facts,
    Failure,
    Fidelity,
    Keeps,
    Limits,
    Observation,
    Payload,
    Ready,
    Refusal,
    Sample,
    Shapes,
    Tolerance,
    Trial,
    Unavailable,
    Unit,
    Verdict,
    Weights,
)

__version__ = "0.1.0"
