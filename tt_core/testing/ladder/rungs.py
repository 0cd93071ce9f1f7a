"""The rungs of the ladder, and the two selections of them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from tt_core.testing.ladder import calls, modules
from tt_core.values import Call, Keeps, frozen

Made = Callable[[frozenset[Keeps]], nn.Module]


def _none() -> tuple[Call, ...]:
    return ()


@frozen
class Rung:
    """One small module with calls. All on the CPU, in evaluation mode, parameters drawn from torch's global generator.

    Attributes:
        name: one word, for test ids and tables.
        says: what the rung asks of a backend.
        make: the module; gets the behaviours that the backend declares to keep.
        calls: what is recorded: one call key, several sizes where axes move.
        spellings: other spellings of the first recorded call, each with tensors of the same values.
        inside: calls that were not recorded, of sizes between the recorded ones.
        outside: calls of the same key just outside of what was recorded: sizes beyond the range, axes unequal that were
            always equal. Eager may refuse them.
    """

    name: str
    says: str
    make: Made
    calls: Callable[[], tuple[Call, ...]]
    spellings: Callable[[], tuple[Call, ...]] = _none
    inside: Callable[[], tuple[Call, ...]] = _none
    outside: Callable[[], tuple[Call, ...]] = _none

    def __str__(self) -> str:
        """The name: the rung's id in tests."""
        return self.name


def _plain(kind: Callable[[], nn.Module]) -> Made:
    return lambda _keeps: kind()


def _typed(dtype: torch.dtype) -> Made:
    return lambda _keeps: modules.Rows().to(dtype)


ROWS = Rung(
    name="rows",
    says="float32 with a moving batch",
    make=_plain(modules.Rows),
    calls=calls.rows(2, 3, 5),
    spellings=calls.rows_spelled,
    inside=calls.rows(4, 2),
    outside=calls.rows(1, 9, 0),
)
"""The first rung: the one that weights, threads, dumps and `close` are tried on."""
NESTED = Rung(
    name="nested",
    says="every spelling of a call; nested results",
    make=_plain(modules.Nested),
    calls=calls.nested,
    spellings=calls.nested_spelled,
)
AXES = Rung(
    name="axes",
    says="two moving axes, each equal in two tensors",
    make=_plain(modules.Axes),
    calls=calls.equal((2, 4), (3, 6), (5, 7)),
    inside=calls.equal((4, 5), (5, 5), (2, 7)),
    outside=calls.axes((3, 5, 1, 5), (3, 5, 3, 1), (1, 5, 3, 5), (6, 5, 6, 5), (3, 5, 3, 4), (2, 5, 3, 5)),
)
TOKENS = Rung(
    name="tokens",
    says="int64 and bool, in and out",
    make=_plain(modules.Tokens),
    calls=calls.tokens(2, 3, 5),
    inside=calls.tokens(4),
    outside=calls.tokens(7),
)
HALF = Rung(name="half", says="bfloat16", make=_typed(torch.bfloat16), calls=calls.rows(4, 4, dtype=torch.bfloat16))
DOUBLE = Rung(name="double", says="float64", make=_typed(torch.float64), calls=calls.rows(4, 4, dtype=torch.float64))
BEHAVES = Rung(name="behaves", says="all that it declares to keep, at once", make=modules.Behaves, calls=calls.behaving)

_ONE_BY_ONE = tuple(
    Rung(
        name=keep.name.lower(),
        says=f"one behaviour: {keep.value}",
        make=lambda _keeps, keep=keep: modules.Behaves({keep}),  # type: ignore[misc]  # mypy takes the default for an argument
        calls=calls.behaving,
    )
    for keep in Keeps
)

QUICK: tuple[Rung, ...] = (ROWS, NESTED, AXES, TOKENS, HALF, DOUBLE, BEHAVES)
"""One build each, and every promise is asked once."""

LONG: tuple[Rung, ...] = (
    *_ONE_BY_ONE,
    Rung(
        name="one",
        says="a batch of 1 among others",
        make=_plain(modules.Rows),
        calls=calls.rows(1, 2, 5),
        inside=calls.rows(3),
    ),
    Rung(name="float16", says="float16", make=_typed(torch.float16), calls=calls.rows(4, 4, dtype=torch.float16)),
    Rung(name="narrow", says="int32 and uint8", make=_plain(modules.Narrow), calls=calls.narrow),
    Rung(name="scalars", says="tensors of rank 0", make=_plain(modules.Scalars), calls=calls.scalars),
    Rung(name="views", says="results that are views", make=_plain(modules.Views), calls=calls.wide(4, 4)),
    Rung(name="columns", says="inputs that are not contiguous", make=_plain(modules.Rows), calls=calls.columns),
    Rung(name="branch", says="a branch on values, both ways", make=_plain(modules.Branch), calls=calls.branched),
    Rung(name="convolved", says="images of moving size", make=_plain(modules.Convolved), calls=calls.images),
    Rung(
        name="attention", says="masked attention of moving length", make=_plain(modules.Attention), calls=calls.attended
    ),
    Rung(
        name="tied",
        says="one weight under two names",
        make=_plain(modules.Tied),
        calls=calls.wide(2, 3, 5),
        inside=calls.wide(4),
    ),
    Rung(name="hooked", says="a hook on an inner module", make=_plain(modules.Hooked), calls=calls.wide(4, 4)),
)
"""The rest, for a longer run."""

ALL: tuple[Rung, ...] = (*QUICK, *LONG)
