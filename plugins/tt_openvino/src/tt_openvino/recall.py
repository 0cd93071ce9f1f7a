"""Units that were built before: found again by their code, settings, weights and calls, without being exported anew.

An export is most of what is left of a build whose model is in the cache. What was found is run on every recorded call beside
the unit itself before it is used; where it is off, it is forgotten and the unit is exported.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

import tt_core as tt
from tt_core.check import whole
from tt_openvino.cache import Cache
from tt_openvino.convert import Compiled, Sizes, loaded
from tt_openvino.forms import program_form, read_program
from tt_openvino.options import Settings
from tt_openvino.probe import installed
from tt_openvino.run import Runner

_FORMAT = 1
_GRID = 1 << 12
"""Combinations of sizes that are tried to see whether ranges say all that the programs assume."""
_NOISE = {"f32": 1e-6, "f16": 1e-3, "bf16": 1e-2}
"""How far results may be off by the precision alone, relative L2: what is found here is another program or none of it."""
_STRANGE = (KeyError, TypeError, ValueError, AttributeError, OverflowError, tt.BuildRefusedError)


class Recall:
    """What the cache knows of one unit and its calls.

    Args:
        unit: the unit.
        flat: the same as a function of tensors.
        calls: the recorded calls.
        tensors: of the unit, by name.
        settings: how models are compiled.
        cache: where it is kept.
        weights: `weights_print` of `tensors`; empty where nothing is cached.
    """

    def __init__(
        self,
        unit: tt.Unit,
        flat: tt.Flat,
        calls: tt.Calls,
        tensors: Mapping[str, torch.Tensor],
        settings: Settings,
        cache: Cache,
        weights: str,
    ) -> None:
        self._flat, self._calls, self._tensors, self._settings, self._cache = flat, calls, tensors, settings, cache
        self._name = self._named(unit, weights) if cache.used else ""

    def programs(self) -> list[Compiled]:
        """The programs of the unit, compiled; none where it is not known, or not all of it is there."""
        said = self._cache.recall(self._name) if self._name else None
        try:
            found = [self._compiled(entry) for entry in said["programs"]] if said else []
        except _STRANGE:
            found = [None]
        if None in found:
            self.forget()
            return []
        return [each for each in found if each is not None]

    def right(self, runner: Runner) -> bool:
        """Whether programs give on every recorded call what the unit gave, as far as rounding goes.

        The largest call comes first: OpenVINO chooses its kernels for the call that is.
        """
        samples = sorted(self._calls.samples, key=lambda sample: -tt.flat.elements(self._flat.sizes(sample)))
        noise = max(_NOISE[program.program.precision] for program in runner.programs)
        try:
            pairs = [self._pair(runner, sample) for sample in samples]
        except RuntimeError:
            return False
        served = [pair for pair in pairs if pair is not None]
        return whole([want for want, _ in served], [got for _, got in served], tt.Tolerance(), noise).ok

    def keep(self, programs: Sequence[Compiled], covers: tt.Shapes) -> None:
        """Notes which programs the unit has, where ranges say when each is right."""
        each = [(program.fits, program.program.traces) for program in programs]
        if self._name and all(program.entry for program in programs) and tt.flat.ranges_say(covers, each, _GRID):
            entries = [self._said(program) for program in programs]
            self._cache.note_down(self._name, {"programs": entries})

    def forget(self) -> None:
        """The unit is exported next time."""
        self._cache.forget(self._name)

    def _named(self, unit: tt.Unit, weights: str) -> str:
        """A name for all that decides the programs; empty where not all of it can be told."""
        code = tt.flat.code_print(unit.module)
        if not code:
            return ""
        from tt_openvino import __version__

        settings, calls = self._settings, self._calls
        sizes = [self._flat.sizes(sample) for sample in calls.samples]
        around = (settings.target, settings.lower, calls.key.ambient, calls.key.leaves, calls.shapes)
        parts = (_FORMAT, __version__, installed(), code, weights, around, sizes, self._flat.inputs, self._flat.outputs)
        return hashlib.sha256(repr(parts).encode("utf-8", "surrogatepass")).hexdigest()[:40]

    def _said(self, program: Compiled) -> dict[str, Any]:
        """A program, its model's entry, and the sizes of its results for the recorded calls."""
        given = [(self._flat.sizes(sample), self._flat.tensors(sample)) for sample in self._calls.samples]
        known = [(sizes, program.result_sizes(sizes, tensors)) for sizes, tensors in given if program.fits(sizes)]
        return {"entry": program.entry, "known": known, **program_form(program.program)}

    def _compiled(self, entry: Mapping[str, Any]) -> Compiled | None:
        model = self._cache.find(str(entry["entry"]), self._tensors)
        if model is None:
            return None
        program = read_program(entry)
        known = {_sizes(given): _sizes(results) for given, results in entry["known"]}

        def fits(sizes: Sizes) -> bool:
            return any(trace.admit(sizes) for trace in program.traces)

        made = loaded(program, model, self._tensors, self._settings, fits)
        return replace(
            made,
            entry=str(entry["entry"]),
            result_sizes=lambda sizes, tensors: known.get(sizes) or made.result_sizes(sizes, tensors),
        )

    def _pair(self, runner: Runner, sample: tt.Sample) -> tuple[Any, Any] | None:
        """What the unit gave on a call, and what the programs give; None where none of them serves it."""
        inputs = self._flat.example(sample)
        plan = runner.find(self._flat.sizes(sample), inputs)
        if plan is None or (plan.limits and not plan.admits(inputs)):
            return None
        got = self._flat.unpack(plan.run(inputs), inputs)
        return sample.expected.result, got


def _sizes(form: Any) -> Sizes:
    return tuple(tuple(int(size) for size in leaf) for leaf in form)
