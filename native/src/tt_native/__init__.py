"""The innermost question of a guard, compiled: are these weights still what they were?

tt-core asks it in Python where this package is missing; the answers are the same.
"""

from __future__ import annotations

import torch

from tt_native._snapshot import Snapshot, torch_version

__all__ = ["Snapshot"]
__version__ = "0.1.0"

if torch.__version__.split("+")[0] != torch_version.split("+")[0]:
    # a tensor of one torch is not laid out as another's: to read it all the same could end the process
    raise ImportError(
        f"tt-native was built for torch {torch_version}, and this is torch {torch.__version__}: build it again with "
        "pip install --no-build-isolation --force-reinstall --no-deps tt-native"
    )
