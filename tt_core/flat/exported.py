"""An exported program with what `torch.export` decided while it traced: which sizes it is right for, and its results'."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from tt_core.contain import Caught, attempt
from tt_core.errors import BuildRefusedError
from tt_core.flat.dims import around, dynamic_shapes
from tt_core.flat.quiet import quiet
from tt_core.flat.same import same_program
from tt_core.flat.writes import may_write_outside
from tt_core.values import Axis, Shapes, frozen

Sizes = Sequence[Sequence[int]]
Scope = dict[str, Any]


@frozen
class Exported:
    """A program and what it was specialised on.

    Attributes:
        program: the `torch.export.ExportedProgram`.
        leaves: for each input its sizes: numbers, and expressions over symbols as text.
        ranges: lowest and highest value of each symbol.
        fits: whether the program is right for these input sizes (fixed sizes, ranges, every guard).
        result_sizes: sizes of the distinct result tensors for input sizes that fit.
    """

    program: torch.export.ExportedProgram
    leaves: tuple[tuple[int | str, ...], ...]
    ranges: dict[str, tuple[int, int]]
    fits: Callable[[Sizes], bool]
    result_sizes: Callable[[Sizes], tuple[tuple[int, ...], ...]]

    def covers(self, shapes: Shapes) -> Shapes:
        """`shapes` narrowed to this program: sizes it fixed, ranges it narrowed, axes it takes for equal.

        Guards of other forms (a size must be even) cannot be said in `Shapes`: ask `fits` at call time.
        """
        merged = _merged(shapes, self.leaves)
        return Shapes(
            leaves=tuple(
                tuple(self._axis(size, own, merged) for size, own in zip(leaf, owns, strict=True))
                for leaf, owns in zip(shapes.leaves, self.leaves, strict=True)
            )
        )

    def serves(self, special: Exported) -> bool:
        """Whether this program, at the sizes that `special` was traced for, is that program node by node.

        A runtime that asks sizes at run time may then use this one for both. A compiler that was told that a size is
        at least 2 may not.
        """
        return same_program(self.program, special.program)

    def _axis(self, size: int | Axis, own: int | str, merged: dict[str, str]) -> int | Axis:
        if not isinstance(size, Axis) or isinstance(own, int):
            return size if isinstance(size, int) else own if isinstance(own, int) else size
        lo, hi = self.ranges.get(own, (size.lo, size.hi))
        return Axis(lo=max(size.lo, lo), hi=min(size.hi, hi), symbol=merged[size.symbol])


def _merged(shapes: Shapes, leaves: tuple[tuple[int | str, ...], ...]) -> dict[str, str]:
    """For each symbol of `shapes` the one symbol of its class: equal in `shapes`, or equal in the program."""
    owner: dict[str, str] = {}
    classes: dict[str, set[str]] = {}
    for leaf, owns in zip(shapes.leaves, leaves, strict=True):
        for size, own in zip(leaf, owns, strict=True):
            if isinstance(size, Axis):
                joined = classes.setdefault(size.symbol, {size.symbol})
                if isinstance(own, str):
                    other = owner.setdefault(own, size.symbol)
                    joined |= classes[other]
                for symbol in joined:
                    classes[symbol] = joined
    return {symbol: min(joined) for symbol, joined in classes.items()}


def export(module: nn.Module, example: tuple[torch.Tensor, ...], shapes: Shapes, names: Sequence[str]) -> Exported:
    """Exports `module(*example)` for sizes of `shapes` around the example's.

    Args:
        module: maps tensors to a flat tuple of tensors.
        example: the inputs to trace with.
        shapes: the ranges wanted.
        names: of the inputs, for messages.

    Raises:
        BuildRefusedError: it does not export, changes inputs or buffers, or the size of a result depends on values.
    """
    wanted = around(shapes, tuple(tuple(tensor.shape) for tensor in example))
    dims = dynamic_shapes(wanted, auto=True)

    def run() -> torch.export.ExportedProgram:
        with quiet(), torch.no_grad():
            return torch.export.export(module, example, dynamic_shapes=dims, strict=False)

    program = attempt(run, where="torch.export")
    if isinstance(program, Caught):
        own = program.kind == BuildRefusedError.__name__
        raise BuildRefusedError(
            program.reason if own else f"torch.export cannot trace it: {program.reason}", program.hint
        )
    _refuse_writes(program, names)
    return _read(program, wanted)


def _refuse_writes(program: torch.export.ExportedProgram, names: Sequence[str]) -> None:
    if not may_write_outside(program.graph):
        return
    signature = program.run_decompositions({}).graph_signature  # only the functional form says what reaches the outside
    if signature.buffers_to_mutate:
        raise BuildRefusedError(f"it writes to its state ({', '.join(sorted(signature.buffers_to_mutate.values()))})")
    if signature.user_inputs_to_mutate:
        places = [list(signature.user_inputs).index(name) for name in signature.user_inputs_to_mutate.values()]
        raise BuildRefusedError(f"it writes to its inputs ({', '.join(names[i] for i in places)})")


def _read(program: torch.export.ExportedProgram, wanted: Shapes) -> Exported:
    inputs = [value.shape for value in _values(program, program.graph_signature.user_inputs)]
    leaves = tuple(tuple(n if isinstance(n, int) else str(n.node.expr) for n in shape) for shape in inputs)
    symbols = _symbols(inputs)
    ranges = {text: _range(program, expression) for text, expression in symbols.items()}
    outputs = [value.shape for value in _values(program, program.graph_signature.user_outputs)]
    return Exported(
        program=program,
        leaves=leaves,
        ranges=ranges,
        fits=_fits(program, leaves, ranges, wanted),
        result_sizes=_result_sizes(outputs, leaves),
    )


def _values(program: torch.export.ExportedProgram, names: Sequence[Any]) -> list[torch.Tensor]:
    """The fake tensors of graph nodes by name."""
    nodes = {node.name: node for node in program.graph.nodes}
    return [nodes[str(name)].meta["val"] for name in names]


def _symbols(shapes: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """The axes that are a symbol on their own, by its text."""
    sizes = [n.node.expr for shape in shapes for n in shape if not isinstance(n, int)]
    return {str(expression): expression for expression in sizes if expression.is_Symbol}


def _range(program: torch.export.ExportedProgram, symbol: Any) -> tuple[int, int]:
    found = program.range_constraints.get(symbol)
    if found is None:
        return 0, 2**62
    return _whole(found.lower, 0), _whole(found.upper, 2**62)


def _whole(bound: Any, otherwise: int) -> int:
    return int(bound) if bound.is_finite else otherwise


def _bindings(leaves: tuple[tuple[int | str, ...], ...]) -> dict[str, str]:
    """An expression over the argument `sizes` for each symbol."""
    found: dict[str, str] = {}
    for i, leaf in enumerate(leaves):
        for d, size in enumerate(leaf):
            if isinstance(size, str) and size.isidentifier():
                found.setdefault(size, f"sizes[{i}][{d}]")
    return found


def _fits(
    program: torch.export.ExportedProgram,
    leaves: tuple[tuple[int | str, ...], ...],
    ranges: dict[str, tuple[int, int]],
    wanted: Shapes,
) -> Callable[[Sizes], bool]:
    """Every condition under which the trace holds, as one generated expression over `sizes`."""
    bindings = _bindings(leaves)
    tests = [f"len(sizes) == {len(leaves)}"]
    tests += [f"len(sizes[{i}]) == {len(leaf)}" for i, leaf in enumerate(leaves)]
    for i, leaf in enumerate(leaves):
        for d, size in enumerate(leaf):
            axis = f"sizes[{i}][{d}]"
            if isinstance(size, int):
                tests.append(f"{axis} == {size}")
            elif bindings.get(size) == axis:
                tests.append(f"{ranges[size][0]} <= {axis} <= {ranges[size][1]}")
            elif size in bindings:
                tests.append(f"{axis} == {bindings[size]}")
            bound = wanted.leaves[i][d]
            if isinstance(bound, Axis):
                tests.append(f"{bound.lo} <= {axis} <= {bound.hi}")
    tests += [_guard(text) for text in _guards(program, leaves)]
    return _generated("bool(" + " and ".join(f"({test})" for test in tests) + ")")


def _guards(program: torch.export.ExportedProgram, leaves: tuple[tuple[int | str, ...], ...]) -> list[str]:
    """The guards of the trace as the exporter states them: Python over the sizes of `forward`'s arguments."""
    if all(isinstance(size, int) for leaf in leaves for size in leaf):
        return []
    found: list[str] | None = getattr(program, "_guards_code", None)  # the public API has none; module() checks these
    if found is None:
        raise BuildRefusedError(f"torch {torch.__version__} does not tell what an export was specialised on")
    return found


_SIZE = re.compile(r"L\['tensors'\]\[(\d+)\]\.size\(\)\[(\d+)\]")


def _guard(text: str) -> str:
    made = _SIZE.sub(r"sizes[\1][\2]", text)
    if "L[" in made:
        raise BuildRefusedError(f"torch.export specialised it on something that is no size: {text}")
    return made


def _result_sizes(
    shapes: Sequence[torch.Size], leaves: tuple[tuple[int | str, ...], ...]
) -> Callable[[Sizes], tuple[tuple[int, ...], ...]]:
    bindings = _bindings(leaves)
    texts = ["(" + "".join(f"{_size(n, bindings)}, " for n in shape) + ")" for shape in shapes]
    return _generated("(" + "".join(f"{text}, " for text in texts) + ")")


def _size(n: Any, bindings: dict[str, str]) -> str:
    """One size of a result as source over `sizes`."""
    if isinstance(n, int):
        return str(n)
    expression = n.node.expr
    free = {str(symbol) for symbol in expression.free_symbols}
    if not free <= set(bindings):
        raise BuildRefusedError("the size of a result depends on the values of its inputs")
    from torch.utils._sympy.printers import PythonPrinter  # imports sympy, which torch itself puts off

    text = PythonPrinter().doprint(expression)
    return re.sub(r"\b[A-Za-z_]\w*\b", lambda match: bindings.get(match[0], match[0]), text)


def _generated(expression: str) -> Callable[[Sizes], Any]:
    scope: Scope = {"math": math, "torch": torch}
    exec(compile(f"def made(sizes):\n    return {expression}\n", "<tt_core.flat sizes>", "exec"), scope)  # noqa: S102  printed by torch
    made: Callable[[Sizes], Any] = scope["made"]
    return made
