"""The object's own weights in a payload: safetensors, each tensor once, whatever the names that share it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from tt_core import state
from tt_core.contain import Caught, attempt
from tt_core.errors import StoreError
from tt_core.store.manifest import SavedWeights

Named = Mapping[str, torch.Tensor]


def tensors_of(obj: Any) -> dict[str, torch.Tensor]:
    """Every parameter and buffer of the object's modules by dotted name; a shared one under each of its names."""
    found: dict[str, torch.Tensor] = {}
    for each in state.find(obj):
        own = {**each.module._parameters, **each.module._buffers}
        found |= {f"{each.path}.{name}".lstrip("."): tensor for name, tensor in own.items() if tensor is not None}
    return found


def write(obj: Any, path: Path) -> tuple[tuple[str, ...], ...]:
    """Writes the weights into a new file.

    Returns:
        The names of each tensor, in the order of the file: its own names there are "0", "1", …

    Raises:
        StoreError: some tensor has no form there (sparse, quantized, on no device).
    """
    from safetensors.torch import save_file

    shared: dict[int, tuple[torch.Tensor, list[str]]] = {}
    for name, tensor in tensors_of(obj).items():
        shared.setdefault(id(tensor), (tensor, []))[1].append(name)
    plain = {str(n): tensor.detach().cpu().contiguous().clone() for n, (tensor, _) in enumerate(shared.values())}
    done = attempt(lambda: save_file(plain, path), where="writing the weights")
    if isinstance(done, Caught):
        raise StoreError(f"its weights cannot be written ({done.kind}: {done.reason}): save without weights=True")
    return tuple(tuple(names) for _, names in shared.values())


def read(path: Path, saved: SavedWeights, obj: Any) -> dict[str, torch.Tensor]:
    """The weights of a file by the object's names, once it is sure that they fit all of the object's own.

    Raises:
        StoreError: the file is damaged, or the object has other tensors.
    """
    from safetensors.torch import load_file

    held = attempt(lambda: load_file(path), where="reading the weights")
    if isinstance(held, Caught):
        raise StoreError(f"its weights are damaged ({held.kind}: {held.reason})")
    if held.keys() != {str(n) for n in range(len(saved.names))}:
        raise StoreError("its weights are not those that its manifest names")
    found = {name: held[str(n)] for n, names in enumerate(saved.names) for name in names}
    own = tensors_of(obj)
    for name in sorted(found.keys() ^ own.keys()):
        place = "in the object but not in the file" if name in own else "in the file but not in the object"
        raise StoreError(f"weight {name!r} is {place}: load into an object of the same architecture")
    for name, tensor in own.items():
        was, now = (f"{each.dtype} {tuple(each.shape)}".removeprefix("torch.") for each in (found[name], tensor))
        if was != now:
            raise StoreError(f"weight {name!r} is {now}, and was {was}: load into an object of the same architecture")
    return found


@contextlib.contextmanager
def written(obj: Any, values: Named) -> Iterator[None]:
    """The weights in their places, in place; as before when the block raises."""
    own = tensors_of(obj)
    other = {name: value for name, value in values.items() if not state.identical(own[name].detach().cpu(), value)}
    before = {name: own[name].detach().clone() for name in other}
    try:
        _put(own, other)
        yield
    except BaseException:
        _put(own, before)
        raise


def _put(own: Named, values: Named) -> None:
    with torch.no_grad():
        for name, value in values.items():
            own[name].copy_(value)
