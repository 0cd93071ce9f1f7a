"""What a race knows about one of its runners while it goes on."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tt_core.clock.rules import Rules
from tt_core.clock.runner import Runner
from tt_core.clock.statistics import median_interval
from tt_core.contain import Caught
from tt_core.values import Timing, frozen


@frozen
class Warm:
    """The calls before a race.

    Attributes:
        first_call_s: seconds of the very first call.
        known_s: seconds of a later call of each sample (or pass), by group; may lack some.
        bytes_peak: peak memory of these calls.
    """

    first_call_s: float
    known_s: dict[int, float]
    bytes_peak: int | None


@frozen
class Block:
    """What one runner did in one round, seconds.

    Attributes:
        figure: the median of `seconds`.
        seconds: each timed call, or pass.
        spent_s: all calls, the discarded ones included.
        stamps: of passes: seconds of each sample, per timed pass.
    """

    figure: float
    seconds: tuple[float, ...]
    spent_s: float
    stamps: tuple[tuple[float, ...], ...] = ()


class Lane:
    """One runner's record; the only mutable thing in a race."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.running = True
        self.out_of_time = False
        self.caught: Caught | None = None
        self.warm = Warm(first_call_s=0.0, known_s={}, bytes_peak=None)
        self.blocks: list[Block] = []
        self.groups: list[int] = []
        self.ratios: list[float] = []
        self.spent_s = 0.0
        self.known_s: dict[int, float] = {}
        self.device_s: float | None = None

    def fail(self, caught: Caught) -> None:
        """Out of the race, without a result."""
        self.caught = caught
        self.running = False

    def warmed(self, warm: Warm | Caught) -> None:
        """Takes down the calls before the race."""
        if isinstance(warm, Caught):
            self.fail(warm)
        else:
            self.warm = warm
            self.known_s = dict(warm.known_s)

    def took(self, block: Block | Caught, group: int) -> None:
        """Takes down one block."""
        if isinstance(block, Caught):
            self.fail(block)
        else:
            self.blocks.append(block)
            self.groups.append(group)
            self.spent_s += block.spent_s
            self.known_s[group] = block.figure

    def stop(self) -> None:
        """Out of the race because its time is over, not because of a decision."""
        self.out_of_time = True
        self.running = False

    def guess_s(self, group: int) -> float:
        """About how long a call of this sample takes; infinite where nothing is known."""
        return self.known_s.get(group, math.inf)

    def timing(self, rules: Rules, *, noise: float, items: int | None) -> Timing:
        """The record as a result; needs one block at least."""
        interval = median_interval(self.ratios, rules.confidence)
        return Timing(
            seconds=tuple(s for block in self.blocks for s in thinned(block.seconds, rules.stamps_kept)),
            blocks=tuple(block.figure for block in self.blocks),
            ratios=tuple(self.ratios),
            interval=interval,
            first_call_s=self.warm.first_call_s,
            build_s=self.runner.build_s,
            noise=noise,
            undecided=self.out_of_time and interval.low < rules.faster <= interval.high,
            bytes_peak=self.warm.bytes_peak,
            items=items,
            calls=sum(len(block.seconds) for block in self.blocks),
            device_s=self.device_s,
        )


def thinned(values: Sequence[float], kept: int) -> Sequence[float]:
    """At most `kept` of `values`, evenly spread."""
    return values[:: math.ceil(len(values) / kept)]
