"""How Dynamo is run in a build: configured, its errors readable, its frames counted."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import torch

import tt_core as tt

RECOMPILES = 64  # a build decides itself how often it compiles; Dynamo's own limit of 8 ends in silence
ISOLATES = "isolate_recompiles" in inspect.signature(torch.compile).parameters
"""Whether this torch keeps the programs of one `torch.compile` apart from those of all others."""


@contextlib.contextmanager
def configured(patches: Mapping[str, Any]) -> Iterator[None]:
    """Configuration that tracing reads, put back at the end; what is read later is written into the guards."""
    import torch._dynamo
    import torch._inductor.config

    dynamo = {
        "recompile_limit": RECOMPILES,
        "suppress_errors": False,
        "guard_nn_modules": True,
        "inline_inbuilt_nn_modules": True,
        # else a hook that is added or removed later goes unnoticed
        "skip_nnmodule_hook_guards": False,
    }
    with torch._dynamo.config.patch(dynamo), torch._inductor.config.patch(dict(patches)):
        yield


def frames() -> int:
    """How many frames Dynamo has looked at in this process: a call that is whole takes one (none with `fullgraph`)."""
    from torch._dynamo.utils import counters

    return int(counters["frames"]["total"])


@contextlib.contextmanager
def readable() -> Iterator[None]:
    """The compilers' errors as refusals that fit into a line."""
    import torch._dynamo.exc as errors
    from torch.fx.experimental.symbolic_shapes import ConstraintViolationError

    try:
        yield
    except ConstraintViolationError as error:
        text = "its program is right for one of the recorded sizes only"
        raise tt.BuildRefusedError(text, f"it does not hold for a range: {_violation(error)}") from error
    except errors.BackendCompilerFailed as error:
        inner = error.inner_exception
        raise tt.BuildRefusedError(f"Inductor failed: {type(inner).__name__}: {_line(inner)}") from error
    except errors.TorchDynamoException as error:
        raise tt.BuildRefusedError(f"Dynamo cannot trace it: {_line(error)}") from error


def _violation(error: BaseException) -> str:
    return next((line.strip(" -") for line in str(error).splitlines() if line.strip().startswith("- ")), _line(error))


def _line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


@contextlib.contextmanager
def tolerant(*, narrowed: bool) -> Iterator[None]:
    """A call that we narrowed to size 1 ourselves need not be one that the unit can run."""
    try:
        yield
    except (RuntimeError, ValueError, IndexError, TypeError, AssertionError):
        if not narrowed:
            raise
