"""A built in the place of its unit: calls that it hands back are answered by the original, and counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tt_core.errors import DeclinedError


class Serving:
    """Calls a built as a dispatcher would, for a check.

    Attributes:
        declined: how many calls were handed back.
    """

    def __init__(self, call: Callable[..., Any], original: Callable[..., Any]) -> None:
        self.declined = 0
        self._call = call
        self._original = original

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """The built's answer, or the original's."""
        try:
            return self._call(*args, **kwargs)
        except DeclinedError:
            self.declined += 1
        return self._original(*args, **kwargs)
