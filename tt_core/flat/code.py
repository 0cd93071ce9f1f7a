"""What a module runs, apart from the values of its tensors, as a short text: code as it is now, settings, files, versions."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import sys
import sysconfig
import weakref
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn

from tt_core.flat.prints import weights_print

_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...))
_OF_TORCH = (torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format)
_OPERATORS = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)
_SMALL = 1 << 16
"""Bytes of a tensor that is no weight and is still read."""
_MOST = 100_000
"""Objects looked at before it is given up."""
_CONTAINERS = ("_parameters", "_buffers", "_modules")
_ASIDE = frozenset(n for n in vars(nn.Module()) if "state_dict" in n or "backward" in n or "persistent" in n)
"""What modules hold that no forward pass looks at."""
_NOT_RUN = frozenset({"__doc__", "__dict__", "__weakref__", "__annotations__", "__abstractmethods__", "_abc_impl"})


class _Untold(Exception):  # noqa: N818  never leaves this file
    """Something here cannot be written down."""


class _Plain:
    """All of its state is in its dict."""


def code_print(module: nn.Module) -> str:
    """Equal where a module would run the same Python with the same settings; empty where that cannot be told.

    Looked at are: of every module inside its attributes, hooks, and which tensors and modules it holds under which names; the
    code of all classes as it is now, also where it was replaced; the files of these classes, and of all loaded Python that
    is installed nowhere, by size and time of change; versions of Python, torch and the classes' packages. Functions that an
    installed package's code calls are known by that package's version alone. Hashed with SHA-256.
    """
    try:
        told = _Telling(module)
        parts = (sys.version, torch.__version__, str(torch.get_default_dtype()), told.modules(module), told.code())
        files = _files({kind.__module__ for kind in told.classes})
    except (_Untold, RecursionError):
        return ""
    return hashlib.sha256(repr((parts, files)).encode("utf-8", "surrogatepass")).hexdigest()


class _Telling:
    """Objects as nested tuples of texts. An object that comes again is its number, so that what is shared shows."""

    def __init__(self, module: nn.Module) -> None:
        self.classes: dict[type, None] = {}
        self._known: dict[int, Any] = {id(each): ("module", path) for path, each in module.named_modules()}
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            self._known[id(tensor)] = ("tensor", name, str(tensor.dtype), str(tensor.device), tuple(tensor.shape))
        self._held: list[Any] = []

    def modules(self, module: nn.Module) -> list[Any]:
        """Each module inside: its class, what it holds, its attributes."""
        return [self._module(path, each) for path, each in module.named_modules(remove_duplicate=False)]

    def code(self) -> list[Any]:
        """The members of all classes that were met, and of those met in them."""
        done: dict[type, Any] = {}
        while left := [kind for kind in self.classes if kind not in done]:
            for kind in left:
                done[kind] = (kind.__module__, kind.__qualname__, [*self._members(kind)])
        return [*done.values()]

    def form(self, value: Any) -> Any:
        """One object."""
        if type(value) in _PLAIN:
            return type(value).__name__, repr(value)
        if isinstance(value, _OF_TORCH):
            return repr(value)
        if isinstance(value, tuple):
            return self._kind(type(value)), [self.form(each) for each in value]
        if (known := self._known.get(id(value))) is not None:
            return known
        if len(self._held) >= _MOST:
            raise _Untold
        self._known[id(value)] = ("again", len(self._held))
        self._held.append(value)  # an id is only unique while its object lives
        return self._new(value)

    def _new(self, value: Any) -> Any:  # noqa: PLR0911  one line a kind
        if isinstance(value, type):
            return "class", self._kind(value)
        if isinstance(value, Enum):
            return self._kind(type(value)), value.name
        if isinstance(value, dict):
            return self._kind(type(value)), [(self.form(key), self.form(each)) for key, each in value.items()]
        if isinstance(value, list):
            return self._kind(type(value)), [self.form(each) for each in value]
        if isinstance(value, (set, frozenset)):
            return self._kind(type(value)), sorted(repr(self.form(each)) for each in value)
        if isinstance(value, ModuleType):
            return "file", value.__name__
        if isinstance(value, torch.Tensor):
            return _tensor(value)
        return self._called(value)

    def _called(self, value: Any) -> Any:  # noqa: PLR0911  one line a kind
        """What may be called, and any object whose state is all in its dict."""
        if isinstance(value, FunctionType):
            inside = [self.form(each) for each in (value.__defaults__, value.__kwdefaults__, *_cells(value))]
            return value.__module__, value.__qualname__, _code(value.__code__), inside
        if isinstance(value, weakref.ReferenceType):
            return "weak", self.form(value())
        if isinstance(value, MethodType):
            return "method", self.form(value.__func__), self.form(value.__self__)
        if isinstance(value, functools.partial):
            return "partial", self.form(value.func), self.form(value.args), self.form(value.keywords)
        if isinstance(value, BuiltinFunctionType) and isinstance(value.__self__, (type, ModuleType, type(None))):
            return "built in", str(value.__module__), value.__qualname__
        if isinstance(value, _OPERATORS):
            return "operator", str(value)
        if isinstance(value, nn.Module) or type(value).__basicsize__ != _Plain.__basicsize__:
            raise _Untold  # a module that is registered nowhere, or state that cannot be seen
        return self._kind(type(value)), self.form(vars(value))

    def _module(self, path: str, module: nn.Module) -> Any:
        if isinstance(module, torch.jit.ScriptModule):
            raise _Untold
        own = vars(module)
        held = [(name, key, self._known.get(id(each))) for name in _CONTAINERS for key, each in own[name].items()]
        rest = [(k, self.form(v)) for k, v in own.items() if k not in _ASIDE and k not in _CONTAINERS]
        return path, self._kind(type(module)), held, rest

    def _kind(self, kind: type) -> str:
        own = [each for each in kind.__mro__ if each is not nn.Module and each.__module__ != "builtins"]
        self.classes.update(dict.fromkeys(own))
        return f"{kind.__module__}.{kind.__qualname__}"

    def _members(self, kind: type) -> Iterator[Any]:
        """What can be told of a class: the rest was written in its file, whose change shows."""
        for name, member in vars(kind).items():
            if name in _NOT_RUN:
                continue
            inner = [getattr(member, each, None) for each in ("__func__", "fget")]
            try:
                yield name, self.form(next((each for each in inner if each is not None), member))
            except _Untold:
                yield name, type(member).__name__


def _cells(function: FunctionType) -> Iterator[Any]:
    """What a function holds of the scopes around it."""
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # not assigned yet
            yield cell.cell_contents


def _code(code: CodeType) -> Any:
    return code.co_code.hex(), code.co_names, code.co_varnames, code.co_freevars, [*map(_constant, code.co_consts)]


def _constant(value: Any) -> Any:
    if isinstance(value, CodeType):
        return _code(value)
    return sorted(map(repr, value)) if isinstance(value, frozenset) else repr(value)


def _tensor(tensor: torch.Tensor) -> Any:
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided or tensor.nbytes > _SMALL:
        raise _Untold
    return "values", weights_print([("", tensor)])


def _files(names: set[str]) -> Any:
    """Size and time of change of the files of these Python modules and of all that is installed nowhere; versions."""
    installed = tuple(path for key, path in sysconfig.get_paths().items() if key.endswith("lib"))
    files = {name: getattr(module, "__file__", None) for name, module in sorted(sys.modules.items())}
    found = [
        (name, _stat(file))
        for name, file in files.items()
        if isinstance(file, str) and (name in names or not file.startswith(installed))
    ]
    tops = sorted({name.partition(".")[0] for name in names})
    return found, [(top, str(getattr(sys.modules.get(top), "__version__", ""))) for top in tops]


def _stat(file: str) -> Any:
    try:
        seen = Path(file).stat()
    except OSError:
        return None
    return seen.st_size, seen.st_mtime_ns
