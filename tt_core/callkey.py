"""A call's identity: what must be equal for two calls to share one built, however they were spelled."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import Any

import torch

from tt_core import trees
from tt_core.values import Ambient, Axis, Call, CallKey, ConstLeaf, Shapes, TensorLeaf, valued

_AUTOCAST = ("cpu", "cuda", "xpu", "mps", "hpu", "mtia", "xla", "ipu", "maia", "privateuseone")
_BY_ITSELF = (type(None), bool, int, str, bytes, torch.dtype, torch.device, torch.layout)
_BOUNDS = (slice, range)
_SHORT = {
    torch.float64: "f64",
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.bool: "bool",
    torch.complex64: "c64",
    torch.complex128: "c128",
}
_LONGEST = 24  # characters of a constant in a description


@valued
class Opaque:
    """A call that stays eager: `reason` names the argument and why it has no identity."""

    reason: str


def canonical(signature: inspect.Signature, call: Call) -> dict[str, Any]:
    """The call's arguments by parameter name, in signature order, defaults filled in.

    Args:
        signature: of the unit's forward.
        call: any spelling of a call.

    Returns:
        Name to value; `*args` as a tuple and `**kwargs` as a dict under their own names. Values are the call's own objects.

    Raises:
        TypeError: the call does not fit the signature.
    """
    bound = signature.bind(*call.args, **call.kwargs)
    bound.apply_defaults()
    return dict(bound.arguments)


def key_of(forward: Callable[..., Any], call: Call, *, training: bool) -> CallKey | Opaque:
    """The identity of a call, or why it has none.

    Args:
        forward: the unit's original forward.
        call: any spelling of a call.
        training: the unit's training flag.

    Returns:
        Equal keys for calls that may share one built: the same structure and container types; per tensor the same dtype,
        rank, device, layout and exact class; per constant the same type and value (NaN equals itself, -0.0 is not 0.0);
        the same autocast state of every device type, and `training`. Sizes are no part of it.
    """
    try:
        arguments = canonical(inspect.signature(forward), call)
    except (TypeError, ValueError) as error:  # ValueError: a callable whose signature cannot be read
        return Opaque(reason=f"the call does not fit the signature of forward: {error}")
    leaves, tree = trees.flatten(arguments)
    found: list[TensorLeaf | ConstLeaf] = []
    for index, value in enumerate(leaves):
        leaf = leaf_of(value)
        if leaf is None:
            return Opaque(reason=opaque_text(tree, index, leaves))
        found.append(leaf)
    return CallKey(tree=tree, leaves=tuple(found), ambient=ambient(training))


def tensors_of(forward: Callable[..., Any], call: Call) -> tuple[torch.Tensor, ...]:
    """The tensor leaves of a call in the order of its key's tensors: the call's own objects.

    Raises:
        TypeError: the call does not fit the signature.
    """
    return tuple(trees.tensors(canonical(inspect.signature(forward), call)))


def leaf_of(value: Any) -> TensorLeaf | ConstLeaf | None:
    """The identity of one leaf; None for what is neither a tensor nor a plain constant."""
    if isinstance(value, torch.Tensor):
        return TensorLeaf(
            dtype=value.dtype, rank=value.dim(), device=value.device, layout=value.layout, type=type(value)
        )
    found = _constant(value)
    return None if found is None else ConstLeaf(type=type(value), value=found[0])


def ambient(training: bool) -> Ambient:
    """What surrounds a call now: `training` as given, and each device type whose autocast is on, with its dtype."""
    return Ambient(training=training, autocast=_autocast())


def evidence(sizes: Sequence[tuple[tuple[int, ...], ...]]) -> Shapes:
    """The sizes that calls of one key have shown.

    Args:
        sizes: for each call, for each tensor leaf in key order, its sizes. At least one call; ranks as in the key.

    Returns:
        Per axis the size where it never moved, else an `Axis` from the least to the largest size seen. Axes that were
        equal in every call share a symbol (`s0`, `s1`, ... in order of appearance).
    """
    symbols: dict[tuple[int, ...], str] = {}
    leaves = [tuple(zip(*leaf, strict=True)) for leaf in zip(*sizes, strict=True)]
    return Shapes(leaves=tuple(tuple(_axis(seen, symbols) for seen in leaf) for leaf in leaves))


def describe(key: CallKey, shapes: Shapes | None = None) -> str:
    """A short description for people: `x: f32[2, 8..128], mask: None, k: 3`.

    Args:
        key: the key.
        shapes: sizes of its tensors; None prints ranks only, as in `f32[?, ?]`.
    """
    sizes = iter(shapes.leaves if shapes is not None else [("?",) * leaf.rank for leaf in key.tensors])
    parts = [
        f"{name}: {_tensor_text(leaf, next(sizes)) if isinstance(leaf, TensorLeaf) else _const_text(leaf)}"
        for name, leaf in zip(path_names(key.tree), key.leaves, strict=True)
    ]
    return ", ".join([*parts, *_ambient_text(key.ambient)])


def path_names(tree: Any) -> list[str]:
    """A printable path of each leaf of a key's tree: `x`, `features['mask']`, `args[0]`."""
    return [re.sub(r"^\['(\w+)'\]", r"\1", name) for name in trees.names(tree)]


def opaque_text(tree: Any, index: int, leaves: Sequence[Any]) -> str:
    """Why leaf `index` of `tree` makes a call opaque: its argument and its type."""
    kind = type(leaves[index])
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    name = path_names(tree)[index]
    return f"argument {name} is a {module}{kind.__qualname__}, which is neither a tensor nor a plain constant"


def _constant(value: Any) -> tuple[Any] | None:
    """A hashable stand-in for a plain constant, in a tuple of one; None for every other object."""
    kind = type(value)
    if kind in _BY_ITSELF:
        return (value,)
    if kind in (float, complex):
        return (_number(value),)
    if kind is torch.Size:
        return (tuple(value),)
    if kind in _BOUNDS:
        return _bounds(value)
    if isinstance(value, Enum):
        return (value,) if kind.__hash__ is not None else None
    return _numpy_scalar(value)


def _number(value: Any) -> Any:
    if isinstance(value, complex):
        return value.real.hex(), value.imag.hex()
    return value.hex()


def _bounds(value: Any) -> tuple[Any] | None:
    """A slice or range by its three parts, each a plain constant itself."""
    parts = [leaf_of(part) for part in (value.start, value.stop, value.step)]
    return (tuple(parts),) if all(isinstance(part, ConstLeaf) for part in parts) else None


def _numpy_scalar(value: Any) -> tuple[Any] | None:
    numpy = sys.modules.get("numpy")  # a numpy value can only exist where numpy was imported
    if numpy is None or not isinstance(value, numpy.generic) or value.dtype.hasobject:
        return None
    return ((value.dtype.str, "nan" if value != value else value.tobytes()),)  # noqa: PLR0124  the test for NaN of every kind


def _autocast() -> tuple[tuple[str, torch.dtype], ...]:
    if not torch._C._is_any_autocast_enabled():  # private, and the only single question for all device types
        return ()
    return tuple(_enabled())


def _enabled() -> Iterator[tuple[str, torch.dtype]]:
    for device in _AUTOCAST:
        try:
            if torch.is_autocast_enabled(device):
                yield device, torch.get_autocast_dtype(device)
        except RuntimeError:  # a device type that this torch does not know
            continue


def _axis(seen: tuple[int, ...], symbols: dict[tuple[int, ...], str]) -> int | Axis:
    if len(set(seen)) == 1:
        return seen[0]
    return Axis(lo=min(seen), hi=max(seen), symbol=symbols.setdefault(seen, f"s{len(symbols)}"))


def _tensor_text(leaf: TensorLeaf, sizes: Sequence[Any]) -> str:
    kind = "" if leaf.type in (torch.Tensor, torch.nn.Parameter) else f"{leaf.type.__name__} "
    layout = "" if leaf.layout is torch.strided else f" {str(leaf.layout).removeprefix('torch.')}"
    device = "" if leaf.device.type == "cpu" else f"@{leaf.device}"
    dtype = _SHORT.get(leaf.dtype, str(leaf.dtype).removeprefix("torch."))
    return f"{kind}{dtype}[{', '.join(_size_text(size) for size in sizes)}]{layout}{device}"


def _size_text(size: Any) -> str:
    return f"{size.lo}..{size.hi}" if isinstance(size, Axis) else str(size)


def _const_text(leaf: ConstLeaf) -> str:
    text = _const_repr(leaf)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _const_repr(leaf: ConstLeaf) -> str:
    if leaf.type is float:
        return repr(float.fromhex(leaf.value))
    if leaf.type is complex:
        return repr(complex(*map(float.fromhex, leaf.value)))
    if leaf.type in _BOUNDS:
        return f"{leaf.type.__name__}({', '.join(_const_repr(part) for part in leaf.value)})"
    if leaf.type in _BY_ITSELF or issubclass(leaf.type, Enum):
        return str(leaf.value) if isinstance(leaf.value, (Enum, torch.device)) else repr(leaf.value)
    return f"{leaf.type.__name__} constant"


def _ambient_text(state: Ambient) -> list[str]:
    modes = [f"autocast {device} {_SHORT.get(dtype, str(dtype))}" for device, dtype in state.autocast]
    return ["training", *modes] if state.training else modes
