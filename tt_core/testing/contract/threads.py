"""Promises about threads and processes."""

from __future__ import annotations

import os
import signal
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from tt_core import trees
from tt_core.contain import Caught, attempt
from tt_core.testing.contract.base import Base
from tt_core.testing.contract.shop import Made, Shop, calm
from tt_core.values import Call

_THREADS = 8
_ROUNDS = 20
_CHILD_S = 60


class Threads(Base):
    """Who may call a built at once."""

    def test_concurrent(self, shop: Shop, main: Made) -> None:
        """Called by 8 threads at once, each call gets the result of its own arguments."""
        if not main.ready.concurrent:
            pytest.skip("it declares concurrent=False: the core lets one thread in at a time")
        calls = [_shifted(main.recorded[i % len(main.recorded)], i) for i in range(_THREADS)]
        expected = [shop.eager(main, call) for call in calls]
        barrier = threading.Barrier(_THREADS)

        def work(call: Call) -> list[Any]:
            barrier.wait()
            with torch.no_grad():
                return [main.ready.call(*call.args, **call.kwargs) for _ in range(_ROUNDS)]

        with calm(), ThreadPoolExecutor(_THREADS) as pool:
            found = list(pool.map(work, calls))
        for index, (want, results) in enumerate(zip(expected, found, strict=True)):
            for result in results:
                shop.same(want, result, f"thread {index}")

    def test_fork(self, shop: Shop, main: Made) -> None:
        """A forked child may call it, and gets the right result."""
        if not main.ready.fork_safe:
            pytest.skip("it declares fork_safe=False: in a child the guard refuses")
        if not hasattr(os, "fork"):
            pytest.skip("this system does not fork")
        if main.calls.key.tensors[0].device.type != "cpu":
            pytest.skip("devices do not survive a fork")
        call = main.recorded[0]
        expected = shop.eager(main, call)
        shop.run(main, main.ready.call, call)
        said = _in_child(lambda: shop.same(expected, shop.served(main, call), "in a forked child"))

        assert not said, said


def _shifted(call: Call, by: int) -> Call:
    args, kwargs = trees.mapped(lambda tensor: tensor + by, (call.args, call.kwargs))
    return Call(*args, **kwargs)


def _in_child(check: Any) -> str:
    """Runs a check in a forked child; what went wrong there, empty where all went well."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of forks where threads run
        pid = os.fork()
    if pid == 0:
        _child(check, writing)
    os.close(writing)
    with os.fdopen(reading, "r") as pipe:
        text = pipe.read()
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return f"the child hung for {_CHILD_S} s" if number == signal.SIGALRM else f"signal {number} ended the child"
    return text if text or not status else f"the child ended with status {status}"


def _child(check: Any, writing: int) -> None:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(_CHILD_S)
    torch.set_num_threads(1)  # the parent's own threads are gone, whoever calls
    answer = attempt(check, where="a forked child")
    if isinstance(answer, Caught):
        os.write(writing, f"{answer.kind}: {answer.reason}".encode())
    os._exit(0)  # past pytest, which would report the rest of the run a second time
