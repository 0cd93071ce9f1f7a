"""Why a tuned unit runs its original forward: a fixed set of kinds, each with what to do about it."""

from __future__ import annotations

from enum import StrEnum

from tt_core.values import valued


class Fall(StrEnum):
    """A kind of fall back to the original forward; the value is the key in `tt.stats`."""

    TRACING = "tracing"
    PROCESS = "process"
    RETIRED = "retired"
    TRAINING = "training"
    AUTOCAST = "autocast"
    GRAD = "grad"
    SIGNATURE = "signature"
    OPAQUE = "opaque"
    STRUCTURE = "structure"
    CONSTANT = "constant"
    TYPE = "type"
    DTYPE = "dtype"
    DEVICE = "device"
    LAYOUT = "layout"
    SHAPE = "shape"
    STRIDES = "strides"
    OVERLAP = "overlap"
    WEIGHTS = "weights"
    MODULE = "module"
    HOOKS = "hooks"
    DECLINED = "declined"
    ERROR = "error"
    OTHER = "other"


_SAMPLE = "add a sample like this call to the dataset and tune again"
_REFRESH = "call tt.refresh(obj)"

FIXES: dict[Fall, str] = {
    Fall.TRACING: "call tt.untune(obj) before tracing or transforming the model",
    Fall.PROCESS: "tune in the child process, or start it with spawn",
    Fall.RETIRED: "call tt.refresh(obj), or tune again without this backend",
    Fall.TRAINING: "put the model back with .eval() or .train(), as it was when it was tuned",
    Fall.AUTOCAST: "call it under the autocast state it was tuned under, or tune it under this one",
    Fall.GRAD: "wrap the call in torch.inference_mode()",
    Fall.SIGNATURE: "pass arguments that fit forward's signature",
    Fall.OPAQUE: "pass tensors and plain constants only",
    Fall.STRUCTURE: _SAMPLE,
    Fall.CONSTANT: _SAMPLE,
    Fall.TYPE: _SAMPLE,
    Fall.DTYPE: _SAMPLE,
    Fall.DEVICE: "move the input to the device the unit was tuned on, or tune again",
    Fall.LAYOUT: _SAMPLE,
    Fall.SHAPE: _SAMPLE,
    Fall.STRIDES: "pass contiguous tensors",
    Fall.OVERLAP: "pass tensors that share no memory: the unit writes to its inputs",
    Fall.WEIGHTS: _REFRESH,
    Fall.MODULE: _REFRESH,
    Fall.HOOKS: _REFRESH,
    Fall.DECLINED: "tune again without this backend to have another one serve such calls",
    Fall.ERROR: "tune again without this backend, and report the error to its authors",
    Fall.OTHER: "call tt.refresh(obj)",
}
"""What to do, by kind of fall."""


@valued
class Why:
    """Why a call fell: its kind, and one clause that says what was seen."""

    kind: Fall
    seen: str

    @property
    def fix(self) -> str:
        """What to do about it."""
        return FIXES[self.kind]

    def __str__(self) -> str:
        """One sentence: what was seen, and the fix."""
        return f"{self.seen}: {self.fix}"
