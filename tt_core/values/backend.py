"""What a plugin declares, what a build returns, and how the claims of a chain compose."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum, IntEnum
from pathlib import Path
from typing import Any

import attrs
import torch

from tt_core.values.kinds import frozen, valued
from tt_core.values.shapes import Shapes


class Fidelity(IntEnum):
    """How close a backend's results are to eager's."""

    EXACT = 0
    """Bit for bit."""
    CLOSE = 1
    """The same precision, another order of operations."""
    LOSSY = 2
    """Another precision (quantised, half): never tried unless asked for by name."""


class Weights(IntEnum):
    """What a built reads its weights from when it is called; the larger, the more a guard must look at."""

    LIVE = 0
    """The module itself: nothing can go stale."""
    STORAGE = 1
    """The storage addresses of its parameters and buffers."""
    VALUES = 2
    """Values baked in at build."""


class Payload(IntEnum):
    """What `tt_dump` writes."""

    NONE = 0
    DATA = 1
    """Data that is parsed, never run: IR, JSON, safetensors."""
    CODE = 2
    """Native code: loading it is running it."""


class Keeps(Enum):
    """A behaviour of eager PyTorch that a backend is able to keep."""

    INPUT_WRITES = "writes to its inputs"
    STATE_WRITES = "writes to its state"
    ALIASES = "results that share memory with inputs or state"
    RANDOM = "random numbers"
    NON_TENSORS = "results that are not tensors"


@frozen
class Backend:
    """A way to run a unit, as a plugin declares it.

    Attributes:
        name: unique among all backends; letters, digits and underscores.
        devices: device types it may run on, `{"*"}` for all.
        fidelity: how close its results are to eager's.
        api: the version of the hook specs that the plugin was written for.
        priority: the larger, the earlier it is tried.
        options: option variants that are tried: a mapping each; None for the one without options.
        layer: whether it is built over another candidate's result.
        capturable: whether a layer may be built over its result.
        weights: the usual level of its builts (a built states its own).
        payload: what `tt_dump` writes.
        keeps: behaviours that it keeps.
        may_crash: whether builds may take the process down.
        own_threads: whether it computes in another thread pool than torch's own.
    """

    name: str = attrs.field(validator=attrs.validators.matches_re(r"[a-z][a-z0-9_]*"))
    devices: frozenset[str] = attrs.field(converter=frozenset)
    fidelity: Fidelity
    api: int = 1
    priority: int = 50
    options: tuple[Mapping[str, Any], ...] = ({},)
    layer: bool = False
    capturable: bool = False
    weights: Weights = Weights.VALUES
    payload: Payload = Payload.NONE
    keeps: frozenset[Keeps] = attrs.field(default=frozenset(), converter=frozenset)
    may_crash: bool = False
    own_threads: bool = False


@valued
class Ready:
    """A backend can run here; `note` says what with (a version)."""

    note: str = ""


@valued
class Unavailable:
    """A backend cannot run here, why, and what to do."""

    reason: str
    hint: str = ""


@valued
class Refusal:
    """A plugin or backend that does not take part: one sentence of why.

    `stage`: "missing", "disabled", "import", "declare", "api", "device", "fidelity", "probe", "excluded".
    """

    name: str
    stage: str
    reason: str
    hint: str = ""


Options = Mapping[str, Any]
Steps = tuple[tuple[str, tuple[tuple[str, Any], ...]], ...]


def _frozen_steps(steps: Iterable[tuple[str, Options | Iterable[tuple[str, Any]]]]) -> Steps:
    return tuple((name, tuple(sorted(dict(options).items()))) for name, options in steps)


@attrs.frozen(kw_only=True)
class Candidate:
    """A chain of (backend name, options), innermost first.

    `Candidate(steps=(("jit", {"fast": True}), ("graph", {})))`, or `Candidate.of("jit", fast=True).over("graph")`.
    """

    steps: Steps = attrs.field(converter=_frozen_steps)

    @classmethod
    def of(cls, name: str, /, **options: Any) -> Candidate:
        """The candidate of one backend."""
        return cls(steps=((name, options),))

    def over(self, name: str, /, **options: Any) -> Candidate:
        """This candidate with a layer built over it."""
        return Candidate(steps=(*self.steps, (name, options)))

    @property
    def name(self) -> str:
        """Backend names joined with `+`, without options."""
        return "+".join(name for name, _ in self.steps)

    def __str__(self) -> str:
        """The name with the options that were set: `jit(fast=True)+graph`."""
        return "+".join(_step_text(name, options) for name, options in self.steps)


def _step_text(name: str, options: tuple[tuple[str, Any], ...]) -> str:
    return name + (f"({', '.join(f'{k}={v}' for k, v in options)})" if options else "")


EAGER = Candidate.of("eager")
"""The original forward: always a candidate, and the baseline of every race."""


@valued
class Limits:
    """What a build may use: seconds, bytes (None: no limit), and a private folder for its files (None: no files).

    `saveable` asks for a built that `tt_dump` can write, where a backend has a choice.
    """

    seconds: float
    bytes: int | None = None
    folder: Path | None = None
    saveable: bool = False


def _nothing() -> None:
    """The `close` of a built that holds nothing."""


@frozen
class Built:
    """What a build returns: a callable with the unit's call signature, and what it claims about itself.

    Attributes:
        call: runs the unit; accepts every spelling of the calls it was built for; results are owned by the caller.
        covers: the sizes it is right for; None: any sizes under its key.
        weights: where it reads its weights from.
        concurrent: whether several threads may call it at once.
        fork_safe: whether a forked child may call it.
        needs_strides: whether it is right only for the strides it was built with (inputs contiguous as recorded).
        bytes_held: memory held beyond the module's own, None where unknown.
        notes: sentences for the report.
        close: gives everything back; called at most once.
        inner: the built that a layer was built over.
        packed: the same as `call`, for who has the tensors of a call at hand: takes a tuple of them in the key's order. A
            dispatcher's guard has: its arguments need not be bound again. None: there is none.
        overlapped: the same as `packed`, with a function before the tuple that is called once, when the work is launched and
            before its results are copied or waited for: what the host may do while a device computes. What that raises goes
            through. None: there is none.
    """

    call: Callable[..., Any]
    covers: Shapes | None = None
    weights: Weights = Weights.VALUES
    concurrent: bool = True
    fork_safe: bool = True
    needs_strides: bool = False
    bytes_held: int | None = None
    notes: tuple[str, ...] = ()
    close: Callable[[], None] = _nothing
    inner: Built | None = None
    packed: Callable[[tuple[torch.Tensor, ...]], Any] | None = None
    overlapped: Callable[[Callable[[], object], tuple[torch.Tensor, ...]], Any] | None = None
