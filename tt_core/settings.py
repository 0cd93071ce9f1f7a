"""The rarer options of a tuning run."""

from __future__ import annotations

from typing import Any

import attrs

from tt_core.errors import UsageError


def _positive(_: object, attribute: Any, value: float) -> None:
    if not value > 0:
        raise UsageError(f"Settings({attribute.name}={value!r}): a number above 0 is needed")


@attrs.frozen(kw_only=True)
class Settings:
    """Rarer options of `auto_tune` and `tune`.

    Attributes:
        unit_race_s: seconds of calls per candidate after which a race of one unit ends (8 rounds at least).
        pass_race_s: seconds of passes after which an end-to-end race ends.
        record_bytes: how many bytes of recorded inputs are held at once.
        samples_per_key: recorded calls kept for each unit and call key, the smallest and the largest among them.
        build_timeout: seconds that one build may take. In-process builds cannot be stopped: an overrun is noticed at
            the end and costs the candidate.
        build_bytes: bytes that one build may hold; None: no limit.
        expected_calls: how often the tuned object will be called; the score is then build + first call + calls
            instead of the latency alone. None: latency alone.
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
    seed: int = 0
    plugins: tuple[object, ...] = attrs.field(default=(), converter=tuple)
