"""A contract class for each wrong backend, with the promises that have to notice, and no other test.

`test_contract_wrong.py` runs this file in a process of its own, where every test must fail; those of `TestRight` must not.
"""

from __future__ import annotations

import contextlib
import copy
import os
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from torch import nn

import tt_core as tt
from tt_core import trees
from tt_core.testing import WRONG, BackendContract
from tt_core.testing.ladder import AXES, ROWS
from tt_core.testing.wrong import to_backend

sys.path.insert(0, str(Path(__file__).parent / "modules"))
CAUGHT: dict[str, set[str]] = {}
"""The promises that a plugin breaks, by the name of its class."""
PROMISES = [name for name in dir(BackendContract) if name.startswith("test_")]


def contract(name: str, plugin: Any, *caught: str, **fields: Any) -> None:
    """A contract class of a plugin with the promises that it breaks; the others are switched off."""
    title = f"Test{name.title().replace('_', '')}"
    CAUGHT[title] = set(caught)
    off = {other: None for other in PROMISES if other not in caught}
    globals()[title] = type(title, (BackendContract,), {"rungs": (ROWS,), "plugin": given(plugin), **off, **fields})


def given(plugin: Any) -> Any:
    return pytest.fixture(lambda self: plugin)


class Right:
    """A right plugin; subclasses, and other fields of the declaration and of the built, break one thing."""

    def __init__(self, built=None, **fields):
        self.built, self.fields = built or {}, fields
        self.__name__ = type(self).__name__.lower()

    @tt.hookimpl
    def tt_backends(self):
        usual = {"name": "fake", "devices": {"*"}, "fidelity": tt.Fidelity.EXACT, "keeps": frozenset(tt.Keeps)}
        return tt.Backend(**(usual | self.fields))

    @tt.hookimpl
    def tt_build(self, unit, calls):
        usual = {"weights": tt.Weights.LIVE, "covers": calls.shapes}
        return tt.Built(call=self.call(unit, calls), **(usual | self.built))

    def call(self, unit, calls):
        return unit.forward


RESULTS = {"test_results_are_eagers"}
SPOKEN = {
    "stale": {"test_written_weights_are_seen", "test_changes_show"},
    "input_written": RESULTS,
    "overwritten": {*RESULTS, "test_results_are_kept", "test_concurrent"},
    "unequal_axes": {"test_covers_no_more_than_recorded", "test_sizes_outside"},
}
for _name in WRONG:
    _rungs = (AXES,) if _name == "unequal_axes" else (ROWS,)
    contract(f"wrong_{_name}", to_backend(WRONG[_name]), *SPOKEN.get(_name, RESULTS), rungs=_rungs)


class Packed(Right):
    """Takes the tensors of a call too, `step` by `step`."""

    step = 1

    @tt.hookimpl
    def tt_build(self, unit, calls):
        made = super().tt_build(unit, calls)
        return attrs.evolve(made, packed=lambda given: made.call(*given[:: self.step]))


class Overlapped(Packed):
    """Asks what it was given meanwhile."""

    def overlapped(self, packed, meanwhile, given):
        meanwhile()
        return packed(given)

    @tt.hookimpl
    def tt_build(self, unit, calls):
        made = super().tt_build(unit, calls)
        return attrs.evolve(made, overlapped=partial(self.overlapped, made.packed))


class TestRight(BackendContract):
    """All promises hold for the plugin that the others are made from."""

    rungs = (ROWS, AXES)
    plugin = given(Overlapped())


class Backwards(Packed):
    step = -1


contract("packed_in_another_order", Backwards(), "test_packed_is_call", "test_serves_as_installed", rungs=(AXES,))


class AsksNothing(Overlapped):
    def overlapped(self, packed, meanwhile, given):
        return packed(given)


class AsksTwice(Overlapped):
    def overlapped(self, packed, meanwhile, given):
        meanwhile()
        return super().overlapped(packed, meanwhile, given)


class Swallows(Overlapped):
    def overlapped(self, packed, meanwhile, given):
        with contextlib.suppress(ZeroDivisionError):
            meanwhile()
        return packed(given)


for _name, _kind in {"asks_nothing": AsksNothing, "asks_twice": AsksTwice, "swallows_an_error": Swallows}.items():
    contract(f"meanwhile_{_name}", _kind(), "test_overlapped_is_call")


class Approximate(Right):
    def call(self, unit, calls):
        return lambda *a, **k: trees.mapped(
            lambda t: t * (1 + 1e-7) if t.is_floating_point() else t, unit.forward(*a, **k)
        )


contract("not_exact", Approximate(), "test_exact_is_exact")


class Positional(Right):
    def call(self, unit, calls):
        return lambda *args: unit.forward(*args)  # noqa: PLW0108  no keywords


contract("positional_only", Positional(), "test_every_spelling")


class Graded(Right):
    def call(self, unit, calls):
        def run(*args, **kwargs):
            with torch.inference_mode(False), torch.enable_grad():
                return unit.forward(*trees.mapped(torch.clone, args), **trees.mapped(torch.clone, kwargs))

        return run


contract("gradients_wanted", Graded(), "test_modes")


class Strided(Right):
    def call(self, unit, calls):
        return lambda x, *rest: unit.forward(x.as_strided(x.shape, torch.empty(x.shape).stride()), *rest)


contract("strides_ignored", Strided(), "test_strides")


class Cached(Right):
    """One result for each value of the inputs, handed out again."""

    def call(self, unit, calls):
        known: dict[Any, Any] = {}

        def run(*args, **kwargs):
            place = tuple(t.sum().item() for t in trees.tensors((args, kwargs)))
            return known.setdefault(place, unit.forward(*args, **kwargs))

        return run


contract("results_reused", Cached(), "test_results_are_the_callers")


class Narrow(Right):
    """Covers one size where three were recorded."""

    @tt.hookimpl
    def tt_build(self, unit, calls):
        sizes = tuple(tuple(s.hi if isinstance(s, tt.Axis) else s for s in leaf) for leaf in calls.shapes.leaves)
        return tt.Built(call=unit.forward, weights=tt.Weights.LIVE, covers=tt.Shapes(leaves=sizes))


contract("covers_too_little", Narrow(), "test_covers_the_recorded", "test_serves_as_installed")


class Between(Right):
    """Right at the recorded batches, wrong between them."""

    def call(self, unit, calls):
        known = {len(s.call.args[0]) for s in calls.samples}
        return lambda x, *rest: trees.mapped(lambda t: t if len(x) in known else t * 2, unit.forward(x, *rest))


contract("wrong_between", Between(), "test_sizes_between", rungs=(ROWS, AXES))


class Everywhere(Right):
    """Claims every size, and pads the odd ones."""

    def call(self, unit, calls):
        return lambda x, *rest: unit.forward(x if len(x) < 6 else x[:6], *(y[:6] for y in rest))


contract("covers_everything", Everywhere({"covers": None}), "test_sizes_outside")


class Forgets(Right):
    """Declares to keep everything, and works on copies of its inputs and of the module."""

    def call(self, unit, calls):
        def run(*args, **kwargs):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(5)
                args, kwargs = trees.replica((args, kwargs))
                result = copy.deepcopy(unit.module).forward(*args, **kwargs)
            return (
                {k: v if isinstance(v, torch.Tensor) else str(v) for k, v in result.items()}
                if isinstance(result, dict)
                else result
            )

        return run


contract(
    "keeps_nothing",
    Forgets(),
    *(f"test_keeps_{keep}" for keep in ("input_writes", "state_writes", "aliases", "random", "non_tensors")),
)


class Baked(Right):
    """Claims STORAGE and runs a copy."""

    def call(self, unit, calls):
        return copy.deepcopy(unit.module).forward


contract("baked_as_storage", Baked({"weights": tt.Weights.STORAGE}), "test_written_weights_are_seen")


class Unwatched(Right):
    """Follows the weights, and nothing else of the module, though it claims LIVE."""

    def call(self, unit, calls):
        clone = copy.deepcopy(unit.module)

        def run(*args, **kwargs):
            return torch.func.functional_call(clone, dict(unit.module.state_dict(keep_vars=True)), args, kwargs)

        return run


contract("settings_unseen", Unwatched(), "test_settings_show")


class Rebinds(Right):
    @tt.hookimpl
    def tt_rebind(self, built, unit):
        return built


contract("rebinds_to_the_old", Rebinds(), "test_rebind")


class Racy(Right):
    """One slot for the arguments of all threads."""

    def call(self, unit, calls):
        slot: dict[str, Any] = {}

        def run(*args, **kwargs):
            slot["now"] = args, kwargs
            time.sleep(1e-4)
            args, kwargs = slot["now"]
            return unit.forward(*args, **kwargs)

        return run


contract("not_concurrent", Racy(), "test_concurrent")


class Forked(Right):
    def call(self, unit, calls):
        owner = os.getpid()

        def run(*args, **kwargs):
            if os.getpid() != owner:
                os.abort()
            return unit.forward(*args, **kwargs)

        return run


contract("dies_in_a_child", Forked(), "test_fork")


class Crashes(Right):
    @tt.hookimpl
    def tt_build(self, unit):
        raise KeyError("no kernel")


contract("raises_anything", Crashes(), "test_builds_or_refuses")


class Answers(Right):
    @tt.hookimpl
    def tt_build(self, unit):
        return unit.forward


contract("answers_a_function", Answers(), "test_builds_or_refuses")


class Rambles(Right):
    @tt.hookimpl
    def tt_build(self, unit):
        raise tt.BuildRefusedError("Traceback (most recent call last):\n  File ...\nValueError: no")


contract("refuses_in_lines", Rambles(), "test_refusals_are_sentences")


HELD: list[Any] = []


class Holds(Right):
    """Never lets a unit go."""

    def call(self, unit, calls):
        HELD.append(unit)
        return unit.forward


contract("never_lets_go", Holds(), "test_close_gives_everything_back")


class Workers(Right):
    """Leaves a thread behind for every build."""

    def call(self, unit, calls):
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        return unit.forward


contract("leaves_threads", Workers(), "test_close_gives_everything_back")


class Meddles(Right):
    """Changes the process in each build."""

    def call(self, unit, calls):
        torch.set_float32_matmul_precision("medium" if torch.get_float32_matmul_precision() == "highest" else "highest")
        os.environ["FAKE_THREADS"] = os.environ.get("FAKE_THREADS", "") + "1"
        return unit.forward


contract("meddles_in_builds", Meddles(), "test_build_leaves_the_process")


class Draws(Right):
    """Draws a random number in each call."""

    def call(self, unit, calls):
        def run(*args, **kwargs):
            torch.rand(1)
            return unit.forward(*args, **kwargs)

        return run


contract("draws_in_calls", Draws(), "test_calls_leave_the_process", "test_keeps_random")


class Prints(Right):
    def call(self, unit, calls):
        print("compiling")
        return unit.forward


contract("prints", Prints(), "test_build_prints_nothing")


class Fuses(Right):
    """Changes the module that it was given."""

    def call(self, unit, calls):
        for module in unit.module.modules():
            if isinstance(module, nn.Linear):
                module.weight = nn.Parameter(module.weight.detach().clone())
                module.fused = True
        return unit.forward


contract("changes_the_module", Fuses(), "test_module_is_left_as_found")


class Scribbles(Right):
    """Runs the recorded calls themselves in place."""

    def call(self, unit, calls):
        for sample in calls.samples:
            sample.call.args[0].add_(1)
        return unit.forward


contract("writes_samples", Scribbles(), "test_recorded_calls_are_not_written")


class Dumps(Right):
    """Writes a pickle where it declares data, and reads other numbers than it wrote."""

    @tt.hookimpl
    def tt_dump(self, built, folder):
        import pickle

        (folder / "state").write_bytes(pickle.dumps({"made in": str(folder)}))
        return {"file": "state"}

    @tt.hookimpl
    def tt_restore(self, unit):
        return tt.Built(call=lambda *a, **k: unit.forward(*a, **k) * 2, weights=tt.Weights.LIVE)


contract("dumps_a_pickle", Dumps(payload=tt.Payload.DATA), "test_restored_is_as_built", "test_files_hold_what_they_may")


class HalfDump(Right):
    @tt.hookimpl
    def tt_dump(self, built):
        return {"not JSON": built}

    tt_restore = None


contract(
    "dumps_objects", HalfDump(payload=tt.Payload.DATA), "test_restored_is_as_built", "test_files_hold_what_they_may"
)


contract(
    "no_dump_hooks",
    Right(payload=tt.Payload.CODE),
    "test_payload_has_hooks",
    "test_restored_is_as_built",
    "test_files_hold_what_they_may",
)


class Defaults(Right):
    @tt.hookimpl
    def tt_probe(self, device=None):
        return tt.Unavailable(reason="no\nluck") if device is None else None


contract("default_arguments", Defaults(), "test_hooks_have_no_defaults")


class Nonsense(Right):
    @tt.hookimpl
    def tt_probe(self):
        torch.set_num_threads(1 + torch.get_num_threads() % 2)
        return "yes"


contract(
    "probe_answers_nonsense",
    Nonsense(),
    "test_probe_answers",
    "test_probe_leaves_the_process",
)


contract("speaks_api_99", Right(api=99), "test_loads")


contract("takes_a_name", Right(name="eager"), "test_loads")


class Misspelt(Right):
    @tt.hookimpl
    def tt_biuld(self, unit):
        return unit


contract("misspells_a_hook", Misspelt(), "test_loads")


def _heavy():
    import tt_heavy

    return tt_heavy


contract("heavy_import", _heavy(), "test_imports_nothing_heavy", "test_probe_is_quick")
