"""One flat file, written: as `container` reads it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from tt_core.errors import StoreError
from tt_core.forms.reading import Json
from tt_core.store import seal
from tt_core.store.container import CHUNK, HEAD, LENGTH, MANIFEST_BYTES, MARK
from tt_core.store.folders import replaced
from tt_core.store.head import FORMAT, KIND, MAGIC, PAYLOADS, aligned
from tt_core.values import valued


@valued
class Part:
    """A payload that is to be written: a file of our own."""

    path: Path
    size: int
    sha256: str
    kind: str

    @classmethod
    def of(cls, path: Path, kind: str) -> Part:
        """The part of a file."""
        with path.open("rb") as file:
            return cls(
                path=path, size=path.stat().st_size, sha256=hashlib.file_digest(file, "sha256").hexdigest(), kind=kind
            )


def write(path: Path, manifest: Mapping[str, Json], parts: Sequence[Part], key: bytes | None) -> int:
    """Writes a file, whole or not at all.

    Args:
        path: the target.
        manifest: plain JSON; kind, format and table are added.
        parts: the payloads, in the order in which the manifest counts them.
        key: of the seal; None: the file carries none.

    Returns:
        Its size in bytes.

    Raises:
        StoreError: it would be too large to be read again, or cannot be written.
    """
    table, end = [], 0
    for part in parts:
        table.append({"offset": end, "size": part.size, "sha256": part.sha256, "kind": part.kind})
        end = aligned(end + part.size)
    whole = {"kind": KIND, "format": FORMAT, **manifest, "payloads": table}
    text = json.dumps(whole, ensure_ascii=True, allow_nan=False, sort_keys=True, separators=(",", ":")).encode()
    if len(text) > MANIFEST_BYTES or len(parts) > PAYLOADS:
        raise StoreError(
            f"the tuning needs {len(text)} bytes of description and {len(parts)} payloads: too many for a file"
        )
    replaced(path, lambda file: _fill(file, text, parts, key))
    return path.stat().st_size


def _fill(file: BinaryIO, text: bytes, parts: Sequence[Part], key: bytes | None) -> None:
    running = seal.hasher(key)

    def put(data: bytes) -> None:
        file.write(data)
        running.update(data)

    put(MAGIC + LENGTH.pack(len(text)) + text)
    put(bytes(aligned(HEAD + len(text)) - HEAD - len(text)))
    for part in parts:
        with part.path.open("rb") as source:
            while chunk := source.read(CHUNK):
                put(chunk)
        put(bytes(aligned(part.size) - part.size))
    if key is not None:
        file.write(MARK + running.digest())
