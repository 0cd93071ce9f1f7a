"""The rarer options of a tuning run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from tt_core.errors import UsageError


def _positive(_: object, attribute: Any, value: float) -> None:
    if not value > 0:
        raise UsageError(f"Settings({attribute.name}={value!r}): a number above 0 is needed")


def _one_of(*words: str) -> Callable[[object, Any, str], None]:
    def check(_: object, attribute: Any, value: str) -> None:
        if value not in words:
            raise UsageError(f"Settings({attribute.name}={value!r}): one of {', '.join(map(repr, words))} is needed")

    return check


@attrs.frozen(kw_only=True)
class Settings:
    """Rarer options of `auto_tune` and `tune`.

    Attributes:
        unit_race_s: seconds of calls per candidate after which a race of one unit ends (8 rounds at least).
        pass_race_s: seconds of passes after which an end-to-end race ends.
        record_bytes: how many bytes of recorded inputs are held at once.
        samples_per_key: recorded calls kept for each unit and call key, the smallest and the largest among them.
        build_timeout: seconds that one build may take. A build in a process of its own is stopped there; in-process
            builds cannot be stopped: an overrun is noticed at the end and costs the candidate.
        build_bytes: bytes that one build may hold; None: no limit.
        expected_calls: how often the tuned object will be called; the score is then build + first call + calls
            instead of the latency alone. None: latency alone.
        saveable: prefer builts that can be written to a file and loaded without compiling, also where others build
            faster; backends that have but one kind of built ignore it.
        cache: what becomes of plans that earlier runs of `auto_tune` found for the same object, sample shapes, candidates,
            arguments, versions and device. "use": such a plan is built, checked and raced again, and installed without a
            search if it still beats the untuned object; "refresh": searches, and remembers what it finds; "off": neither.
            Plans are kept in the folder of `TT_CACHE_DIR`, else in the user's cache folder; `TT_CACHE_DIR=` switches it off.
        seed: seeds recorded runs of random units and the order of races.
        plugins: plugin modules or objects that are not installed as packages.
    """

    unit_race_s: float = attrs.field(default=1.5, validator=_positive)
    pass_race_s: float = attrs.field(default=20.0, validator=_positive)
    record_bytes: int = attrs.field(default=2 << 30, validator=_positive)
    samples_per_key: int = attrs.field(default=4, validator=_positive)
    build_timeout: float = attrs.field(default=600.0, validator=_positive)
    build_bytes: int | None = None
    expected_calls: float | None = attrs.field(default=None, validator=attrs.validators.optional(_positive))
    saveable: bool = False
    cache: str = attrs.field(default="use", validator=_one_of("use", "refresh", "off"))
    seed: int = 0
    plugins: tuple[object, ...] = attrs.field(default=(), converter=tuple)
