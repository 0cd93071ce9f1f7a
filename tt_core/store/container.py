"""One flat file, read: magic, length, a manifest in JSON, payloads one after the other, a seal. Nothing is opened here.

    magic 8 | length of the manifest 8 | manifest | zeros to 64 | payload | zeros to 64 | payload … | mark 8, seal 32

Numbers are little-endian; offsets in the manifest's table count from the first payload's place. The seal may be missing.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import stat
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from tt_core.errors import StoreError
from tt_core.store import seal
from tt_core.store.folders import reason
from tt_core.store.head import MAGIC, aligned, parsed, recognised, table_of
from tt_core.store.recognise import LOOKED_AT

MARK = b"TTSEAL\x00\x01"
MANIFEST_BYTES = 64 << 20
LENGTH = struct.Struct("<Q")
HEAD = len(MAGIC) + LENGTH.size
CHUNK = 1 << 20
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL


class Container:
    """A file whose layout, hashes and seal were looked at. Made by `opened`.

    Attributes:
        manifest: what it says, plain JSON; not looked at beyond kind, format and table.
        payloads: the table.
        sealed: whether it carries this user's seal.
    """

    def __init__(self, file: BinaryIO, size: int, key: bytes | None) -> None:
        self._file = file
        head = file.read(LOOKED_AT)
        recognised(head)
        text = _manifest_text(file, size)
        self.manifest = parsed(text)
        self.payloads = table_of(self.manifest)
        self._start = aligned(HEAD + len(text))
        last = self.payloads[-1] if self.payloads else None
        end = self._start + (aligned(last.offset + last.size) if last else 0)
        if size not in {end, end + len(MARK) + seal.SIZE}:
            raise StoreError(f"it has {size} bytes, and its table speaks of {end}: it is damaged or was cut off")
        self.sealed = self._verified(text, size - end, key)

    def _verified(self, text: bytes, trailer: int, key: bytes | None) -> bool:
        """Reads the whole file once: every hash must be right; whether the seal is."""
        running = seal.hasher(key)
        running.update(MAGIC + LENGTH.pack(len(text)) + text)
        self._file.seek(HEAD + len(text))
        self._zeros(self._start - HEAD - len(text), running)
        for index, payload in enumerate(self.payloads):
            found = hashlib.sha256()
            self._pass(payload.size, (found, running))
            if found.hexdigest() != payload.sha256:
                raise StoreError(f"the hash of payload {index} is not the one in its table: the file is damaged")
            self._zeros(aligned(payload.size) - payload.size, running)
        if not trailer:
            return False
        if self._exactly(len(MARK)) != MARK:
            raise StoreError("what follows its payloads is no seal: the file is damaged")
        return hmac.compare_digest(self._exactly(seal.SIZE), running.digest()) and key is not None

    def copy(self, index: int, target: Path) -> None:
        """Writes a payload into a new file of mode 0600, hashed on the way.

        Raises:
            StoreError: it is not what it was a moment ago.
        """
        payload, found = self.payloads[index], hashlib.sha256()
        self._file.seek(self._start + payload.offset)
        with os.fdopen(os.open(target, _NEW, 0o600), "wb") as file:
            self._pass(payload.size, (found,), file)
        if found.hexdigest() != payload.sha256:
            raise StoreError(f"payload {index} changed while the file was read: load it again")

    def _pass(self, size: int, hashes: Sequence[Any], file: BinaryIO | None = None) -> None:
        while size:
            chunk = self._exactly(min(size, CHUNK))
            size -= len(chunk)
            for each in hashes:
                each.update(chunk)
            if file is not None:
                file.write(chunk)

    def _zeros(self, size: int, running: hmac.HMAC) -> None:
        found = self._exactly(size)
        running.update(found)
        if found.strip(b"\x00"):
            raise StoreError("there are bytes between its payloads: the file is damaged")

    def _exactly(self, size: int) -> bytes:
        found = self._file.read(size)
        if len(found) != size:
            raise StoreError("it became shorter while it was read: load it again")
        return found


@contextlib.contextmanager
def opened(path: Path, key: bytes | None) -> Iterator[Container]:
    """A file, open as long as the block runs.

    Args:
        path: the file; a link is followed, a device or pipe is not opened.
        key: of this user's seal; None: no seal is this user's.

    Raises:
        StoreError: it cannot be read, was not written by `tt.save`, is damaged, or is of a newer format.
    """
    try:
        found = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        raise StoreError(f"it cannot be opened: {reason(error) if isinstance(error, OSError) else error}") from error
    with os.fdopen(found, "rb", closefd=True) if _is_plain(found) else _refused(found) as file:
        try:
            container = Container(file, os.fstat(found).st_size, key)
        except StoreError:
            raise
        except (OSError, MemoryError) as error:
            raise StoreError(f"it cannot be read: {error or type(error).__name__}") from error
        yield container


def _is_plain(found: int) -> bool:
    return stat.S_ISREG(os.fstat(found).st_mode)


def _refused(found: int) -> BinaryIO:
    os.close(found)
    raise StoreError("it is no plain file: name the file that tt.save wrote")


def _manifest_text(file: BinaryIO, size: int) -> bytes:
    file.seek(len(MAGIC))
    field = file.read(LENGTH.size)
    length = LENGTH.unpack(field)[0] if len(field) == LENGTH.size else 0
    if not 0 < length <= min(MANIFEST_BYTES, size - HEAD):
        raise StoreError(f"its manifest is said to have {length} bytes, and the file has {size}: it is damaged")
    return file.read(length)
