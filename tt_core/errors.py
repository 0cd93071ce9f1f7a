"""The errors of tt_core: each is a `TTError` and also the stdlib type that a caller would expect."""

from __future__ import annotations


class TTError(Exception):
    """Base of everything that tt_core raises on purpose."""


class UsageError(TTError, ValueError):
    """An argument cannot be used; the message says which, why, and what to write instead."""


class KindError(TTError, TypeError):
    """An object of a kind that cannot be tuned, or a sample of a kind that cannot be read."""


class UnknownBackendError(UsageError):
    """A backend name that nobody declared. `args`: message, name, known names."""

    def __str__(self) -> str:
        """The message alone; the rest of `args` is for programs."""
        return str(self.args[0])


class SampleError(TTError, RuntimeError):
    """The user's object could not run one sample; the model's own error is the `__cause__`."""


class StoreError(TTError, ValueError, OSError):
    """A file, a plan or a part of one that cannot be read or written; the message says what, why, and what to do."""


class BusyError(TTError, RuntimeError):
    """The object is being tuned by another thread."""


class PluginError(TTError, RuntimeError):
    """A plugin broke its contract (wrong answer type, refused value)."""


class BuildRefusedError(TTError, RuntimeError):
    """Raised by a backend's build to refuse a unit with a reason, instead of a stack trace.

    Args:
        reason: one sentence: why this backend cannot run this unit.
        hint: what the user could do about it; may be empty.
    """

    def __init__(self, reason: str, hint: str = "") -> None:
        super().__init__(reason, hint)
        self.reason = reason
        self.hint = hint

    def __str__(self) -> str:
        """The reason alone: reports print the hint on its own."""
        return self.reason


class OverrunError(TTError, TimeoutError):
    """A job in a process of its own reached its time limit and was stopped.

    Args:
        reason: one sentence, with the limit in seconds.
        hint: what the user could do about it; may be empty.
    """

    def __init__(self, reason: str, hint: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint


class DeclinedError(TTError, RuntimeError):
    """Raised by a built's call, before it changed anything: a call like this is the original forward's to answer.

    The original answers, and `tt.stats` counts the call as a fall of kind "declined"; the built stays in service.
    For what a guard cannot see: sizes that no range describes, tensors of a kind that the program has no form for.
    """


class FallbackWarning(UserWarning):
    """A tuned unit ran its original forward; the message says why and what to do."""
