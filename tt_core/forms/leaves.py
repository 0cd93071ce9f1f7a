"""Leaves of a call key as JSON: tensors by their kind, constants by their value."""

from __future__ import annotations

import hashlib
import re
import sys
from enum import Enum
from typing import Any

import attrs
import torch

from tt_core.errors import StoreError
from tt_core.forms.reading import (
    Json,
    as_fields,
    as_int,
    as_list,
    as_text,
    class_form,
    read_class,
    shown,
)
from tt_core.values import ConstLeaf, TensorLeaf

SHORT = 64
"""Characters (or bytes) of a constant that are written as they are; longer ones are hashed."""
_HEX = re.compile(r"-?0x[01]\.?[0-9a-f]{0,13}p[+-][0-9]{1,4}|-?inf|nan")
_NUMPY = re.compile(r"[<>|=][a-zA-Z][0-9]{0,6}(\[[a-zA-Z0-9]{1,8}\])?")
_LONG = re.compile(r"-?0x[0-9a-f]{1,1000}")
_WORD = 2**53
_DEEP = 4
"""Levels of slices within slices."""


@attrs.frozen(kw_only=True, repr=False)
class Hashed:
    """Stands for a long text or bytes constant that is known by its hash only: it matches, and cannot be called with."""

    digest: str
    length: int

    def __repr__(self) -> str:
        return f"<{self.length} characters>"


def leaf_form(leaf: TensorLeaf | ConstLeaf) -> Json:
    """A leaf as JSON.

    Raises:
        StoreError: it has no form.
    """
    return _tensor_form(leaf) if isinstance(leaf, TensorLeaf) else _const_form(leaf, 0)


def read_leaf(form: Json, where: str) -> TensorLeaf | ConstLeaf:
    """The leaf of a form; a long text comes back as `Hashed`."""
    if isinstance(form, dict) and "tensor" in form:
        return _read_tensor(form, where)
    return _read_const(form, where, 0)


def told(leaf: TensorLeaf | ConstLeaf) -> TensorLeaf | ConstLeaf:
    """The leaf as a description may show it: a long text as its length."""
    if isinstance(leaf, ConstLeaf) and isinstance(leaf.value, str | bytes) and len(leaf.value) > SHORT:
        return ConstLeaf(type=leaf.type, value=Hashed(digest="", length=len(leaf.value)))
    if isinstance(leaf, ConstLeaf) and leaf.type in (slice, range):
        return ConstLeaf(type=leaf.type, value=tuple(told(part) for part in leaf.value))
    return leaf


def name_of(value: torch.dtype | torch.layout) -> str:
    """`float32`, `strided`."""
    return str(value).removeprefix("torch.")


def read_name(form: Json, where: str, kind: type) -> Any:
    """The torch dtype or layout of a name."""
    found = vars(torch).get(as_text(form, where, SHORT))
    if not isinstance(found, kind):
        raise StoreError(f"{where} is {shown(form)}, and this torch has no such {kind.__name__}")
    return found


def read_device(form: Json, where: str) -> torch.device:
    """The device of a text such as `cuda:0`."""
    text = as_text(form, where, SHORT)
    try:
        device = torch.device(text)
    except (RuntimeError, ValueError) as error:
        raise StoreError(f"{where} is {shown(text)}, and this torch has no such device") from error
    if str(device) != text:
        raise StoreError(f"{where} is {shown(text)}, and this torch has no such device")
    return device


def _tensor_form(leaf: TensorLeaf) -> Json:
    form = {"tensor": name_of(leaf.dtype), "rank": leaf.rank, "device": str(leaf.device)}
    form |= {} if leaf.layout is torch.strided else {"layout": name_of(leaf.layout)}
    return form | ({} if leaf.type is torch.Tensor else {"type": class_form(leaf.type)})


def _read_tensor(form: Json, where: str) -> TensorLeaf:
    fields = as_fields(form, where, ("tensor", "rank", "device"), ("layout", "type"))
    kind = read_class(fields["type"], f"the type of {where}") if "type" in fields else torch.Tensor
    if not issubclass(kind, torch.Tensor):
        raise StoreError(f"the type of {where} is {shown(fields['type'])}, which is no tensor")
    return TensorLeaf(
        dtype=read_name(fields["tensor"], f"the dtype of {where}", torch.dtype),
        rank=as_int(fields["rank"], f"the rank of {where}", 0, SHORT),
        device=read_device(fields["device"], f"the device of {where}"),
        layout=read_name(fields.get("layout", "strided"), f"the layout of {where}", torch.layout),
        type=kind,
    )


def _const_form(leaf: ConstLeaf, depth: int) -> Json:  # noqa: PLR0911  one line a kind
    kind, value = leaf.type, leaf.value
    if isinstance(value, Hashed):
        return {kind.__name__: {"blake2b": value.digest, "length": value.length}}
    if kind in (type(None), bool):
        return value
    if kind is int:
        return value if abs(value) < _WORD else {"int": _long(value)}
    if kind in (str, bytes):
        return _text_form(value)
    if kind is float:
        return {"float": value}
    if kind is complex or kind is torch.Size:
        return {"complex" if kind is complex else "size": list(value)}
    if kind is torch.device:
        return {"device": str(value)}
    if kind in (torch.dtype, torch.layout):
        return {kind.__name__: name_of(value)}
    if kind in (slice, range):
        return {kind.__name__: [_const_form(part, depth + 1) for part in _shallow(value, depth)]}
    return _enum_form(kind, value) if issubclass(kind, Enum) else _numpy_form(kind, value)


def _shallow(parts: Any, depth: int) -> Any:
    if depth >= _DEEP:
        raise StoreError(f"slices nested more than {_DEEP} deep have no form")
    return parts


def _long(value: int) -> str:
    text = hex(value)
    if not _LONG.fullmatch(text):
        raise StoreError("a whole number of more than 1000 digits has no form")
    return text


def _text_form(value: str | bytes) -> Json:
    if isinstance(value, str):
        data = value.encode("utf-8", "surrogatepass")
        if len(value) <= SHORT and not any("\ud800" <= letter <= "\udfff" for letter in value):
            return value
    else:
        data = value
        if len(value) <= SHORT:
            return {"bytes": value.hex()}
    return {type(value).__name__: {"blake2b": hashlib.blake2b(data, digest_size=16).hexdigest(), "length": len(value)}}


def _enum_form(kind: type[Enum], value: Enum) -> Json:
    if kind.__members__.get(value.name or "") is not value:
        raise StoreError(f"{value!r} is no single member of {kind.__qualname__}, so it has no form")
    return {"enum": class_form(kind), "name": value.name}


def _numpy_form(kind: type, value: Any) -> Json:
    text, data = value
    if not _NUMPY.fullmatch(text) or sys.modules["numpy"].dtype(text).type is not kind or len(data) > 16 * SHORT:
        raise StoreError(f"a constant of type {kind.__qualname__} has no form")
    return {"numpy": [text, data if isinstance(data, str) else data.hex()]}


def _read_const(form: Json, where: str, depth: int) -> ConstLeaf:
    if form is None or type(form) is bool:
        return ConstLeaf(type=type(form), value=form)
    if type(form) is int:
        return ConstLeaf(type=int, value=as_int(form, where, -_WORD, _WORD))
    if type(form) is str:
        return ConstLeaf(type=str, value=as_text(form, where, SHORT))
    if not isinstance(form, dict) or not form or not set(form) <= {*_READERS, "name", "slice", "range"}:
        raise StoreError(f"{where} is of no known kind")
    if set(form) == {"enum", "name"}:
        return _read_enum(form["enum"], form["name"], where)
    (name, value), *more = form.items()
    if more or name in {"enum", "name"}:
        raise StoreError(f"{where} is of no known kind")
    if name in {"slice", "range"}:
        return _read_bounds(slice if name == "slice" else range, value, where, depth)
    found: ConstLeaf = _READERS[name](value, where)
    return found


def _read_bounds(kind: type, form: Json, where: str, depth: int) -> ConstLeaf:
    parts = as_list(_shallow(form, depth), where, 3)
    if len(parts) != 3:  # noqa: PLR2004  start, stop, step
        raise StoreError(f"{where} is a {kind.__name__} of {len(parts)} parts, not 3")
    return ConstLeaf(type=kind, value=tuple(_read_const(part, where, depth + 1) for part in parts))


def _read_enum(kind: Json, name: Json, where: str) -> ConstLeaf:
    found = read_class(kind, where)
    text = as_text(name, where)
    if not issubclass(found, Enum) or text not in found.__members__:
        raise StoreError(f"{where} is {shown(text)} of {shown(kind)}, and there is no such member")
    member = found.__members__[text]
    return ConstLeaf(type=type(member), value=member)


def _read_float(form: Json, where: str) -> str:
    text = as_text(form, where, SHORT)
    try:
        same = _HEX.fullmatch(text) is not None and float.fromhex(text).hex() == text
    except OverflowError:
        same = False
    if not same:
        raise StoreError(f"{where} is {shown(text)}, which is no floating point number in hexadecimal")
    return text


def _read_complex(form: Json, where: str) -> ConstLeaf:
    parts = tuple(_read_float(part, where) for part in as_list(form, where, 2))
    if len(parts) != 2:  # noqa: PLR2004  real and imaginary
        raise StoreError(f"{where} is a complex number of {len(parts)} parts")
    return ConstLeaf(type=complex, value=parts)


def _read_int(form: Json, where: str) -> ConstLeaf:
    text = as_text(form, where)
    if not _LONG.fullmatch(text) or hex(int(text, 16)) != text or abs(int(text, 16)) < _WORD:
        raise StoreError(f"{where} is {shown(text)}, which is no long whole number in hexadecimal")
    return ConstLeaf(type=int, value=int(text, 16))


def _read_hex(form: Json, where: str, longest: int) -> bytes:
    text = as_text(form, where, 2 * longest)
    if not re.fullmatch(r"([0-9a-f]{2})*", text):
        raise StoreError(f"{where} is not written in pairs of hexadecimal digits")
    return bytes.fromhex(text)


def _read_str(form: Json, where: str) -> ConstLeaf:
    return ConstLeaf(type=str, value=_read_hashed(form, where))


def _read_bytes(form: Json, where: str) -> ConstLeaf:
    return ConstLeaf(
        type=bytes, value=_read_hashed(form, where) if isinstance(form, dict) else _read_hex(form, where, SHORT)
    )


def _read_hashed(form: Json, where: str) -> Hashed:
    fields = as_fields(form, where, ("blake2b", "length"))
    digest = _read_hex(fields["blake2b"], where, 16).hex()
    return Hashed(digest=digest, length=as_int(fields["length"], where))


def _read_numpy(form: Json, where: str) -> ConstLeaf:
    numpy = sys.modules.get("numpy")
    if numpy is None:
        raise StoreError(f"{where} is a NumPy value: import numpy first")
    text, data = as_list(form, where, 2) if isinstance(form, list) and len(form) == 2 else ("", "")  # noqa: PLR2004
    text = as_text(text, where, SHORT)
    try:
        kind = numpy.dtype(text) if _NUMPY.fullmatch(text) else None
    except (TypeError, ValueError):
        kind = None
    if kind is None or kind.hasobject or kind.str != text:
        raise StoreError(f"{where} is of no NumPy dtype: {shown(text)}")
    value: Any = "nan" if data == "nan" else _read_hex(data, where, 16 * SHORT)
    if value != "nan" and len(value) != kind.itemsize:
        raise StoreError(f"{where} has {len(value)} bytes for one {text}")
    return ConstLeaf(type=kind.type, value=(text, value))


def _read_size(form: Json, where: str) -> ConstLeaf:
    return ConstLeaf(type=torch.Size, value=tuple(as_int(size, where, -1) for size in as_list(form, where, SHORT)))


_READERS: dict[str, Any] = {
    "int": _read_int,
    "float": lambda form, where: ConstLeaf(type=float, value=_read_float(form, where)),
    "complex": _read_complex,
    "str": _read_str,
    "bytes": _read_bytes,
    "dtype": lambda form, where: ConstLeaf(type=torch.dtype, value=read_name(form, where, torch.dtype)),
    "layout": lambda form, where: ConstLeaf(type=torch.layout, value=read_name(form, where, torch.layout)),
    "device": lambda form, where: ConstLeaf(type=torch.device, value=read_device(form, where)),
    "size": _read_size,
    "numpy": _read_numpy,
    "enum": None,
}
