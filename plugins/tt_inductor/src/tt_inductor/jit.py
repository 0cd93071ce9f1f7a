"""`torch.compile`, one private cache a unit, compiled in the build and never in service."""

from __future__ import annotations

import contextlib
import inspect
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

import tt_core as tt
from tt_inductor import frame
from tt_inductor.cached import run_only
from tt_inductor.graphs import Graphs
from tt_inductor.kept import module_kept, process_kept
from tt_inductor.options import Options
from tt_inductor.quiet import quiet
from tt_inductor.warm import Arguments, ambient

_RECOMPILES = 64  # a build decides itself how often it compiles; Dynamo's own limit of 8 ends in silence
_TRIES = 3
_ENTRY = """\
if not _tt_compiling():
    return _tt_missed($ARGS)
return _tt_forward($ARGS)"""
_SERVICE = """\
if _tt_grad() or _tt_inference():
    return _tt_moded($ARGS)
return _tt_run($ARGS)"""


def build(unit: tt.Unit, calls: tt.Calls, options: Options, device: torch.device) -> tt.Built:
    """Compiles `unit` for the recorded calls.

    Args:
        unit: its module runs the original forward.
        calls: where sizes moved the program is compiled for moving sizes, else for the very sizes.
        options: see `Options`.
        device: where the unit is.

    Returns:
        A built whose programs are all compiled. It reads weights from the module, unless they are frozen.

    Raises:
        BuildRefusedError: nothing was compiled, it would compile anew in service, or the compiler failed.
    """
    kept = module_kept(unit.module, calls.facts.writes_state)
    with process_kept(device), kept, quiet(tuners=options.max_autotune):
        return _Jit(unit, calls, options).built()


class _Jit:
    """One unit's programs."""

    def __init__(self, unit: tt.Unit, calls: tt.Calls, options: Options) -> None:
        self._calls, self._options = calls, options
        self._path = unit.path
        self._misses = 0
        self._missing = False
        self._open = self._whole = True
        self._again = threading.local()
        self._patches = _patches(options, calls.facts)
        self._graphs = Graphs(self._patches, self._late)
        self._signature = frame.signature_of(unit.forward)
        self._forward: Callable[..., Any] = unit.forward
        names = {"_tt_compiling": torch.compiler.is_compiling, "_tt_missed": self._missed, "_tt_forward": unit.forward}
        self._entry = frame.made(self._signature, _ENTRY, names)
        self._compiling = _compiled(self._entry, self._graphs, fullgraph=options.fullgraph)
        self._only = run_only(self._entry, getattr(self._compiling, "_isolate_recompiles_id", None))

    def built(self) -> tt.Built:
        """Compiles all cases, looks whether they all hit, and hands out what runs them."""
        arguments = Arguments(self._signature, self._calls)
        with _configured(self._patches), _readable():
            first = self._compile(arguments)
            self._settle(arguments)
        self._graphs.close_build()
        breaks = first - 1
        # without breaks the whole call is one program, and a call that misses it is seen in the entry; with them each
        # part has a program of its own, and only the compiler can tell
        self._whole = not breaks and not self._missing
        run = self._only if self._whole else self._compiling
        self._open = False
        self._call = self._service(run)
        return tt.Built(
            call=self._call,
            covers=self._calls.shapes,
            weights=tt.Weights.VALUES if self._options.freezing else tt.Weights.LIVE,
            notes=(f"{breaks} graph break{'s' if breaks > 1 else ''}",) if breaks else (),
            close=self._close,
        )

    def _compile(self, arguments: Arguments) -> int:
        """Runs every case with the compiler on; how many graphs the first one took."""
        first = 0
        moving = self._calls.shapes.moving
        for inference in (False, True):
            for case in arguments.cases():
                with ambient(self._calls.key, inference=inference), _tolerant(narrowed=bool(case[1])):
                    args, kwargs = arguments.copy(case, inference=inference, mark=moving)
                    self._compiling(*args, **kwargs)
                if not self._graphs.compiled:
                    raise tt.BuildRefusedError("nothing was compiled: Dynamo skipped the whole forward")
                first = first or self._graphs.compiled
        return first

    def _settle(self, arguments: Arguments) -> None:
        """Runs every case again.

        Raises:
            BuildRefusedError: a program that was just compiled does not fit the same call any more.
        """
        before = self._graphs.compiled
        self._missing = False
        for inference in (False, True):
            for case in arguments.cases():
                with ambient(self._calls.key, inference=inference), _tolerant(narrowed=bool(case[1])):
                    args, kwargs = arguments.copy(case, inference=inference, mark=False)
                    self._compiling(*args, **kwargs)
        if self._graphs.compiled > before:
            raise tt.BuildRefusedError(
                "each call would compile anew",
                "something that the unit reads changes with every call: a counter, or a size that is computed",
            )

    def _service(self, run: Callable[..., Any]) -> Callable[..., Any]:
        names = {
            "_tt_grad": torch.is_grad_enabled,
            "_tt_inference": torch.is_inference_mode_enabled,
            "_tt_moded": _moded(run),
            "_tt_run": run,
        }
        return frame.made(self._signature, _SERVICE, names)

    def _missed(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the original forward for a call that no program fits.

        While several threads look a program up at once, Dynamo misses one that fits, now and then: so look again first.
        """
        self._missing = True
        if self._whole and not self._open:
            tries = getattr(self._again, "tries", 0)
            if tries < _TRIES:
                self._again.tries = tries + 1
                try:
                    return self._only(*args, **kwargs)
                finally:
                    self._again.tries = tries
            self._late()
        return self._forward(*args, **kwargs)

    def _late(self) -> None:
        self._misses += 1
        if self._misses == 1:
            message = (
                f"unit {self._path!r}: inductor compiled no program for a call like this one (strides, a module's "
                "attribute, a hook or a global flag of torch changed since); such calls run as in eager. "
                "tt.refresh(obj) compiles anew"
            )
            warnings.warn(message, tt.FallbackWarning, stacklevel=3)

    def _close(self) -> None:
        self._graphs.drop()
        # both are functions of our own. Dynamo's guards outlive the programs, and hold the globals and so the module
        self._entry.__globals__.update(_tt_missed=_closed, _tt_forward=_closed)
        self._call.__globals__.update(_tt_moded=_closed, _tt_run=_closed)
        self._entry = self._compiling = self._only = self._forward = _closed


def _closed(*_args: Any, **_kwargs: Any) -> Any:
    raise tt.TTError("this built was closed")


def _patches(options: Options, facts: tt.Facts) -> dict[str, Any]:
    """Inductor's configuration for one build."""
    patches: dict[str, Any] = {"freezing": options.freezing, "max_autotune": options.max_autotune}
    if facts.random:
        patches["fallback_random"] = True  # the numbers that eager draws
    return patches


@contextlib.contextmanager
def _configured(patches: Mapping[str, Any]) -> Iterator[None]:
    """Configuration that tracing reads, put back at the end; what is read later is written into the guards."""
    import torch._dynamo
    import torch._inductor.config

    dynamo = {
        "recompile_limit": _RECOMPILES,
        "suppress_errors": False,
        "guard_nn_modules": True,
        "inline_inbuilt_nn_modules": True,
        # else a hook that is added or removed later goes unnoticed
        "skip_nnmodule_hook_guards": False,
    }
    with torch._dynamo.config.patch(dynamo), torch._inductor.config.patch(dict(patches)):
        yield


@contextlib.contextmanager
def _readable() -> Iterator[None]:
    """The compilers' errors as refusals that fit into a line."""
    import torch._dynamo.exc as errors

    try:
        yield
    except errors.BackendCompilerFailed as error:
        inner = error.inner_exception
        raise tt.BuildRefusedError(f"Inductor failed: {type(inner).__name__}: {_line(inner)}") from error
    except errors.TorchDynamoException as error:
        raise tt.BuildRefusedError(f"Dynamo cannot trace it: {_line(error)}") from error


def _line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


@contextlib.contextmanager
def _tolerant(*, narrowed: bool) -> Iterator[None]:
    """A call that we narrowed to size 1 ourselves need not be one that the unit can run."""
    try:
        yield
    except (RuntimeError, ValueError, IndexError, TypeError, AssertionError):
        if not narrowed:
            raise


def _compiled(entry: Callable[..., Any], graphs: Graphs, *, fullgraph: bool) -> Callable[..., Any]:
    options: dict[str, Any] = {"backend": graphs, "dynamic": False, "fullgraph": fullgraph}
    if "isolate_recompiles" in inspect.signature(torch.compile).parameters:
        # functions that the unit calls after a graph break are shared with everybody else
        options |= {"isolate_recompiles": True, "recompile_limit": _RECOMPILES}
    made: Callable[..., Any] = torch.compile(entry, **options)
    return made


def _moded(run: Callable[..., Any]) -> Callable[..., Any]:
    """`run` for callers in inference mode, or with gradients on where nothing wants one."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.is_inference_mode_enabled() and _inference((args, kwargs)):
            return run(*args, **kwargs)
        with torch.inference_mode(False), torch.no_grad():
            return run(*args, **kwargs)

    return call


def _inference(value: Any) -> bool:
    """Whether the first tensor in `value` is an inference tensor: the others are taken to be like it."""
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, torch.Tensor):
            return item.is_inference()
        if isinstance(item, (tuple, list)):
            stack += reversed(item)
        elif isinstance(item, Mapping):
            stack += reversed(list(item.values()))
    return False
