"""Results made by hand: what a report has to tell, in every way a run can end."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import attrs
import optree
import pytest
import torch

from tt_core.result import AutoTuneResult
from tt_core.values import (
    EAGER,
    Ambient,
    CallKey,
    Candidate,
    Choice,
    ConstLeaf,
    Cut,
    DepthResult,
    Failure,
    Interval,
    Plan,
    Refusal,
    TensorLeaf,
    Timing,
    Trial,
    Verdict,
)

FAST = Candidate.of("fast")
FROZEN = Candidate.of("fast", freezing=True)
OTHER = Candidate.of("other")
ENVIRONMENT = {"python": "3.11.8", "torch": "2.13.0", "device": "cpu", "threads": "2", "seed": "0"}


def make_key(**constants: Any) -> CallKey:
    """A key with one float32 matrix `x` and the given constants."""
    names = {"x": 0, **constants}
    tensor = TensorLeaf(
        dtype=torch.float32, rank=2, device=torch.device("cpu"), layout=torch.strided, type=torch.Tensor
    )
    leaves = [
        ConstLeaf(type=type(constants[n]), value=constants[n]) if n in constants else tensor for n in sorted(names)
    ]
    return CallKey(tree=optree.tree_structure(names), leaves=tuple(leaves), ambient=Ambient())


KEY = make_key()


def timed(seconds: float, ratio: float = 1.0, *, width: float = 0.02, **fields: Any) -> Timing:
    """A timing whose ratio to the baseline is known to within `width`."""
    interval = Interval(low=ratio * (1 - width), mid=ratio, high=ratio * (1 + width))
    return Timing(seconds=(seconds,) * 3, ratios=(ratio,) * 8, interval=interval, blocks=(seconds,) * 8, **fields)


def trial(unit: str, candidate: Candidate, outcome: Timing | Failure, key: CallKey = KEY) -> Trial:
    """A trial; one that was timed has passed its check."""
    right = Verdict(ok=True, error=3e-7, eager_error=2.5e-7, rel_l2=2e-7, max_abs=1e-6, where="output[0]", compared=1)
    return Trial(
        unit=unit,
        key=key,
        candidate=candidate,
        verdicts=(right,) if isinstance(outcome, Timing) else (),
        outcome=outcome,
    )


def failed(unit: str, candidate: Candidate, stage: str, kind: str, reason: str, **fields: Any) -> Trial:
    """A trial that failed."""
    failure = Failure(stage=stage, candidate=candidate, unit=unit, key=KEY, kind=kind, reason=reason, **fields)
    return trial(unit, candidate, failure)


LAYERS = tuple(f"encoder.layer.{i}" for i in range(12))
OUTER = ("embeddings", *LAYERS, "pooler")


def make_win() -> AutoTuneResult:
    """Depth 1 of three wins; the whole model does not build; depth 2 is slower."""
    trials = [
        failed("", FAST, "build", "RuntimeError", "cannot trace a dict of strings"),
        failed(
            "", OTHER, "build", "BuildRefusedError", "the root returns a string", hint="tune what is below: min_depth=1"
        ),
    ]
    trials += [
        trial("embeddings", EAGER, timed(2e-4)),
        trial("embeddings", FAST, timed(2.02e-4, 1.01, noise=0.04, undecided=True)),
        trial("embeddings", OTHER, timed(4e-4, 2.0)),
    ]
    for i, layer in enumerate(LAYERS):
        fast = timed(4e-4 + i * 1e-6, 0.72 + i * 0.002, build_s=1.2, first_call_s=0.1)
        trials += [
            trial(layer, EAGER, timed(5.6e-4)),
            trial(layer, FAST, fast),
            trial(layer, FROZEN, timed(4.2e-4, 0.74)),
            trial(layer, OTHER, timed(5.7e-4, 1.02)),
        ]
    trials += [
        trial("pooler", FAST, timed(1e-4, 0.5, build_s=0.8)),
        failed("pooler", OTHER, "check", "verdict", "relative L2 0.31 at output[0][4,17], float32 allows 1e-6"),
    ]
    choices = (
        Choice(unit="embeddings", key=KEY, candidate=EAGER, why="the best candidate runs at 0.99x eager; eager stays"),
        *(Choice(unit=layer, key=KEY, candidate=FAST, why="1.39x eager") for layer in LAYERS),
        Choice(unit="pooler", key=KEY, candidate=FAST, why="2.00x eager"),
    )
    first = DepthResult(
        cut=Cut(depths=(0,), units=("",)), wrapped=1, failed=1, error="every candidate failed on every unit"
    )
    won = DepthResult(
        cut=Cut(depths=(1,), units=OUTER),
        wrapped=14,
        tuned=13,
        timing=timed(5.8e-3, 0.467),
        sample_s=(2.7e-3, 2.8e-3),
        choices=choices,
    )
    deep = DepthResult(
        cut=Cut(depths=(2, 3), units=("embeddings.word", *(f"{n}.attention" for n in LAYERS))),
        wrapped=13,
        tuned=1,
        timing=timed(1.4e-2, 1.1),
        sample_s=(6e-3, 7e-3),
        error="slower than depth 1",
    )
    return AutoTuneResult(
        model=None,
        headline="Tuned at depth 1: 2.14x as fast as before, 13 of 14 modules run on a faster backend.",
        untuned=timed(1.24e-2),
        untuned_sample_s=(5.9e-3, 6.1e-3),
        depths=(first, won, deep),
        selected=won,
        plan=Plan(cut=won.cut, choices=choices),
        trials=tuple(trials),
        refused=(
            Refusal(
                name="third", stage="missing", reason="third is not installed", hint='pip install "tt-core[third]"'
            ),
            Refusal(
                name="eight_bit",
                stage="fidelity",
                reason="changes the precision (lossy)",
                hint="ask for it by name: backends=['eight_bit', ...]",
            ),
        ),
        seconds=93.2,
        notes=(
            "32 of 256 samples were kept; extremes of shape were preferred",
            "one shape was seen: other shapes run eager. Give samples of other sizes to cover them",
        ),
        units={
            "": "BertModel",
            "embeddings": "BertEmbeddings",
            **dict.fromkeys(LAYERS, "BertLayer"),
            "pooler": "BertPooler",
        },
        environment=ENVIRONMENT,
    )


def make_lost() -> AutoTuneResult:
    """Everything was measured, nothing beat eager."""
    slow = [trial("", FAST, timed(2.1e-3, 1.05, noise=0.14, undecided=True)), trial("", OTHER, timed(6e-3, 3.0))]
    choice = Choice(unit="", key=KEY, candidate=EAGER, why="undecided: noise of 14% hides a difference; eager stays")
    depth = DepthResult(
        cut=Cut(depths=(0, 1), units=("",)), wrapped=1, timing=None, error="no unit was tuned", choices=(choice,)
    )
    return AutoTuneResult(
        model=None,
        headline="Nothing was changed: no backend was faster than eager on any module.",
        depths=(depth,),
        trials=tuple(slow),
        units={"": "LSTM"},
        seconds=4.0,
        environment=ENVIRONMENT,
    )


def make_broken() -> AutoTuneResult:
    """Every candidate failed everywhere."""
    trials = [
        failed("", FAST, "build", "KeyError", "'[/x] [bold]no[/bold]'"),
        failed("", OTHER, "race", "ValueError", "seconds are not finite"),
        failed(
            "",
            FROZEN,
            "limit",
            "timeout",
            "the build took 700 s, the limit is 600 s",
            hint="raise settings.build_timeout",
        ),
    ]
    depth = DepthResult(
        cut=Cut(depths=(0,), units=("",)), wrapped=1, failed=1, error="every candidate failed on every unit"
    )
    return AutoTuneResult(
        model=None,
        headline="Nothing was changed: every candidate failed on every module.",
        depths=(depth,),
        trials=tuple(trials),
        units={"": "Odd"},
        seconds=12.0,
        environment=ENVIRONMENT,
    )


def make_dry() -> AutoTuneResult:
    """A dry run."""
    depths = (
        DepthResult(cut=Cut(depths=(0,), units=("",)), wrapped=1, bytes_needed=1 << 20),
        DepthResult(cut=Cut(depths=(1,), units=OUTER), wrapped=14, bytes_needed=18 << 20),
        DepthResult(
            cut=Cut(depths=(2, 3), units=tuple(f"{n}.{part}" for n in LAYERS for part in ("attention", "output"))),
            wrapped=24,
            bytes_needed=None,
        ),
    )
    return AutoTuneResult(
        model=None,
        headline="Dry run: nothing was built or changed.",
        depths=depths,
        units={**dict.fromkeys(LAYERS, "BertLayer"), "": "BertModel"},
        seconds=0.4,
        dry_run=True,
        environment=ENVIRONMENT,
    )


def make_late() -> AutoTuneResult:
    """The budget ended after the first depth."""
    late = DepthResult(cut=Cut(depths=(2,), units=LAYERS), wrapped=12, error="time budget used up")
    win = make_win()
    return attrs.evolve(win, depths=(*win.depths[:2], late), notes=(), refused=())


MAKERS = {"win": make_win, "lost": make_lost, "broken": make_broken, "dry": make_dry, "late": make_late}


@pytest.fixture
def make() -> SimpleNamespace:
    """The parts that results are made of, for tests that need one of their own."""
    return SimpleNamespace(
        key=make_key, timed=timed, trial=trial, failed=failed, fast=FAST, frozen=FROZEN, other=OTHER, one=make_one
    )


def make_one(trials: Sequence[Trial], choices: Sequence[Choice] = (), **fields: Any) -> AutoTuneResult:
    """A result of one measured depth with the units of `trials`."""
    units = tuple(dict.fromkeys(trial.unit for trial in trials))
    depth = DepthResult(cut=Cut(depths=(0,), units=units), wrapped=len(units), choices=tuple(choices))
    kinds = dict.fromkeys(units, "Linear")
    return AutoTuneResult(
        **{"model": None, "headline": "One.", "depths": (depth,), "trials": tuple(trials), "units": kinds, **fields}
    )


@pytest.fixture(params=sorted(MAKERS))
def any_result(request: pytest.FixtureRequest) -> AutoTuneResult:
    return MAKERS[request.param]()


@pytest.fixture
def win() -> AutoTuneResult:
    return make_win()


@pytest.fixture
def lost() -> AutoTuneResult:
    return make_lost()


@pytest.fixture
def broken() -> AutoTuneResult:
    return make_broken()


@pytest.fixture
def dry() -> AutoTuneResult:
    return make_dry()


@pytest.fixture
def late() -> AutoTuneResult:
    return make_late()
