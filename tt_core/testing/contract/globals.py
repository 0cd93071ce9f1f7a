"""Promises about all that is not the backend's: the module, the recorded calls, the process."""

from __future__ import annotations

import contextlib
import io

from tt_core.testing.contract.base import Base
from tt_core.testing.contract.portrait import Portrait, Process
from tt_core.testing.contract.shop import Made, Shop


class Surroundings(Base):
    """What is left as it was found."""

    def test_module_is_left_as_found(self, made: Made) -> None:
        """A build leaves the module as it was: the very objects, their values, its flags, hooks and attributes."""
        assert not made.module, f"the build changed the module: {'; '.join(made.module)}"

    def test_recorded_calls_are_not_written(self, made: Made) -> None:
        """A build writes nothing into the recorded calls."""
        assert not made.samples

    def test_build_leaves_the_process(self, made: Made) -> None:
        """A build changes nothing global: modes, dtypes, threads, random numbers, warning filters, logging, variables."""
        assert not made.process, f"the build changed {', '.join(made.process)}"

    def test_build_prints_nothing(self, made: Made) -> None:
        """A build prints nothing: what it has to say is in the notes, or in the refusal."""
        assert not made.printed

    def test_calls_leave_the_process(self, shop: Shop, made: Made) -> None:
        """A call changes nothing global and nothing in the module beyond what eager changes, and prints nothing."""
        portrait, process, text = Portrait(made.unit.module), Process(), io.StringIO()
        with contextlib.redirect_stdout(text):
            shop.run(made, made.ready.call, made.recorded[0])

        assert not process.changed()
        assert not portrait.changed()
        assert not text.getvalue()
