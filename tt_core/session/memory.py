"""What tuning a cut will hold in memory, estimated for a dry run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import torch
from torch import nn

from tt_core import state, trees
from tt_core.session.run import Run
from tt_core.values import EAGER, Cut, Unit

_RESULTS = 4
"""Results of a recorded call that are held at once, in eager's precision: eager's, float64's (twice as wide), the candidate's."""
_WIDE = 2
"""Float64 copies of a unit's float32 weights, for its truth, are twice as large."""


@attrs.define
class _Seen:
    """Bytes of one unit's calls in a pass: inputs and results of each call, in order."""

    inputs: list[int] = attrs.field(factory=list)
    results: list[int] = attrs.field(factory=list)

    def spy(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """A forward that notes sizes."""

        def noted(*args: Any, **kwargs: Any) -> Any:
            result = forward(*args, **kwargs)
            self.inputs.append(_bytes(trees.tensors((args, kwargs))))
            self.results.append(_bytes(trees.tensors(result)))
            return result

        return noted


def needed(run: Run, cuts: Sequence[Cut], units: Sequence[Unit], snapshot: state.Snapshot) -> list[int]:
    """Bytes that tuning each cut needs beyond the object itself; one pass is run to see sizes, nothing is kept of it.

    Weights once for each candidate (a built may hold a copy until its cut is decided) and once in float64 for the
    largest unit; recorded inputs, at most `settings.record_bytes`; results of the recorded calls.
    """
    wanted = {path for cut in cuts for path in cut.units}
    seen = {unit.path: _Seen() for unit in units if unit.path in wanted and run.wants(unit)}
    spies = [(unit.module, seen[unit.path].spy) for unit in units if unit.path in seen]
    try:
        with torch.no_grad(), state.patched(spies):
            for _ in run.feed.each(run.obj):
                pass
    finally:
        snapshot.restore()
    by_path = {unit.path: unit for unit in units}
    return [_cut(run, [(by_path[path], seen[path]) for path in cut.units if path in seen]) for cut in cuts]


def _cut(run: Run, parts: Sequence[tuple[Unit, _Seen]]) -> int:
    settings = run.options.settings
    kept = settings.samples_per_key
    weights = [(_weights(unit.module), _candidates(run, unit)) for unit, _ in parts]
    inputs = sum(sum(sorted(one.inputs)[-kept:]) for _, one in parts)
    results = sum(sum(sorted(one.results)[-kept:]) for _, one in parts)
    copies = sum(size * count for size, count in weights)
    truth = _WIDE * max((size for size, count in weights if count), default=0)
    return copies + truth + min(inputs, settings.record_bytes) + _RESULTS * results


def _candidates(run: Run, unit: Unit) -> int:
    wanted = run.strategy_for(unit).wanted
    return len([one for one in (run.offered if wanted is None else wanted) if one != EAGER])


def _weights(module: nn.Module) -> int:
    return _bytes([*module.parameters(), *module.buffers()])


def _bytes(tensors: Sequence[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
