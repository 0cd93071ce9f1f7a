"""What one tuning run found: depths, the selected cut, every trial, and why."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from tt_core.values import Cut, DepthResult, Plan, Refusal, Timing, Trial, frozen, valued


@valued
class Progress:
    """One step of a tuning run, as a `progress=` callable receives it.

    Attributes:
        stage: "inspect", "record", "build", "check", "race", "install", "passes", "done".
        depth: the depth in work, None outside of one.
        unit: path of the unit in work.
        candidate: the candidate in work.
        done: units finished, of `total`.
        elapsed_s: seconds since the run began.
        note: a sentence for people, often empty.
    """

    stage: str
    depth: int | None = None
    unit: str | None = None
    candidate: str = ""
    done: int = 0
    total: int = 0
    elapsed_s: float = 0.0
    note: str = ""


@frozen
class AutoTuneResult:
    """What `auto_tune` and `tune` return; `print(result)` shows the table.

    Attributes:
        model: the user's object, tuned in place or as it was.
        headline: one sentence: what was installed, or why nothing was.
        untuned: end-to-end passes of the untuned object; None when nothing was measured.
        untuned_sample_s: lowest latency of each sample in any race, seconds.
        depths: one entry for each distinct cut, shallowest first.
        selected: the entry that is installed, None when the object is as before.
        plan: what is installed, to be committed or tried again; it says eager where the object is as before. None for a
            dry run and a run that broke off.
        trials: every candidate on every unit and key.
        refused: plugins and backends that did not take part, each with its sentence.
        seconds: how long the run took.
        notes: sentences for people: samples left out, noise, shapes that run eager.
        units: path -> class name of every unit that was tuned or tried.
        environment: versions and machine facts, without names of hosts, users or folders.
        dry_run: whether nothing was built.
    """

    model: Any
    headline: str
    untuned: Timing | None = None
    untuned_sample_s: tuple[float, ...] = ()
    depths: tuple[DepthResult, ...] = ()
    selected: DepthResult | None = None
    plan: Plan | None = None
    trials: tuple[Trial, ...] = ()
    refused: tuple[Refusal, ...] = ()
    seconds: float = 0.0
    notes: tuple[str, ...] = ()
    units: Mapping[str, str] = attrs.field(factory=dict)
    environment: Mapping[str, str] = attrs.field(factory=dict)
    dry_run: bool = False

    @property
    def changed(self) -> bool:
        """Whether at least one unit of the object runs something other than its original forward."""
        return self.plan is not None and any(choice.candidate.name != "eager" for choice in self.plan.choices)

    @property
    def speedup(self) -> float:
        """The deciding ratio, time(untuned) / time(selected) end to end; 1.0 when nothing is installed."""
        return 1.0 if self.selected is None or self.selected.timing is None else self.selected.timing.speedup

    def __str__(self) -> str:
        """The table as plain text, at most 80 columns wide; rich on a terminal through `report.show`."""
        from tt_core.report import text

        return text(self)

    def _repr_html_(self) -> str:
        """The table for notebooks."""
        from tt_core.report import html

        return html(self)

    def to_json(self) -> dict[str, Any]:
        """Everything but the model as plain JSON values: no host, user or folder names."""
        from tt_core.report import to_json

        return to_json(self)


Listener = Callable[[Progress], None]
"""A `progress=` callable."""
__all__ = ["AutoTuneResult", "Cut", "Listener", "Progress"]
