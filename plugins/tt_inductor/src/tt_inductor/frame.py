"""Functions with a unit's own signature and code of their own.

Dynamo keeps its programs by code object, so two modules of one class share a cache. A function made for one unit does
not; and since Python itself binds its arguments, every spelling of a call reaches Dynamo as the same frame.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Mapping
from typing import Any

_count = itertools.count(1)
_STARS: dict[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
_NAMED = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def signature_of(forward: Callable[..., Any]) -> inspect.Signature:
    """The signature of `forward`; `(*args, **kwargs)` for a callable that has none."""
    try:
        return inspect.signature(forward)
    except (TypeError, ValueError):
        return inspect.signature(lambda *args, **kwargs: (args, kwargs))


def made(signature: inspect.Signature, body: str, names: Mapping[str, Any]) -> Callable[..., Any]:
    """A new function of `signature`.

    Args:
        signature: the unit's own.
        body: its lines; `$ARGS` stands for the arguments, spelled so that a callable of the same signature gets them.
        names: its globals; they begin with `_tt_`, so that no parameter hides one.
    """
    name = f"tt_inductor_{next(_count)}"
    defaults = {f"_tt_default_{p}": param.default for p, param in signature.parameters.items()}
    lines = "".join(f"    {line}\n" for line in body.replace("$ARGS", _arguments(signature)).splitlines())
    source = f"def {name}({_parameters(signature)}):\n{lines}"
    space = {**names, **defaults}
    # the file exists: dynamo wraps code without one into a function of its own, which all such code would share
    exec(compile(source, __file__, "exec"), space)  # noqa: S102  names and defaults of a live signature
    function: Callable[..., Any] = space[name]
    return function


def _parameters(signature: inspect.Signature) -> str:
    parts: list[str] = []
    seen: set[Any] = set()
    for name, param in signature.parameters.items():
        if inspect.Parameter.POSITIONAL_ONLY in seen and param.kind != inspect.Parameter.POSITIONAL_ONLY:
            parts += [] if "/" in parts else ["/"]
        bare = param.kind == inspect.Parameter.KEYWORD_ONLY and inspect.Parameter.VAR_POSITIONAL not in seen
        parts += ["*"] if bare and "*" not in parts else []
        star = _STARS.get(param.kind, "")
        default = "" if param.default is inspect.Parameter.empty else f"=_tt_default_{name}"
        parts.append(f"{star}{name}{default}")
        seen.add(param.kind)
    only_positional = seen == {inspect.Parameter.POSITIONAL_ONLY}
    return ", ".join([*parts, "/"] if only_positional else parts)


def _arguments(signature: inspect.Signature) -> str:
    """The arguments of a call that passes all parameters on; kwargs in the recorded order."""
    parts: list[str] = []
    starred = any(param.kind == inspect.Parameter.VAR_POSITIONAL for param in signature.parameters.values())
    for name, param in signature.parameters.items():
        if param.kind == inspect.Parameter.VAR_POSITIONAL:
            parts.append(f"*{name}")
        elif param.kind == inspect.Parameter.VAR_KEYWORD:
            parts.append(f"**{name}")
        elif param.kind == inspect.Parameter.POSITIONAL_ONLY or (starred and param.kind in _NAMED):
            parts.append(name)
        else:
            parts.append(f"{name}={name}")
    return ", ".join(parts)
