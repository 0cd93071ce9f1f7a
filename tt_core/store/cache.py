"""Remembered plans: a private folder of small files, which two processes may share and which stays small.

A file is written whole or not at all, and whatever is wrong with one (damaged, of another format, not this user's)
makes it no entry. Plans hold no code: the worst that a strange one does is to be tried, found slower or wrong, and dropped.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tt_core.errors import StoreError
from tt_core.store.folders import cache_folder, made_private, reason, replaced, why_open
from tt_core.values import Plan, frozen

MOST = 16 << 20
"""Bytes of all files together; the least recently used go first."""
LARGEST = 1 << 20
"""Bytes of one file."""
_FORMAT = 1
"""Part of every name: another meaning of the name's parts is another number."""
_OURS = re.compile(r"[0-9a-f]{32}\.json|\.[0-9a-f]{32}\.json\.[0-9a-f]{16}\.tmp")
_READ = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)


def name_of(parts: Any) -> str:
    """The name of an entry: a hash of everything that its plan depends on, as JSON values."""
    text = json.dumps([_FORMAT, parts], sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


@frozen
class Cache:
    """The remembered plans of one folder.

    Attributes:
        folder: where they are.
    """

    folder: Path

    def read(self, name: str) -> Plan | None:
        """The plan of a name, which counts as used now; None where there is none that can be read."""
        path = self._path(name)
        try:
            plan = Plan.from_json(_content(path))
            os.utime(path)
        except (OSError, StoreError):
            return None
        return plan

    def write(self, name: str, plan: Plan) -> None:
        """Remembers a plan, and forgets the least recently used ones where all together are too large.

        Raises:
            StoreError: the plan has no form, is too large, or the disk refuses.
        """
        data = json.dumps(plan.to_json(), indent=1, allow_nan=False).encode()
        if len(data) > LARGEST:
            raise StoreError(f"it has {len(data):,} bytes; at most {LARGEST:,} are kept")
        try:
            replaced(self._path(name), lambda file: file.write(data) and None)
        except StoreError as error:  # its message names the path, which no report may hold
            why = reason(error.__cause__) if isinstance(error.__cause__, OSError) else "it cannot be written"
            raise StoreError(f"the folder of TT_CACHE_DIR: {why}") from error
        self._trim(keep=f"{name}.json")

    def entries(self) -> Iterator[tuple[str, int, Plan | None]]:
        """(name, bytes, plan) of every entry, the most recently used first; no plan where it cannot be read."""
        for path, found in reversed(self._files()):
            if path.suffix == ".json":
                try:
                    plan = Plan.from_json(_content(path))
                except (OSError, StoreError):
                    plan = None
                yield path.stem, found.st_size, plan

    def clear(self) -> int:
        """Forgets every plan; how many. Files of other kinds stay, and what another process is writing."""
        removed = 0
        for path, _ in self._files():
            if path.suffix == ".json":
                with contextlib.suppress(OSError):
                    path.unlink()
                    removed += 1
        return removed

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.json"

    def _trim(self, keep: str) -> None:
        files = self._files()
        total = sum(found.st_size for _, found in files)
        for path, found in files:
            if total <= MOST:
                return
            if path.name != keep:
                with contextlib.suppress(OSError):  # another process was faster
                    path.unlink()
                total -= found.st_size

    def _files(self) -> list[tuple[Path, os.stat_result]]:
        """Our files, the least recently used first; what others put there is left alone."""
        found: list[tuple[Path, os.stat_result]] = []
        with contextlib.suppress(OSError), os.scandir(self.folder) as listed:
            for entry in listed:
                if _OURS.fullmatch(entry.name):
                    with contextlib.suppress(OSError):
                        found.append((Path(entry.path), entry.stat(follow_symlinks=False)))
        return sorted(found, key=lambda one: (one[1].st_mtime_ns, one[0].name))


def open_cache(*, make: bool = True) -> tuple[Cache | None, str]:
    """The cache of this user, or None and a sentence of why it is not used; an empty sentence where it is switched off.

    Args:
        make: makes the folder where it is missing; else a missing one is no cache.
    """
    if os.environ.get("TT_CACHE_DIR") == "":
        return None, ""
    outer = cache_folder()
    folder = outer / "plans"
    try:
        for each in (outer, folder):
            why = _why_not(each, make=make)
            if why:
                return None, f"plans are not remembered: the folder {each.name!r} {why}"
    except (OSError, StoreError) as error:
        cause = (
            error.__cause__ if isinstance(error, StoreError) else error
        )  # the message of a StoreError names the folder
        why = reason(cause) if isinstance(cause, OSError) else "others can write to it"
        return None, f"plans are not remembered: the folder of TT_CACHE_DIR cannot be used ({why})"
    return Cache(folder=folder), ""


def _why_not(folder: Path, *, make: bool) -> str:
    """Why a folder is not used. A link is refused: who made it chooses where it leads."""
    if not folder.is_symlink() and not folder.exists():
        if not make:
            return "is not there yet"
        made_private(folder)
    if folder.is_symlink():
        return "is a symbolic link"
    found = folder.lstat()
    return why_open(folder, found) if stat.S_ISDIR(found.st_mode) else "is no folder"


def _content(path: Path) -> bytes:
    """The bytes of an entry.

    Raises:
        OSError: it is not there, or a link.
        StoreError: too large, or not this user's own.
    """
    with os.fdopen(os.open(path, _READ), "rb") as file:
        found = os.fstat(file.fileno())
        why = why_open(path, found)
        if why or found.st_size > LARGEST:
            raise StoreError(f"a remembered plan {why or 'is too large'}")
        return file.read(LARGEST + 1)
