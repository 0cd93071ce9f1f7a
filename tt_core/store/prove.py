"""A built that came out of a file, called for the first time: warm afterwards, and compared with eager."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from tt_core import samples, trees
from tt_core.callkey import tensors_of
from tt_core.contain import Caught, attempt
from tt_core.install import Serving
from tt_core.plugins import Plugins
from tt_core.store.synthetic import Unmade
from tt_core.truth import truth_of
from tt_core.values import Built, Call, Calls, Observation, Tolerance, Unit, evolve, frozen

_SEED = 0
_LOOSER = 10.0
"""A restored built was checked against float64 when it was tuned; here eager alone tells another program from it."""


@frozen
class Proof:
    """How a built did on made-up calls.

    Attributes:
        wrong: why it must not be installed; empty where it may.
        note: why it was not compared; empty where it was.
    """

    wrong: str = ""
    note: str = ""


@contextlib.contextmanager
def ambient(calls: Calls) -> Iterator[None]:
    """The autocast state that the calls were recorded under, no gradients, no inference mode."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.no_grad())
        for device, dtype in calls.key.ambient.autocast:
            stack.enter_context(torch.autocast(device, dtype=dtype))
        yield


def proved(  # noqa: PLR0911  each way out is another sentence
    plugins: Plugins, unit: Unit, calls: Calls | Unmade, built: Built, tolerance: Tolerance, *, fresh: bool
) -> Proof:
    """Calls a built on made-up calls and compares it with eager. The caller keeps the object's state.

    Args:
        plugins: whose checks are asked.
        unit: the unit, on its original forward.
        calls: made-up calls.
        built: what is to be installed.
        tolerance: what it was checked with when it was tuned.
        fresh: whether it was built just now, so that nothing but this comparison speaks for it.
    """
    if isinstance(calls, Unmade):
        return Proof(wrong=calls.reason) if fresh else Proof(note=f"not called yet: {calls.reason}")
    if calls.facts.writes_inputs or calls.facts.writes_state:
        return Proof(note="not compared, since it writes to its inputs or state")
    given = [sample.call for sample in calls.samples if _covered(built, unit, sample.call)]
    if not given:
        text = "it covers none of the made-up calls"
        return Proof(wrong=text) if fresh else Proof(note=f"not compared: {text}")
    where = f"first call of {unit.path!r}"
    with ambient(calls):
        expected = attempt(lambda: samples.observe(unit.forward, unit, given, seed=_SEED), where=where)
        if isinstance(expected, Caught):
            text = f"its original forward does not run on made-up inputs ({expected.kind}: {expected.reason})"
            return Proof(wrong=text) if fresh else Proof(note=f"not compared: {text}")
        serving = Serving(built.call, unit.forward)
        actual = attempt(lambda: samples.observe(serving, unit, given, seed=_SEED), where=where)
        if isinstance(actual, Caught):
            return Proof(wrong=f"it does not run ({actual.kind}: {actual.reason})")
        truth: list[Observation | None] = [None] * len(given)
        if fresh:
            truth = [truth_of(unit, call, one) for call, one in zip(given, expected, strict=True)]
    allowed = tolerance if fresh else evolve(tolerance, factor=_LOOSER * tolerance.factor)
    verdicts = plugins.check(calls.facts, expected, actual, truth, allowed)
    no = next((verdict for verdict in verdicts if not verdict.ok), None)
    if no is None:
        return Proof()
    if not fresh and not _finite(expected):
        return Proof(note="not compared: its original forward gives no finite numbers on made-up inputs")
    return Proof(wrong=f"it is not what the original forward computes: {no.reason}")


def _covered(built: Built, unit: Unit, call: Call) -> bool:
    sizes = [tuple(tensor.shape) for tensor in tensors_of(unit.forward, call)]
    return built.covers is None or built.covers.admit(sizes)


def _finite(seen: tuple[Observation, ...]) -> bool:
    floats = [tensor for one in seen for tensor in trees.tensors(one.result) if tensor.is_floating_point()]
    return all(bool(tensor.isfinite().all()) for tensor in floats if tensor.layout is torch.strided)
