from collections.abc import Sequence
from typing import Any

import torch

torch_version: str

class Snapshot:
    def __init__(
        self,
        tensors: Sequence[torch.Tensor],
        written: Sequence[torch.Tensor],
        dicts: Sequence[dict[Any, Any]],
        empty: Sequence[dict[Any, Any]],
        classes: Sequence[type[Any]],
    ) -> None: ...
    def __call__(self) -> bool: ...
