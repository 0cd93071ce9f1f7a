"""Converted models on disk: a restart of the application need not convert again.

Only OpenVINO's own description of a model is kept, which is data: converting takes seconds, compiling it again a
fraction of one, and a compiled model would be code. The unit's weights are not in it: they are part of the key, and at hand. A
folder that is not this user's alone is not used.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

import tt_core as tt
from tt_openvino.files import MODEL, WEIGHTS, read, write
from tt_openvino.probe import installed, one_line
from tt_openvino.weights import filled, hollow, sources

FORMAT = 3
CAP = 4 << 30
"""Bytes of all entries; the ones that were not used for longest go first."""

_ENTRY = "entry.json"
_NOTE = "note.json"
_NEW = ".new-"
_ABANDONED_S = 3600.0
"""Age of a half-written entry that nobody writes any more."""
_DAMAGED = (OSError, ValueError, KeyError, TypeError, AttributeError, tt.BuildRefusedError)


class Cache:
    """The entries of one user.

    Args:
        root: their folder; None: nothing is kept.
        note: why not, for the report; empty where that was the user's wish.
    """

    def __init__(self, root: Path | None, note: str = "") -> None:
        self._root = root
        self.note = note

    @classmethod
    def ours(cls) -> Cache:
        """The cache in `TT_CACHE_DIR/openvino`, or in the user's own cache folder; off where that variable is empty."""
        named = os.environ.get("TT_CACHE_DIR")
        if named == "":
            return cls(None)
        if named is None:
            import platformdirs

            named = platformdirs.user_cache_dir("tt_core", appauthor=False)
        root = Path(named).absolute() / "openvino"
        reason = _unfit(root)
        where = "TT_CACHE_DIR/openvino" if "TT_CACHE_DIR" in os.environ else "the user's cache folder tt_core/openvino"
        return cls(None, f"models are not cached: {where} {reason}") if reason else cls(root)

    def key(
        self,
        program: torch.export.ExportedProgram,
        ranges: Any,
        weights: str,
        target: str,
        precision: str,
    ) -> str:
        """The name of the entry for a program of a unit with weights of this print; empty where nothing is kept."""
        if self._root is None:
            return ""
        from tt_openvino import __version__

        prints = (tt.flat.program_print(program), weights, tt.flat.weights_print(_held(program).items()))
        parts = (FORMAT, __version__, installed(), torch.__version__, target, precision, ranges)
        return hashlib.sha256(repr((parts, prints)).encode()).hexdigest()[:40]

    def find(self, key: str, tensors: Mapping[str, torch.Tensor]) -> Any | None:
        """The model of a key, its weights in the unit's own memory; None without one. A damaged entry is thrown away."""
        return self._opened(key, lambda entry: _model(entry, tensors))

    def keep(self, key: str, model: Any, tensors: Mapping[str, torch.Tensor]) -> None:
        """Writes an entry. What goes wrong becomes the note."""

        def written(new: Path) -> None:
            table = sources(model, tensors)
            write(hollow(model, table), new)
            said = {"format": FORMAT, "prints": _prints(new, table), "sources": table}
            (new / _ENTRY).write_text(json.dumps(said), "utf-8")

        self._written(key, written)

    @property
    def used(self) -> bool:
        """Whether anything is kept."""
        return self._root is not None

    def note_down(self, name: str, said: Mapping[str, Any]) -> None:
        """Writes an entry of JSON alone. What goes wrong becomes the note."""
        self._written(name, lambda new: (new / _NOTE).write_text(json.dumps({"print": _print(said), "said": said})))

    def recall(self, name: str) -> Any | None:
        """What was noted down under a name; None without it. A damaged entry is thrown away."""
        return self._opened(name, _noted)

    def forget(self, name: str) -> None:
        """Deletes an entry."""
        if self._root is not None and name:
            shutil.rmtree(self._root / name, ignore_errors=True)

    def _opened(self, name: str, read_from: Callable[[Path], Any]) -> Any | None:
        """What an entry has, which counts as used now; one that raises is damaged, and deleted."""
        if self._root is None:
            return None
        entry = self._root / name
        try:
            if not entry.is_dir():
                return None
            found = read_from(entry)
            os.utime(entry)
        except _DAMAGED:
            self.forget(name)
            return None
        return found

    def _written(self, name: str, write_into: Callable[[Path], object]) -> None:
        """Writes an entry, all of it or nothing, and makes room for it."""
        if self._root is None:
            return
        new = self._root / f"{_NEW}{os.getpid()}-{secrets.token_hex(4)}"
        try:
            new.mkdir(mode=0o700)
            write_into(new)
            with contextlib.suppress(OSError):  # another process was first: its entry is as good
                new.rename(self._root / name)
            _trim(self._root, CAP)
        except (OSError, RuntimeError) as error:
            reason = getattr(error, "strerror", None) or one_line(error)
            self.note = f"its model was not cached: {reason}"
        finally:
            shutil.rmtree(new, ignore_errors=True)


def _model(entry: Path, tensors: Mapping[str, torch.Tensor]) -> Any:
    said = json.loads((entry / _ENTRY).read_text("utf-8"))
    if said["prints"] != _prints(entry, said["sources"]):
        raise ValueError("something else than was written")
    model = read(entry)
    filled(model, said["sources"], tensors)
    return model


def _noted(entry: Path) -> Any:
    found = json.loads((entry / _NOTE).read_text("utf-8"))
    if found["print"] != _print(found["said"]):
        raise ValueError("something else than was written")
    return found["said"]


def _print(said: Any) -> str:
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def _held(program: torch.export.ExportedProgram) -> dict[str, torch.Tensor]:
    """Weights as the program holds them: also those that are no tensors of the module."""
    return {f"program.{name}": value for name, value in program.constants.items() if isinstance(value, torch.Tensor)}


def _prints(folder: Path, table: Mapping[str, str]) -> dict[str, str]:
    """Hashes of all that an entry says: its files, and which weight goes where."""
    found = {"sources": hashlib.sha256(repr(sorted(table.items())).encode()).hexdigest()}
    for name in (MODEL, WEIGHTS):
        with (folder / name).open("rb") as file:
            found[name] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def _unfit(root: Path) -> str:
    """Why a folder, made where it is missing, cannot be the cache's; empty where it can."""
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        seen = root.lstat()
    except OSError as error:
        return f"cannot be made ({error.strerror or type(error).__name__})"
    if root.is_symlink() or root.parent.is_symlink():
        return "is reached through a link"
    if hasattr(os, "geteuid"):
        above = root.parent.stat()
        if {seen.st_uid, above.st_uid} != {os.geteuid()}:
            return "belongs to another user"
        if seen.st_mode & 0o077 or above.st_mode & 0o022:
            return "is open to other users: chmod 700 it, and chmod go-w the folder above"
    return ""


def _trim(root: Path, cap: int) -> None:
    """Deletes the entries that were not used for longest until the rest fits, and half-written ones of long ago."""
    entries = []
    for folder in root.iterdir():
        with contextlib.suppress(OSError):  # another process deletes, too
            entries.append((folder.stat().st_mtime, sum(file.stat().st_size for file in folder.iterdir()), folder))
    entries.sort(reverse=True)
    newest = entries[0][0] if entries else 0.0
    total = 0
    for used, size, folder in entries:
        total += size
        old = folder.name.startswith(_NEW) and newest - used > _ABANDONED_S
        if old or (total > cap and not folder.name.startswith(_NEW)):
            shutil.rmtree(folder, ignore_errors=True)
