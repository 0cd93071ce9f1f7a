"""A fake backend that writes what it built, as data or as code, and makes it again from a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from tt_core.errors import BuildRefusedError
from tt_core.hookspecs import hookimpl
from tt_core.testing.fakes import Bench, FakeBackend
from tt_core.values import Built, CallKey, Payload, Shapes, Unit, Weights

PROGRAM = "program.json"


class StoredBackend(FakeBackend):
    """Runs a unit's original forward, times a number that its payload holds: 1, unless somebody edits the payload.

    Args:
        bench: the machine that the units work on.
        name: of the backend.
        payload: what `tt_dump` writes, as declared.
        files: further files that it writes, by relative name.
        dumped: further fields of what `tt_dump` returns.
        claims: fields of every `Built`.
        fields: of `FakeBackend`.

    Attributes:
        opened: paths of the units that something was restored for, in order.
        silent: whether `tt_dump` refuses.
    """

    def __init__(
        self,
        bench: Bench,
        name: str = "data",
        payload: Payload = Payload.DATA,
        *,
        files: Mapping[str, bytes] | None = None,
        dumped: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> None:
        super().__init__(bench, name, payload=payload, **fields)
        self.files, self.dumped = dict(files or {}), dict(dumped or {})
        self.opened: list[str] = []
        self.silent = False

    @hookimpl
    def tt_dump(self, built: Built, folder: Path) -> Mapping[str, Any]:  # noqa: ARG002  every built is alike
        """Writes the number 1."""
        if self.silent:
            raise BuildRefusedError("it has nothing to write")
        (folder / PROGRAM).write_text(json.dumps({"scale": 1.0}), "utf-8")
        for name, content in self.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
        return {"format": 1, **self.dumped}

    @hookimpl
    def tt_restore(
        self,
        unit: Unit,
        key: CallKey,  # noqa: ARG002  any calls
        covers: Shapes | None,
        dumped: Mapping[str, Any],
        folder: Path,
        inner: Built | None,
    ) -> Built:
        """The original forward, or the inner built, times the number in the file."""
        self.opened.append(unit.path)
        if dumped.get("format") != 1:
            raise BuildRefusedError(f"format {dumped.get('format')!r} is not 1")
        scale = float(json.loads((folder / PROGRAM).read_text("utf-8"))["scale"])
        forward = unit.forward if inner is None else inner.call

        def call(*args: Any, **kwargs: Any) -> Any:
            result = forward(*args, **kwargs)
            return result * scale if scale != 1 and isinstance(result, torch.Tensor) else result

        self.log.append(("restore", unit.path))
        return Built(
            call=call,
            covers=covers,
            weights=Weights.LIVE,
            close=lambda: self.log.append(("close", unit.path)),
            inner=inner,
        )

    @property
    def open(self) -> int:
        """Builts that were made and not closed."""
        return super().open + self.count("restore")


def coded(bench: Bench, name: str = "coded", **fields: Any) -> StoredBackend:
    """A backend that says of itself that it writes native code."""
    return StoredBackend(bench, name, Payload.CODE, **fields)
