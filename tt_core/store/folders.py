"""Where private files lie, and how a file is written: whole or not at all, for this user alone."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from tt_core.errors import StoreError

NAME = "tt_core"
_FOLDER = 0o700
_FILE = 0o600
_OTHERS = 0o077
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)


def data_folder() -> Path:
    """This user's folder for what must not be lost: the key of the seal. It may not be there yet."""
    from platformdirs import user_data_path

    return user_data_path(NAME, appauthor=False)


def cache_folder() -> Path:
    """The folder of `TT_CACHE_DIR`, else this user's folder for what can be made again. It may not be there yet."""
    named = os.environ.get("TT_CACHE_DIR")
    if named:
        return Path(named).expanduser()
    from platformdirs import user_cache_path

    return user_cache_path(NAME, appauthor=False)


def made_private(folder: Path) -> Path:
    """Makes a folder of mode 0700 where there is none; `folder` itself.

    Raises:
        StoreError: it cannot be made, or it is there and others could write into it.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=_FOLDER)
        why = why_open(folder, folder.stat())
    except OSError as error:
        raise StoreError(f"the folder {folder} cannot be used: {reason(error)}") from error
    if why:
        raise StoreError(f"the folder {folder} {why}: chmod 700 it, or name another one")
    return folder


def why_open(path: Path, found: os.stat_result) -> str:
    """Why a file or folder is not this user's alone; empty where it is. A folder may be read by others, not written.

    Args:
        path: for the sentence.
        found: its `stat`, or that of the open file.
    """
    if os.name != "posix":  # modes say nothing there; a profile's folders are the user's own
        return ""
    if found.st_uid != os.getuid():
        return "belongs to another user"
    if stat.S_ISDIR(found.st_mode):
        return "can be written to by others" if found.st_mode & 0o022 else ""
    if not stat.S_ISREG(found.st_mode):
        return f"is no plain file ({path.name})"
    return "can be read or written by others" if found.st_mode & _OTHERS else ""


def replaced(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Writes a file of mode 0600 beside `path`, and puts it in its place once it is whole and on the disk.

    Broken off at any moment, `path` is as it was; a file named `.NAME.….tmp` may be left beside it.

    Args:
        path: the target; a file there is replaced, a link too, a folder never.
        write: fills the open file.

    Raises:
        StoreError: the target is a folder, its folder is missing, or the disk refuses.
    """
    if path.is_dir():
        raise StoreError(f"{path} is a folder: name a file")
    beside = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        _written(beside, write)
        try:
            beside.replace(path)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise
        _settled(path.parent)
    except OSError as error:
        if isinstance(error, StoreError):
            raise
        raise StoreError(f"{path} cannot be written: {reason(error)}") from error


def _written(path: Path, write: Callable[[BinaryIO], object]) -> None:
    with os.fdopen(os.open(path, _NEW, _FILE), "w+b") as file:
        try:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        except BaseException:
            path.unlink(missing_ok=True)
            raise


def _settled(folder: Path) -> None:
    """Puts the new name on the disk, where folders can be synchronised."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    found = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(found)
    finally:
        os.close(found)


@contextlib.contextmanager
def private() -> Iterator[Path]:
    """A new folder of mode 0700 that is gone when the block ends; removed is only what was made here."""
    folder = Path(tempfile.mkdtemp(prefix="tt_core-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def reason(error: OSError) -> str:
    """What the system said, without the path that the sentence names already."""
    return error.strerror or str(error) or type(error).__name__
