"""Promises about all that is not the backend's: the module, the recorded calls, the process."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from typing import Any

import torch

from tt_core import state, trees
from tt_core.testing.contract.base import Base
from tt_core.testing.contract.portrait import Portrait, Process
from tt_core.testing.contract.shop import Made, Shop, calm
from tt_core.testing.ladder import Rung


class Surroundings(Base):
    """What is left as it was found."""

    def test_module_is_left_as_found(self, shop: Shop, rung: Rung) -> None:
        """A build leaves the module as it was: the very objects, their values, its flags, hooks and attributes."""
        made = shop.need(rung)
        assert not made.module, f"the build changed the module: {'; '.join(made.module)}"

    def test_recorded_calls_are_not_written(self, shop: Shop, rung: Rung) -> None:
        """A build writes nothing into the recorded calls."""
        made = shop.need(rung)
        assert not made.samples

    def test_build_leaves_the_process(self, shop: Shop, rung: Rung) -> None:
        """A build changes nothing global: modes, dtypes, threads, random numbers, warning filters, logging, variables."""
        made = shop.need(rung)
        assert not made.process, f"the build changed {', '.join(made.process)}"

    def test_build_prints_nothing(self, shop: Shop, rung: Rung) -> None:
        """A build prints nothing: what it has to say is in the notes, or in the refusal."""
        made = shop.need(rung)
        assert not made.printed

    def test_calls_leave_the_process(self, shop: Shop, rung: Rung) -> None:
        """A call changes nothing global, and nothing in the module, that eager's call does not change; it prints nothing."""
        made = shop.need(rung)
        text = io.StringIO()
        with contextlib.redirect_stdout(text):
            expected, left = (_left_by(made, forward) for forward in (made.unit.forward, made.ready.call))

        assert left == expected
        assert not text.getvalue()


def _left_by(made: Made, forward: Callable[..., Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What one call changes in the process and in the module."""
    args, kwargs = trees.replica((made.recorded[0].args, made.recorded[0].kwargs))
    with calm(), state.kept(made.unit.module), torch.no_grad():
        process, portrait = Process(), Portrait(made.unit.module)
        forward(*args, **kwargs)
        return process.changed(), portrait.changed()
