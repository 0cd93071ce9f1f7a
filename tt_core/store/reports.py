"""What saving and loading did, one line for each thing that was installed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tt_core.values import Plan, frozen, valued

_UNIT = 1024
_UNITS = ("B", "KB", "MB", "GB")


@valued
class Line:
    """What became of one built.

    Attributes:
        unit: path of the unit.
        candidate: the chain that was chosen for it.
        how: saving: "stored", "rebuilt at load" or "left out"; loading: "restored", "rebuilt" or "eager".
        note: why, where there is something to say.
    """

    unit: str
    candidate: str
    how: str
    note: str = ""

    def __str__(self) -> str:
        name = f"{self.unit or 'the whole object'}: {self.candidate}".rstrip(": ")
        return f"{name}: {self.how}" + (f" ({self.note})" if self.note else "")


@frozen
class SaveReport:
    """What `tt.save` wrote.

    Attributes:
        path: the file.
        size: bytes.
        sealed: whether it carries this user's seal, so that this user may load its native code without `trust=True`.
        lines: one for each built.
        notes: further sentences.
    """

    path: Path
    size: int
    sealed: bool
    lines: tuple[Line, ...] = ()
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        head = f"saved {self.path}, {_size(self.size)}, {'sealed' if self.sealed else 'not sealed'}"
        return _text(head, self.lines or ["nothing was tuned: it loads as eager"], self.notes)


@frozen
class LoadReport:
    """What `tt.load` did.

    Attributes:
        path: the file.
        sealed: whether it carries this user's seal.
        lines: one for each built in the file.
        plan: what the file says was installed when it was saved.
        notes: further sentences.
    """

    path: Path
    sealed: bool
    lines: tuple[Line, ...]
    plan: Plan
    notes: tuple[str, ...] = ()

    @property
    def installed(self) -> tuple[str, ...]:
        """Paths of the units that run a built now."""
        return tuple(dict.fromkeys(line.unit for line in self.lines if line.how != "eager"))

    @property
    def eager(self) -> tuple[Line, ...]:
        """What was in the file and was not installed, each with its reason."""
        return tuple(line for line in self.lines if line.how == "eager")

    def __str__(self) -> str:
        seal = "sealed by this user" if self.sealed else "without this user's seal"
        head = f"loaded {self.path}, {seal}"
        return _text(
            head, self.lines or ["nothing was tuned when it was saved: everything runs as in eager"], self.notes
        )


def _text(head: str, lines: Sequence[Line | str], notes: Sequence[str]) -> str:
    return "\n".join([head, *(f"  {line}" for line in lines), *notes])


def _size(size: int) -> str:
    value = float(size)
    for unit in _UNITS:
        if value < _UNIT or unit == _UNITS[-1]:
            break
        value /= _UNIT
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
