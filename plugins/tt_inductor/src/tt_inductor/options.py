"""The options of the backend, typed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

import tt_core as tt


@attrs.frozen(kw_only=True)
class Options:
    """What a candidate may ask of Inductor.

    Attributes:
        mode: "jit": `torch.compile`, checked by its own guards when called; "aot": `torch.export` and AOTInductor, a
            package that twins share, that is loaded without a compiler, and that costs less per call; "auto": "aot"
            where three or more units on a CPU share a program, where `Settings(saveable=True)` asks for builts that can be
            written, and for `max_autotune`; else, and where that is refused, "jit".
        freezing: bake the weights into the program and fold constants; faster for some, stale after any change.
        max_autotune: time several kernels for each matrix product; minutes of build on a GPU.
        fullgraph: refuse a unit that does not compile into one graph.
        onednn: on a CPU, race oneDNN's product with MKL's for each float32 linear layer, and take it where it is faster.
    """

    mode: str = "auto"
    freezing: bool = False
    max_autotune: bool = False
    fullgraph: bool = False
    onednn: bool = True

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Options:
        """The options that a candidate names.

        Raises:
            BuildRefusedError: an unknown name, or a value of another type; the known ones are listed.
        """
        known = {field.name: field for field in attrs.fields(cls)}
        for name, value in given.items():
            if name not in known:
                raise tt.BuildRefusedError(f"unknown option {name!r}", f"known options: {', '.join(known)}")
            if type(value) is not type(known[name].default):
                expected = type(known[name].default).__name__
                raise tt.BuildRefusedError(f"option {name}={value!r} is not a {expected}")
        made = cls(**given)
        if made.mode not in _MODES:
            raise tt.BuildRefusedError(f"option mode={made.mode!r} is unknown", f"modes: {', '.join(_MODES)}")
        return made


_MODES = ("auto", "jit", "aot")
