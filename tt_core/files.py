"""The calls of tt_core that have to do with files: arguments are checked, the store does the work."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from tt_core import store
from tt_core.arguments import device_of
from tt_core.errors import UsageError
from tt_core.plugins import Plugins
from tt_core.running import alone
from tt_core.settings import Settings
from tt_core.store import LoadReport, SaveReport

__all__ = ["LoadReport", "SaveReport", "load", "save"]


def save(
    obj: Any, path: str | os.PathLike[str], *, weights: bool = False, settings: Settings | None = None
) -> SaveReport:
    """Writes what is installed on a tuned object into one file, for `tt.load` in another process.

    The file holds the plan, what the backends wrote, and what all of it was made for. It holds no sample and, unless
    asked for, no weights of its own (a backend may bake them into what it writes). It is sealed with a key of this
    user, made at the first save, so that this user may load native code from it again. Where nothing is tuned the file
    says so.

    Args:
        obj: the tuned object.
        path: the file, replaced as a whole once it is on the disk; its folder must be there.
        weights: also writes every parameter and buffer of the object.
        settings: as in `auto_tune`; its plugins are asked beside the installed ones.

    Returns:
        What has a payload, what will be built anew when it is loaded, and why.

    Raises:
        StoreError: the file cannot be written, or something in it has no form.
        BusyError: another thread is tuning the object.
    """
    device = device_of(obj, None)
    plugins = Plugins.load(extra=(settings or Settings()).plugins)
    with alone(obj), torch.no_grad():
        return store.save(obj, _path(path), device=device, plugins=plugins, with_weights=weights)


def load(
    obj: Any,
    path: str | os.PathLike[str],
    *,
    device: torch.device | str | None = None,
    strict: bool = True,
    trust: bool = False,
    rebuild: bool = False,
    settings: Settings | None = None,
) -> LoadReport:
    """Installs what `tt.save` wrote on a freshly made object, without tuning and, where payloads fit, without compiling.

    Everything is looked at before anything is opened: hashes, the architecture and the weights of each unit, the
    backends, versions, processor and device. What is installed was compared with eager on made-up inputs, and is warm.

    Args:
        obj: an object of the same architecture with the same weights, on a device of the same kind, in the same mode
            (`.eval()`). A tuning that it carries is replaced.
        path: the file.
        device: where the object is; only checked, nothing is moved.
        strict: True refuses the file as a whole where anything in it does not fit; False installs what fits, and the
            rest runs in eager, each with its reason in the report.
        trust: opens native code without this user's seal. Loading native code is running it: say so only of a file
            whose maker you know.
        rebuild: what does not fit, or is not trusted, is built anew here, which takes a build's time.
        settings: as in `auto_tune`; its plugins are asked beside the installed ones.

    Returns:
        What became of each built in the file.

    Raises:
        StoreError: the file is none of ours, damaged, of a newer format, or does not fit; one sentence that says what
            to do. The object is as before.
        BusyError: another thread is tuning the object.
    """
    where = device_of(obj, device)
    plugins = Plugins.load(extra=(settings or Settings()).plugins)
    loading = store.Loading(device=where, strict=strict, trust=trust, rebuild=rebuild)
    with alone(obj), torch.no_grad():
        return store.load(obj, _path(path), plugins=plugins, loading=loading)


def _path(given: str | os.PathLike[str]) -> Path:
    found = os.fspath(given)
    if not isinstance(found, str):
        raise UsageError(f"path={given!r}: a text or pathlib.Path is needed")
    return Path(found)
