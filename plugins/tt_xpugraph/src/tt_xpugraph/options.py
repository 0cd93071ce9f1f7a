"""The options of the backends, typed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

import tt_core as tt

_OUTPUTS = ("owned", "borrowed")


@attrs.frozen(kw_only=True)
class Options:
    """What a candidate may ask for.

    Attributes:
        outputs: "owned": results are copied out of the graph's memory, and are the caller's; "borrowed": they are the
            graph's own memory, which the next call overwrites. Saves a copy a result; one thread at a time.
        graphs: how many combinations of sizes and strides are captured; each holds memory of its own. Calls beyond
            run without a graph.
    """

    outputs: str = "owned"
    graphs: int = 8

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Options:
        """The options that a candidate names.

        Raises:
            BuildRefusedError: an unknown name or value; the known ones are listed.
        """
        known = [field.name for field in attrs.fields(cls)]
        for name in given:
            if name not in known:
                raise tt.BuildRefusedError(f"unknown option {name!r}", f"known options: {', '.join(known)}")
        made = cls(**given)
        if made.outputs not in _OUTPUTS:
            raise tt.BuildRefusedError(f"option outputs={made.outputs!r} is unknown", f"known: {', '.join(_OUTPUTS)}")
        if type(made.graphs) is not int or made.graphs < 1:
            raise tt.BuildRefusedError(f"option graphs={made.graphs!r}: a number of 1 or more is needed")
        return made
