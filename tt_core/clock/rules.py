"""The rules of a race: how long, how sure, and when to look."""

from __future__ import annotations

from tt_core.values import evolve, valued

LOOKS = tuple(sorted(first << doubled for first in (8, 12) for doubled in range(6)))
"""8, 12, 16, 24, 32, 48 … 384: looking after every round would find differences that are not there."""


@valued
class Rules:
    """What every race of one kind agrees on before it starts.

    Attributes:
        block_s: about how long the timed calls of a block take together, seconds.
        least_calls: timed calls of a block, at least.
        most_calls: timed calls of a block, at most.
        stamps_kept: latencies of a block that are kept raw, at most; more are thinned evenly.
        looks: the rounds after which the race is looked at, rising; it ends after the last one. Under 8 rounds no
            99 % interval exists.
        cap_s: a runner leaves once its calls took this many seconds (and the first look has passed).
        patience: while nobody has won, whoever is ahead by more than the tie tolerance on the best guess goes on to this
            many times `cap_s`: noise hides a difference longer, not for ever.
        confidence: of the intervals.
        won_before: whether an earlier race was won: at a look, being ahead by more than the tie tolerance on the best
            guess is a win then, since two races say so.
        tie_tolerance: a difference of this share or less is none.
        hopeless: a runner over its cap leaves before the first look when it never was under this many times the
            baseline's time.
        settle_s: where two thread pools meet, this many seconds of calls are discarded at the start of a block: the
            pool that ran last keeps its threads spinning for a while (docs/measuring.md has the figures).
        long_call_s: calls above it get at least two discarded calls where two thread pools meet.
        long_pass_s: passes above it are timed one a block, not `least_calls`.
        seed: of the private generator that shuffles the order.
    """

    block_s: float = 0.010
    least_calls: int = 3
    most_calls: int = 1000
    stamps_kept: int = 100
    looks: tuple[int, ...] = LOOKS
    cap_s: float = 1.5
    patience: float = 4.0
    confidence: float = 0.99
    won_before: bool = False
    tie_tolerance: float = 0.02
    hopeless: float = 20.0
    settle_s: float = 0.010
    long_call_s: float = 0.001
    long_pass_s: float = 0.050
    seed: int = 0

    @property
    def faster(self) -> float:
        """A ratio to the baseline counts as faster only below this."""
        return 1.0 / (1.0 + self.tie_tolerance)

    def seeded(self, seed: int) -> Rules:
        """The same rules with another order of the runners."""
        return evolve(self, seed=seed)


UNIT = Rules()
"""Races between candidates for one unit."""
PASSES = Rules(cap_s=20.0, patience=1.0)
"""End-to-end races between cuts."""
