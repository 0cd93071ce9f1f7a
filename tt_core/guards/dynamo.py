"""What `torch.compile` guards with: private to torch."""

from __future__ import annotations

from typing import Any

try:
    from torch._C._dynamo import guards as _found
except ImportError:  # slower, not wrong
    _found: Any = None  # type: ignore[no-redef]

dynamo: Any = _found
"""None where this torch has none."""
