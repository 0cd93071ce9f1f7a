"""`torch.export` and AOTInductor: one package for all twins, no guards of Dynamo at run time, loaded without compiling."""

from __future__ import annotations

import inspect
import itertools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import torch
from torch.torch_version import TorchVersion

import tt_core as tt
from tt_inductor import program
from tt_inductor.inputs import inputs_of
from tt_inductor.kept import process_kept
from tt_inductor.options import Options
from tt_inductor.program import Loaded, Package
from tt_inductor.quiet import quiet
from tt_inductor.warm import ambient

_OLDEST = "2.13"
_GRID = 4096  # sizes that are tried to see whether ranges say all that a program assumes


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


def build(unit: tt.Unit, calls: tt.Calls, options: Options, device: torch.device) -> tt.Built:
    """Compiles `unit` for the recorded calls into a package and loads it with the unit's own weights.

    Args:
        unit: must export; may not write to its inputs or state, nor draw random numbers.
        calls: where sizes moved the program is compiled for moving sizes of 2 and more.
        options: see `Options`.
        device: where the unit is.

    Raises:
        BuildRefusedError: it does not export, or one of AOTInductor's silent traps lies on its way.
    """
    _refuse(calls)
    with process_kept(device), quiet(tuners=options.max_autotune), ambient(calls.key, inference=False):
        flat = tt.flatten_unit(unit, calls)
        sample = _largest(unit.forward, calls.samples)
        exported = flat.export(sample, calls.shapes)
        lifted = exported.program.graph_signature.lifted_tensor_constants
        baked = options.freezing or bool(lifted)
        path = program.compiled(exported.program, baked=baked, patches=_patches(options))
        package = program.owned(
            Package(
                path=path,
                device=device,
                constants=() if baked else program.constants_of(path, device, unit.module),
                ties=program.ties_of(program.tensors_of(unit.module)),
                fingerprint=program.fingerprint_of(exported.program),
            )
        )
    covers = exported.covers(calls.shapes)
    shared = Shared(
        package=package,
        kind=type(unit.module),
        pack=flat.pack,
        unpack=flat.unpack,
        key=calls.key,
        covers=covers,
        fits=None if _said(covers, exported.fits) else exported.fits,
        sizes=flat.sizes(sample),
        constants=_constants(unit.forward, calls),
        twin=unit.twin,
        baked=baked,
        notes=(f"reads tensors that are no parameters: {', '.join(lifted)}",) if lifted else (),
    )
    return bound(shared, unit)


def bound(shared: Shared, unit: tt.Unit) -> tt.Built:
    """The program with the weights of `unit`.

    Raises:
        BuildRefusedError: the weights are not of the kind that the program was compiled for.
    """
    loaded = [shared.package.load(unit.module)]
    built = tt.Built(
        call=_service(shared, unit, loaded),
        covers=shared.covers,
        weights=tt.Weights.VALUES if shared.baked else tt.Weights.STORAGE,
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
    calls = synthetic(unit.forward, shared.key, shared.covers, shared.sizes, shared.constants)
    with quiet(), ambient(shared.key, inference=False):
        exported = tt.flatten_unit(unit, calls).export(calls.samples[0], calls.shapes)
    return program.fingerprint_of(exported.program)


def synthetic(
    forward: Callable[..., Any],
    key: tt.CallKey,
    shapes: tt.Shapes,
    sizes: Sequence[Sequence[int]],
    constants: Sequence[Any],
) -> tt.Calls:
    """One call of zeros, to trace with where no sample is at hand.

    Args:
        forward: gives the signature.
        key: gives the structure and the tensors' dtypes.
        shapes: the sizes to cover.
        sizes: of the call's tensors.
        constants: the other leaves, in the key's order.
    """
    tensors, others = iter(zip(key.tensors, sizes, strict=True)), iter(constants)
    leaves: list[Any] = []
    for leaf in key.leaves:
        if isinstance(leaf, tt.TensorLeaf):
            known, size = next(tensors)
            leaves.append(torch.zeros(tuple(size), dtype=known.dtype, device=known.device))
        else:
            leaves.append(next(others))
    made = inspect.BoundArguments(inspect.signature(forward), tt.unflatten(key.tree, leaves))
    sample = tt.Sample(call=tt.Call(*made.args, **made.kwargs), expected=tt.Observation(result=None))
    return tt.Calls(key=key, shapes=shapes, samples=(sample,), seen=1, facts=tt.Facts())


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


def _largest(forward: Callable[..., Any], samples: Sequence[tt.Sample]) -> tt.Sample:
    """The largest sample, its tensors contiguous: a program is right for the strides it was exported with."""
    signature = inspect.signature(forward)
    trees = []
    for sample in samples:
        made = signature.bind(*sample.call.args, **sample.call.kwargs)
        trees.append(tt.flatten(dict(made.arguments)))
    at = max(range(len(trees)), key=lambda i: sum(x.numel() for x in trees[i][0] if isinstance(x, torch.Tensor)))
    leaves, spec = trees[at]
    dense = [leaf.contiguous() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    made = inspect.BoundArguments(signature, tt.unflatten(spec, dense))
    call = tt.Call(*made.args, **made.kwargs)
    return tt.Sample(call=call, expected=samples[at].expected, index=samples[at].index)


def _constants(forward: Callable[..., Any], calls: tt.Calls) -> tuple[Any, ...]:
    made = inspect.signature(forward).bind(*calls.samples[0].call.args, **calls.samples[0].call.kwargs)
    made.apply_defaults()
    leaves, _ = tt.flatten(dict(made.arguments))
    return tuple(leaf for leaf in leaves if not isinstance(leaf, torch.Tensor))


def _patches(options: Options) -> Mapping[str, Any]:
    return {"freezing": options.freezing, "max_autotune": options.max_autotune}


def _said(covers: tt.Shapes, fits: Callable[[Sequence[Sequence[int]]], bool]) -> bool:
    """Whether every size in `covers` fits: then ranges and equal axes say all that the program assumes."""
    axes = {size.symbol: size for leaf in covers.leaves for size in leaf if isinstance(size, tt.Axis)}
    spans = [range(axis.lo, axis.hi + 1) for axis in axes.values()]
    points = 1
    for span in spans:
        points *= len(span)
    if points > _GRID:
        return False
    return all(fits(_at(covers, dict(zip(axes, point, strict=True)))) for point in itertools.product(*spans))


def _at(covers: tt.Shapes, values: Mapping[str, int]) -> tuple[tuple[int, ...], ...]:
    return tuple(
        tuple(values[size.symbol] if isinstance(size, tt.Axis) else size for size in leaf) for leaf in covers.leaves
    )


def _service(shared: Shared, unit: tt.Unit, loaded: list[Loaded]) -> Callable[..., Any]:
    """What runs the program; a call that it is not right for runs as in eager, with one warning.

    Args:
        shared: the program.
        unit: whose weights are loaded.
        loaded: one item, which `close` replaces: the program itself goes with it.
    """
    pack, unpack, fits = shared.pack, shared.unpack, shared.fits
    inputs = inputs_of(shared.key, shared.covers)
    forward, path = unit.forward, unit.path
    told: list[bool] = []

    def call(*args: Any, **kwargs: Any) -> Any:
        tensors = pack(*args, **kwargs)
        given = inputs(*tensors)
        if given is None or (fits is not None and not fits([t.shape for t in tensors])):
            if not told:
                told.append(True)
                _tell(path)
            return forward(*args, **kwargs)
        return unpack(loaded[0].run(given), tensors)

    return call


def _closed(_inputs: Any) -> Any:
    raise tt.TTError("this built was closed")


_CLOSED = Loaded(run=_closed, weights={})


def _tell(path: str) -> None:
    message = f"unit {path!r}: its package is not right for sizes or dtypes like these; such calls run as in eager"
    warnings.warn(message, tt.FallbackWarning, stacklevel=4)
