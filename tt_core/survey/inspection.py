"""What a survey found, as a value."""

from __future__ import annotations

from typing import Any

import attrs

from tt_core.survey.cut import cut_at
from tt_core.survey.text import tree_text
from tt_core.values import Cut, Unit, frozen, valued


@valued
class Seen:
    """One module that ran.

    Attributes:
        path: its name; `""` is the object itself.
        aliases: further paths of the same module.
        kind: class name.
        depth: executed modules around it, the fewest over its calls.
        parent: the innermost executed module around it at that depth; None for a top module.
        parents: every module that called it directly, by path.
        children_executed: whether other modules ran inside it.
        calls: how often it ran in one pass.
        total_s: seconds inside it, without the cost of watching. One pass, cold: shares, not figures to compare.
        own_s: those seconds without the modules inside it.
        parameters: elements of its parameters, those of its children included, shared ones once.
        dtypes: of its parameters and buffers, by falling number of elements: `("float32", "int64")`.
        keys: a text for each call key, sizes included.
        recursive: whether it ran inside itself.
    """

    path: str
    aliases: tuple[str, ...] = ()
    kind: str = ""
    depth: int = 0
    parent: str | None = None
    parents: tuple[str, ...] = ()
    children_executed: bool = False
    calls: int = 1
    total_s: float = 0.0
    own_s: float = 0.0
    parameters: int = 0
    dtypes: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    recursive: bool = False


@frozen
class Inspection:
    """The modules of an object that ran on one pass over a dataset.

    Attributes:
        modules: those that ran, in the order of the object's tree.
        idle: paths of modules that did not run: containers, unused branches.
        samples: how many samples the pass had.
        seconds: of the whole pass, without the cost of watching.
        outside_s: of those, spent outside every module: other methods, tokenizers, Python around the modules.
        changed: dotted names of state that the pass changed (and that was put back).
        live: the executed modules as units, in the order of `modules`.
    """

    modules: tuple[Seen, ...]
    idle: tuple[str, ...] = ()
    samples: int = 0
    seconds: float = 0.0
    outside_s: float = 0.0
    changed: tuple[str, ...] = ()
    live: tuple[Unit, ...] = attrs.field(default=(), repr=False)

    def __getitem__(self, path: str) -> Seen:
        """The entry of one module, by its name or an alias. KeyError where it did not run."""
        for seen in self.modules:
            if path == seen.path or path in seen.aliases:
                return seen
        raise KeyError(path)

    def units(self) -> tuple[Unit, ...]:
        """Every executed module as a unit, with its live module and the forward that it had."""
        return self.live

    def cut(self, depth: int) -> Cut:
        """The cut at `depth`: every executed unit there, and every executed leaf that is shallower."""
        return cut_at(self, depth)

    def describe(self) -> str:
        """A table of plain text, at most 80 columns wide: the tree of executed modules with calls and shares of time."""
        return tree_text(self)

    def to_json(self) -> dict[str, Any]:
        """Plain values only: strings, numbers, lists, None. Holds no sample and no weight."""
        fields = ("samples", "seconds", "outside_s")
        found: dict[str, Any] = {name: getattr(self, name) for name in fields}
        return {
            **found,
            "changed": list(self.changed),
            "idle": list(self.idle),
            "modules": [_plain(seen) for seen in self.modules],
        }


def _plain(seen: Seen) -> dict[str, Any]:
    entry: dict[str, Any] = attrs.asdict(seen)  # type: ignore[arg-type]  # `valued` hides attrs from mypy
    return {key: list(value) if isinstance(value, tuple) else value for key, value in entry.items()}
