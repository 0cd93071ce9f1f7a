"""Containment: exceptions become values, and the process stays as it was."""

from __future__ import annotations

import logging
import warnings

import pytest
import torch

from tt_core.contain import Caught, attempt


def test_an_exception_becomes_a_value_with_place():
    """The first line is the reason, the traceback and the place are the detail."""

    def fail():
        raise ValueError("first line\nsecond line")

    found = attempt(fail, where="build x on 'y'")
    assert isinstance(found, Caught)
    assert (found.kind, found.reason) == ("ValueError", "first line")
    assert "build x on 'y'" in found.detail


def test_interrupts_pass():
    """Ctrl-C is never contained."""

    def stop():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        attempt(stop, where="")


def test_torch_globals_are_put_back():
    """Threads, grad mode, default dtype, precision, determinism, RNG, warnings and logging survive foreign code."""
    before = (torch.get_num_threads(), torch.is_grad_enabled(), torch.get_default_dtype())
    precision, rng = torch.get_float32_matmul_precision(), torch.random.get_rng_state()
    root = logging.getLogger()
    handlers, filters = root.handlers[:], warnings.filters[:]

    def vandal():
        torch.set_num_threads(1)
        torch.set_grad_enabled(not before[1])
        torch.set_default_dtype(torch.float64)
        torch.set_float32_matmul_precision("medium")
        torch.use_deterministic_algorithms(True)
        torch.manual_seed(99)
        torch.rand(3)
        root.addHandler(logging.NullHandler())
        warnings.simplefilter("ignore")
        torch.backends.mkldnn.set_flags(False)

    attempt(vandal, where="")
    assert (torch.get_num_threads(), torch.is_grad_enabled(), torch.get_default_dtype()) == before
    assert torch.get_float32_matmul_precision() == precision
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.equal(rng, torch.random.get_rng_state())
    assert root.handlers == handlers
    assert warnings.filters[: len(filters)] == filters
    assert torch.backends.mkldnn.enabled
