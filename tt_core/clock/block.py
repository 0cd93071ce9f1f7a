"""What is common to all blocks: entering, leaving, stamps that can be trusted, no garbage collection."""

from __future__ import annotations

import contextlib
import gc
import math
from collections.abc import Iterator, Sequence

from tt_core.clock.rules import Rules
from tt_core.clock.runner import Runner
from tt_core.errors import PluginError, TTError
from tt_core.hookspecs import Timer
from tt_core.values import Call


class TooSlowError(TTError, TimeoutError):
    """One call of a runner took longer than its whole race may, and many times the baseline's."""


@contextlib.contextmanager
def entered(runner: Runner) -> Iterator[None]:
    """The runner switched on, and off again whatever happens; the garbage collector waits."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        runner.enter()
        yield
    finally:
        try:
            runner.leave()
        finally:
            if collecting:
                gc.enable()


def stamped(timer: Timer, runner: Runner, calls: Sequence[Call]) -> list[float]:
    """Seconds of each call.

    Raises:
        PluginError: the timer gave something else than a positive number of seconds for each call.
    """
    stamps = timer.block(runner.call, calls)
    if len(stamps) != len(calls):
        raise PluginError(f"the timer gave {len(stamps)} stamps for {len(calls)} calls")
    for seconds in stamps:
        if not (math.isfinite(seconds) and seconds > 0):
            raise PluginError(f"the timer gave {seconds} s for a call: no result can rest on that")
    return stamps


def in_time(stamps: Sequence[float], limit_s: float) -> None:
    """Looks at a few calls in a row; one slow call alone is forgiven (a machine may freeze for seconds).

    Raises:
        TooSlowError: every one of them took longer than a call may.
    """
    if min(stamps) > limit_s:
        raise TooSlowError(
            f"calls took {min(stamps):.3g} s or more, and the race waits {limit_s:.3g} s at most for one"
        )


def timed_calls(rules: Rules, guess_s: float) -> int:
    """How many calls of about `guess_s` seconds make a block."""
    return min(max(math.ceil(rules.block_s / guess_s), rules.least_calls), rules.most_calls)


def discarded_calls(rules: Rules, guess_s: float, *, pools: bool) -> int:
    """How many calls at the start of a block do not count: one, or enough for a switch of thread pools to settle.

    Args:
        rules: the race's.
        guess_s: about how long a call takes, seconds.
        pools: whether runners of different thread pools take part.
    """
    if not pools:
        return 1
    least = 2 if guess_s > rules.long_call_s else 1
    return min(max(math.ceil(rules.settle_s / guess_s), least), rules.most_calls)
