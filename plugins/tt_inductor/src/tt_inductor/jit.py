"""`torch.compile`, one private cache a unit, compiled in the build and never in service."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

import tt_core as tt
from tt_inductor import frame, linears
from tt_inductor.cached import run_only
from tt_inductor.dynamo import ISOLATES, RECOMPILES, configured, frames, readable, tolerant
from tt_inductor.graphs import Graphs, Thread, counting
from tt_inductor.kept import module_kept, process_kept
from tt_inductor.linears import Linears
from tt_inductor.options import Options
from tt_inductor.parts import MISSED, Parts
from tt_inductor.quiet import quiet
from tt_inductor.warm import Arguments, Case, ambient
from tt_inductor.watched import FORWARD, Filter, filter_for

_TRIES = 3
_LEAST = 0.5
"""More than this share of a unit's operators must run in compiled programs, or what is called compiled is Python."""
_ENTRY = """\
if not _tt_compiling():
    return _tt_missed($ARGS)
return _tt_forward($ARGS)"""
_SERVICE = """\
if _tt_grad() or _tt_inference():
    return _tt_moded($ARGS)
return _tt_run($ARGS)"""


def build(unit: tt.Unit, calls: tt.Calls, options: Options, device: torch.device, *, why: str = "") -> tt.Built:
    """Compiles `unit` for the recorded calls.

    Args:
        unit: its module runs the original forward.
        calls: where sizes moved the program is compiled for moving sizes, else for the very sizes.
        options: see `Options`.
        device: where the unit is.
        why: a note: why just in time.

    Returns:
        A built whose programs are all compiled. It reads weights from the module, unless they are frozen.

    Raises:
        BuildRefusedError: nothing or little of it was compiled, it would compile anew in service, or the compiler failed.
    """
    kept = module_kept(unit.module, calls.facts.writes_state)
    with process_kept(device), kept, quiet(tuners=options.max_autotune):
        return _Jit(unit, calls, options, device, why).built()


class _Jit:
    """One unit's programs."""

    def __init__(self, unit: tt.Unit, calls: tt.Calls, options: Options, device: torch.device, why: str) -> None:
        self._calls, self._options, self._why = calls, options, why
        self._weights = tt.Weights.VALUES if options.freezing else tt.Weights.LIVE
        self._missing = False
        self._open = self._whole = True
        self._thread = Thread()
        self._linears = linears.made() if options.onednn and device.type == "cpu" else None
        self._patches = _patches(options, calls.facts, self._linears)
        # frozen programs cannot come from the compiler's cache: a second one for inference tensors would double the build
        self._modes = (False,) if options.freezing and _may_copy(calls.facts) else (False, True)
        self._parts = Parts(calls.facts, unit.path, self._thread)
        self._graphs = Graphs(self._patches, self._parts.late, self._thread)
        self._signature = frame.signature_of(unit.forward)
        self._forward: Callable[..., Any] = unit.forward
        names = {"_tt_compiling": torch.compiler.is_compiling, "_tt_missed": self._missed, FORWARD: unit.forward}
        self._entry = frame.made(self._signature, _ENTRY, names)
        asked = filter_for(unit.module) if self._weights is not tt.Weights.LIVE else None
        self._compiling = _compiled(self._entry, self._graphs, asked, fullgraph=options.fullgraph)
        self._only = run_only(self._entry, getattr(self._compiling, "_isolate_recompiles_id", None))

    def built(self) -> tt.Built:
        """Compiles all cases, looks whether they all hit, and hands out what runs them."""
        arguments = Arguments(self._signature, self._calls)
        notes = [self._why] if self._why else []
        with configured(self._patches), readable():
            graphs, entered = self._compile(arguments)
            self._settle(arguments)
            # without breaks the whole call is one program, and a call that misses it is seen in the entry; with them
            # each part has a program of its own, and only the compiler can tell
            self._whole = graphs == 1 and entered <= 1 and not self._missing
            notes += [] if self._whole else [self._broken(arguments, graphs)]
        notes += self._linears.notes() if self._linears is not None else []
        self._graphs.close_build()
        self._open = False
        self._call = self._service(self._only if self._whole else self._parts.begun(self._compiling))
        return tt.Built(
            call=self._call,
            covers=self._calls.shapes,
            weights=self._weights,
            notes=tuple(notes),
            close=self._close,
        )

    def _broken(self, arguments: Arguments, graphs: int) -> str:
        """A note on a unit that is more than one program.

        Raises:
            BuildRefusedError: most of it runs in Python.
        """
        case = arguments.cases()[0]
        before = self._thread.operators
        with ambient(self._calls.key, inference=False):
            args, kwargs = arguments.copy(case, inference=False)
            self._compiling(*args, **kwargs)
            args, kwargs = arguments.copy(case, inference=False)
            with counting() as seen:
                self._forward(*args, **kwargs)
        ran = self._thread.operators - before
        text = f"{ran} of {max(ran, seen.operators)} operators in compiled programs, the others in Python"
        if ran <= _LEAST * seen.operators:
            raise tt.BuildRefusedError(f"graph breaks leave only {text}", "torch._dynamo.explain(module) shows where")
        return f"graph break: {graphs} graph{'s' if graphs > 1 else ''}; {text}"

    def _compile(self, arguments: Arguments) -> tuple[int, int]:
        """Runs every case with the compiler on; how many graphs the first one took, of how many frames of Python."""
        graphs, entered, before = 0, 0, frames()
        for inference in self._modes:
            for number, case in enumerate(arguments.cases()):
                with ambient(self._calls.key, inference=inference), tolerant(narrowed=bool(case[1])):
                    self._trace(arguments, case, inference=inference, must_move=not number)
                if not self._graphs.compiled:
                    raise tt.BuildRefusedError("nothing was compiled: Dynamo skipped the whole forward")
                graphs, entered = graphs or self._graphs.compiled, entered or frames() - before
        return graphs, entered

    def _trace(self, arguments: Arguments, case: Case, *, inference: bool, must_move: bool) -> None:
        """Runs one case. The largest has to be right for other sizes too; a smaller one may take a branch of its own."""
        import torch._dynamo as dynamo
        from torch.fx.experimental.symbolic_shapes import ConstraintViolationError

        args, kwargs = arguments.copy(case, inference=inference, mark=dynamo.mark_dynamic)
        try:
            self._compiling(*args, **kwargs)
        except (dynamo.exc.UserError, ConstraintViolationError):
            if must_move:
                raise
            args, kwargs = arguments.copy(case, inference=inference, mark=dynamo.maybe_mark_dynamic)
            self._compiling(*args, **kwargs)

    def _settle(self, arguments: Arguments) -> None:
        """Runs every case again.

        Raises:
            BuildRefusedError: a program that was just compiled does not fit the same call any more.
        """
        before = self._graphs.compiled
        self._missing = False
        for inference in self._modes:
            for case in arguments.cases():
                with ambient(self._calls.key, inference=inference), tolerant(narrowed=bool(case[1])):
                    args, kwargs = arguments.copy(case, inference=inference)
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
            "_tt_moded": _moded(run, copies=True not in self._modes),
            "_tt_run": run,
        }
        return frame.made(self._signature, _SERVICE, names)

    def _missed(self, *args: Any, **kwargs: Any) -> Any:
        """Stands in for the original forward where no program fits a call, before anything of it ran.

        While several threads look a program up at once, Dynamo misses one that fits, now and then: so look again first.
        """
        self._missing = True
        if self._open:
            return self._forward(*args, **kwargs)
        thread = self._thread
        if self._whole and thread.tries < _TRIES:
            thread.tries += 1
            try:
                return self._only(*args, **kwargs)
            finally:
                thread.tries -= 1
        raise tt.DeclinedError(MISSED)

    def _close(self) -> None:
        self._graphs.drop()
        # both are functions of our own. Dynamo's guards outlive the programs, and hold the globals and so the module
        self._entry.__globals__.update(_tt_missed=_closed, _tt_forward=_closed)
        self._call.__globals__.update(_tt_moded=_closed, _tt_run=_closed)
        self._entry = self._compiling = self._only = self._forward = _closed


def _closed(*_args: Any, **_kwargs: Any) -> Any:
    raise tt.TTError("this built was closed")


def _patches(options: Options, facts: tt.Facts, layers: Linears | None) -> dict[str, Any]:
    """Inductor's configuration for one build."""
    patches: dict[str, Any] = {"freezing": options.freezing, "max_autotune": options.max_autotune}
    if layers is not None:
        patches[linears.SETTING] = layers
    if facts.random:
        patches["fallback_random"] = True  # the numbers that eager draws
    return patches


def _compiled(
    entry: Callable[..., Any], graphs: Graphs, asked: Filter | None, *, fullgraph: bool
) -> Callable[..., Any]:
    options: dict[str, Any] = {"backend": graphs, "dynamic": False, "fullgraph": fullgraph}
    if asked is not None:
        options["options"] = {"guard_filter_fn": asked}
    if ISOLATES:
        # functions that the unit calls after a graph break are shared with everybody else
        options |= {"isolate_recompiles": True, "recompile_limit": RECOMPILES}
    made: Callable[..., Any] = torch.compile(entry, **options)
    return made


def _may_copy(facts: tt.Facts) -> bool:
    """Whether a unit may be given copies of its inputs: it neither writes to them nor hands them on."""
    return not facts.writes_inputs and not facts.aliases


def _moded(run: Callable[..., Any], *, copies: bool) -> Callable[..., Any]:
    """`run` for callers in inference mode, or with gradients on where nothing wants one.

    Args:
        run: the programs.
        copies: whether there is none for inference tensors, which are then copied.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        inference = torch.is_inference_mode_enabled() and _inference((args, kwargs))
        if inference and not copies:
            return run(*args, **kwargs)
        with torch.inference_mode(False), torch.no_grad():
            if inference:
                args, kwargs = _copied((args, kwargs))
            return run(*args, **kwargs)

    return call


def _copied(given: tuple[Any, Any]) -> Any:
    """The arguments with inference tensors as normal ones. Inference mode is off."""
    leaves, spec = tt.flatten(given)
    return tt.unflatten(spec, [x.clone() if isinstance(x, torch.Tensor) and x.is_inference() else x for x in leaves])


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
