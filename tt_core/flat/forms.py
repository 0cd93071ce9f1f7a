"""What a backend writes down beside its program: constants, sizes and dtypes as JSON, and back. Nothing is imported or run."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from tt_core import trees
from tt_core.errors import BuildRefusedError
from tt_core.values import Axis, Call, CallKey, Calls, Facts, Observation, Sample, Shapes, TensorLeaf

Json = Any
Sizes = tuple[tuple[int, ...], ...]

_PLAIN: Mapping[str, type] = {kind.__name__: kind for kind in (bool, int, str)}


def constant_form(value: Any) -> Json:
    """A constant argument as JSON; the other kinds of constants have no form.

    Raises:
        BuildRefusedError: it is none of None, bool, int, float, str, dtype.
    """
    if value is None:
        return None
    if type(value) is float:
        return ["float", value.hex()]
    if type(value).__name__ in _PLAIN and type(value) is _PLAIN[type(value).__name__]:
        return [type(value).__name__, value]
    if isinstance(value, torch.dtype):
        return ["dtype", dtype_form(value)]
    raise BuildRefusedError(f"a constant argument of type {type(value).__name__} cannot be written as data")


def read_constant(form: Json) -> Any:
    """The constant of a form.

    Raises:
        BuildRefusedError, KeyError, TypeError, ValueError: malformed.
    """
    if form is None:
        return None
    kind, content = form
    if kind == "float":
        return float.fromhex(content)
    if kind == "dtype":
        return read_dtype(content)
    if type(content) is not _PLAIN[kind]:
        message = f"{kind} is not the type of what stands for it"
        raise TypeError(message)
    return content


def dtype_form(dtype: torch.dtype) -> str:
    """A dtype's own name: `float32`."""
    return str(dtype).removeprefix("torch.")


def read_dtype(form: Json) -> torch.dtype:
    """The dtype of a name.

    Raises:
        BuildRefusedError: there is none.
    """
    found = getattr(torch, str(form), None)
    if not isinstance(found, torch.dtype):
        raise BuildRefusedError(f"what was dumped is damaged: {form!r} is no dtype")
    return found


def sizes_form(shapes: Shapes) -> Json:
    """Sizes as JSON: a list a tensor; a number, or [lowest, highest, symbol], an axis."""
    return [[[n.lo, n.hi, n.symbol] if isinstance(n, Axis) else n for n in leaf] for leaf in shapes.leaves]


def read_sizes(form: Json) -> Shapes:
    """The sizes of a form.

    Raises:
        TypeError, ValueError: malformed.
    """
    return Shapes(leaves=tuple(tuple(map(_read_size, leaf)) for leaf in form))


def _read_size(form: Json) -> int | Axis:
    if isinstance(form, list):
        lo, hi, symbol = form
        return Axis(lo=int(lo), hi=int(hi), symbol=str(symbol))
    return int(form)


def every_size(shapes: Shapes, most: int) -> Iterator[Sizes] | None:
    """Each combination of sizes that `shapes` admit; None where there are more than `most`."""
    axes = {size.symbol: size for leaf in shapes.leaves for size in leaf if isinstance(size, Axis)}
    spans = [range(axis.lo, axis.hi + 1) for axis in axes.values()]
    points = 1
    for span in spans:
        points *= len(span)
    if points > most:
        return None
    return (_at(shapes, dict(zip(axes, point, strict=True))) for point in itertools.product(*spans))


def _at(shapes: Shapes, values: Mapping[str, int]) -> Sizes:
    return tuple(
        tuple(values[size.symbol] if isinstance(size, Axis) else size for size in leaf) for leaf in shapes.leaves
    )


def synthetic(
    forward: Callable[..., Any], key: CallKey, shapes: Shapes, sizes: Sequence[Sequence[int]], constants: Sequence[Any]
) -> Calls:
    """One call of zeros, for where no sample is at hand. Arguments that have their default value are left out of it.

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
        if isinstance(leaf, TensorLeaf):
            known, size = next(tensors)
            leaves.append(torch.zeros(tuple(size), dtype=known.dtype, device=known.device))
        else:
            leaves.append(next(others))
    call = spelled(inspect.signature(forward), trees.unflatten(key.tree, leaves))
    sample = Sample(call=call, expected=Observation(result=None))
    return Calls(key=key, shapes=shapes, samples=(sample,), seen=1, facts=Facts())


def spelled(signature: inspect.Signature, values: Mapping[str, Any]) -> Call:
    """A call by keyword, as far as a signature lets: decorators that add arguments then do not meet ours."""
    kinds = {name: parameter.kind for name, parameter in signature.parameters.items()}
    if any(kind is inspect.Parameter.VAR_POSITIONAL and values.get(name) for name, kind in kinds.items()):
        made = inspect.BoundArguments(signature, dict(values))
        return Call(*made.args, **made.kwargs)
    args, kwargs = [], {}
    for name, value in values.items():
        if kinds[name] is inspect.Parameter.POSITIONAL_ONLY:
            args.append(value)
        elif kinds[name] is inspect.Parameter.VAR_KEYWORD:
            kwargs.update(value)
        elif kinds[name] is not inspect.Parameter.VAR_POSITIONAL and not _is_default(value, signature.parameters[name]):
            kwargs[name] = value
    return Call(*args, **kwargs)


def _is_default(value: Any, parameter: inspect.Parameter) -> bool:
    default = parameter.default
    plain = value is None or isinstance(value, (bool, int, float, str))
    return plain and type(value) is type(default) and value == default
