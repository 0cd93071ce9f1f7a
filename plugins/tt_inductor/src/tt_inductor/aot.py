"""`torch.export` and AOTInductor: one package for all twins, no guards of Dynamo at run time, loaded without compiling."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import torch
from torch.torch_version import TorchVersion

import tt_core as tt
from tt_inductor import compiling, program
from tt_inductor.examples import constants_in, largest
from tt_inductor.inputs import inputs_of
from tt_inductor.kept import process_kept
from tt_inductor.options import Options
from tt_inductor.program import Loaded, Package
from tt_inductor.quiet import quiet
from tt_inductor.warm import ambient

_OLDEST = "2.13"
_GRID = 4096  # sizes that are tried to see whether ranges say all that a program assumes
_packages: weakref.WeakValueDictionary[tuple[Any, ...], Package] = weakref.WeakValueDictionary()
"""By program: twins of another cut are met one after the other, and the core does not know that they are twins."""


@attrs.frozen(kw_only=True, eq=False)
class Shared:
    """What the twins of one program have in common.

    Attributes:
        package: the compiled program.
        kind: the class of the units.
        pack: makes tensors of a call, in the key's order.
        unpack: makes the result of the program's results and the call's tensors.
        key: of the calls.
        covers: the sizes that the program is right for.
        fits: asked beside `covers` where ranges cannot say all; None where they can.
        sizes: of the inputs it was exported with.
        constants: the arguments that are no tensors, in the key's order.
        twin: the core's fingerprint of the first unit.
        baked: whether the weights are in the package.
        notes: for the report.
    """

    package: Package
    kind: type
    pack: Callable[..., tuple[torch.Tensor, ...]]
    unpack: Callable[..., Any]
    key: tt.CallKey
    covers: tt.Shapes
    fits: Callable[[Sequence[Sequence[int]]], bool] | None
    sizes: tuple[tuple[int, ...], ...]
    constants: tuple[Any, ...]
    twin: str
    baked: bool
    notes: tuple[str, ...] = ()


def build(
    unit: tt.Unit, calls: tt.Calls, options: Options, device: torch.device, limits: tt.Limits, *, why: str = ""
) -> tt.Built:
    """Compiles `unit` for the recorded calls into a package and loads it with the unit's own weights.

    Args:
        unit: must export; may not write to its inputs or state, nor draw random numbers.
        calls: where sizes moved the program is compiled for moving sizes of 2 and more.
        options: see `Options`.
        device: where the unit is.
        limits: its seconds end the compiler.
        why: a note: why ahead of time.

    Raises:
        BuildRefusedError: it does not export, or one of AOTInductor's silent traps lies on its way.
        OverrunError: the compiler reached the time limit.
    """
    _refuse(calls)
    with process_kept(device), quiet(), ambient(calls.key, inference=False):
        flat = tt.flatten_unit(unit, calls)
        sample = largest(unit.forward, calls.samples)
        exported = flat.export(sample, calls.shapes)
        lifted = exported.program.graph_signature.lifted_tensor_constants
        baked = options.freezing or bool(lifted)
        package = _package(exported.program, unit.module, device, options, limits.seconds, baked=baked)
    covers = exported.covers(calls.shapes)
    notes = [why] if why else []
    notes += [f"reads tensors that are no parameters: {', '.join(lifted)}"] if lifted else []
    shared = Shared(
        package=package,
        kind=type(unit.module),
        pack=flat.pack,
        unpack=flat.unpack,
        key=calls.key,
        covers=covers,
        fits=None if tt.flat.ranges_say(covers, [(exported.fits, (covers,))], _GRID) else exported.fits,
        sizes=flat.sizes(sample),
        constants=constants_in(unit.forward, calls),
        twin=unit.twin,
        baked=baked,
        notes=tuple(notes),
    )
    return bound(shared, unit)


def _package(
    exported: torch.export.ExportedProgram,
    module: torch.nn.Module,
    device: torch.device,
    options: Options,
    seconds: float,
    *,
    baked: bool,
) -> Package:
    """A package for an exported program: one that is in use already, else a new one."""
    patches = {"freezing": options.freezing, "max_autotune": options.max_autotune}
    fingerprint, ties = tt.flat.program_print(exported), program.ties_of(program.tensors_of(module))
    identity = (fingerprint, ties, device, options.max_autotune, options.onednn, torch.get_num_threads())
    known = None if baked else _packages.get(identity)
    if known is not None:
        return known
    raced = options.onednn and device.type == "cpu"
    path = compiling.compiled(exported, baked=baked, patches=patches, seconds=seconds, raced=raced)
    package = program.owned(
        Package(
            path=path,
            device=device,
            constants=() if baked else program.constants_of(path, device, module),
            ties=ties,
            fingerprint=fingerprint,
        )
    )
    if not baked:
        _packages[identity] = package
    return package


def bound(shared: Shared, unit: tt.Unit) -> tt.Built:
    """The program with the weights of `unit`.

    Raises:
        BuildRefusedError: the weights are not of the kind that the program was compiled for.
    """
    loaded = [shared.package.load(unit.module)]
    call, packed = _service(shared, loaded)
    built = tt.Built(
        call=call,
        packed=packed,
        covers=shared.covers,
        weights=tt.Weights.VALUES if shared.baked else tt.Weights.STORAGE,
        concurrent=program.concurrent(shared.package.device),
        bytes_held=shared.package.path.stat().st_size,
        notes=shared.notes,
        close=lambda: loaded.__setitem__(0, _CLOSED),
    )
    built.call.__dict__["tt_shared"] = shared  # found again by `tt_rebind` and `tt_dump`, which get the built
    return built


def shared_of(built: tt.Built) -> Shared | None:
    """What was built ahead of time; None for another mode."""
    shared: Shared | None = getattr(built.call, "tt_shared", None)
    return shared


def rebind(built: tt.Built, unit: tt.Unit) -> tt.Built | None:
    """The program of `built` for a twin; None where `unit` has to be built anew.

    The core's fingerprint is believed; where there is none the unit is exported and its graph compared.
    """
    shared = shared_of(built)
    if shared is None or shared.baked:
        return None
    if type(unit.module) is not shared.kind:
        return None
    try:
        shared.package.weights_of(unit.module)  # cheap, and tells most others apart
        alike = bool(shared.twin) and shared.twin == unit.twin
        if not alike and _print(shared, unit) != shared.package.fingerprint:
            return None
        return bound(shared, unit)
    except (tt.BuildRefusedError, RuntimeError, TypeError, ValueError, LookupError):
        return None  # it cannot even run the call that the program was exported with


def _print(shared: Shared, unit: tt.Unit) -> str:
    calls = tt.flat.synthetic(unit.forward, shared.key, shared.covers, shared.sizes, shared.constants)
    with quiet(), ambient(shared.key, inference=False):
        exported = tt.flatten_unit(unit, calls).export(calls.samples[0], calls.shapes)
    return tt.flat.program_print(exported.program)


def _refuse(calls: tt.Calls) -> None:
    if TorchVersion(torch.__version__) < _OLDEST:  # loading any package crashed the process with 2.11
        raise tt.BuildRefusedError(
            f'mode="aot" needs torch {_OLDEST}, this is {torch.__version__}', 'mode="jit" does not'
        )
    if calls.facts.random:
        raise tt.BuildRefusedError(
            "it draws random numbers, and a compiled package draws others", 'mode="jit" keeps them'
        )
    if calls.facts.writes_inputs:
        raise tt.BuildRefusedError("it writes to its inputs", 'mode="jit" keeps that')
    if calls.key.ambient.autocast:
        raise tt.BuildRefusedError("it is called under autocast, which torch.export drops", 'mode="jit" keeps it')
    for leaf in calls.key.tensors:
        plain = leaf.type in {torch.Tensor, torch.nn.Parameter} and leaf.layout is torch.strided
        if not plain or leaf.dtype.is_complex:
            raise tt.BuildRefusedError("a package takes dense real tensors only")


def _service(
    shared: Shared, loaded: list[Loaded]
) -> tuple[Callable[..., Any], Callable[[tuple[torch.Tensor, ...]], Any]]:
    """What runs the program for a call, and for the tensors of one; what it is not right for is handed back untried.

    Args:
        shared: the program.
        loaded: one item, which `close` replaces: the program itself goes with it.
    """
    pack, unpack, fits = shared.pack, shared.unpack, shared.fits
    inputs = inputs_of(shared.key, shared.covers)

    def packed(tensors: tuple[torch.Tensor, ...]) -> Any:
        given = inputs(*tensors)
        if given is None or (fits is not None and not fits([t.shape for t in tensors])):
            raise tt.DeclinedError("its package is not right for sizes or dtypes like these")
        return unpack(loaded[0].run(given), tensors)

    def call(*args: Any, **kwargs: Any) -> Any:
        return packed(pack(*args, **kwargs))

    return call, packed


def _closed(_inputs: Any) -> Any:
    raise tt.TTError("this built was closed")


_CLOSED = Loaded(run=_closed, weights={})
