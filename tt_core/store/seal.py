"""The seal: a keyed hash over a file, which says that this user wrote it. The key never leaves the user's own folder."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
import stat
from pathlib import Path

from tt_core.errors import StoreError
from tt_core.store.folders import data_folder, made_private, reason, why_open

SIZE = 32
"""Bytes of a seal, and of its key."""
_NAME = "seal.key"


def hasher(key: bytes | None) -> hmac.HMAC:
    """A running seal; without a key one that nobody can match."""
    return hmac.new(secrets.token_bytes(SIZE) if key is None else key, digestmod=hashlib.sha256)


def own_key() -> bytes | None:
    """This user's key; None where there is none yet, or where others could have read or written it."""
    try:
        return _read(data_folder() / _NAME)
    except StoreError:
        return None


def own_key_or_new() -> bytes:
    """This user's key, made now if there is none.

    Raises:
        StoreError: it cannot be made, or others could have read or written the one that is there.
    """
    folder = made_private(data_folder())
    path = folder / _NAME
    with contextlib.suppress(FileNotFoundError):
        return _read(path, missing=FileNotFoundError)
    fresh = folder / f".{_NAME}.{secrets.token_hex(8)}.tmp"
    try:
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(secrets.token_bytes(SIZE))
            file.flush()
            os.fsync(file.fileno())
        try:
            with contextlib.suppress(FileExistsError):  # of two processes the first one's key stays
                os.link(fresh, path)
        finally:
            fresh.unlink()
    except OSError as error:
        raise StoreError(f"no key for the seal can be made in {folder}: {reason(error)}") from error
    return _read(path)


def _read(path: Path, missing: type[OSError] = StoreError) -> bytes:
    """The key in `path`.

    Raises:
        StoreError: it is not there (or `missing`), damaged, or not this user's alone.
    """
    try:
        found = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    except FileNotFoundError as error:
        raise missing(f"there is no key for the seal at {path}") from error
    except OSError as error:
        raise StoreError(f"the key of the seal at {path} cannot be read: {reason(error)}") from error
    try:
        state = os.fstat(found)
        why = why_open(path, state) if stat.S_ISREG(state.st_mode) else "is no plain file"
        key = b"" if why else os.read(found, SIZE + 1)
    finally:
        os.close(found)
    if why:
        raise StoreError(f"the key of the seal at {path} {why}: remove it, and a new one is made")
    if len(key) != SIZE:
        raise StoreError(f"the key of the seal at {path} is damaged: remove it, and a new one is made")
    return key
