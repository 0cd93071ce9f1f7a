"""The dispatcher in several threads, and in a forked child."""

from __future__ import annotations

import os
import threading
import warnings

import pytest
import torch
from install_units import X, entry, tuned, unit_of

from tt_core.install import install, stats


def test_a_built_for_one_thread_gets_one(net):
    """A built that is not concurrent is never entered twice at a time."""
    inside, most = [], []

    def built(x):
        inside.append(1)
        most.append(len(inside))
        threading.Event().wait(0.001)
        inside.pop()
        return x

    tuned(net, lambda _: built, concurrent=False)

    def work() -> None:
        with torch.no_grad():
            for _ in range(10):
                net(X)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(most) == 40
    assert set(most) == {1}


def test_four_threads_are_counted_right(net):
    """Hits and falls of four threads add up, and each kind warned once."""
    tuned(net)
    stats(net, hits=True)

    def work() -> None:
        with torch.no_grad():
            for i in range(400):
                net(X if i % 4 else X[0])

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = stats(net)[""]
    assert (found.hits, found.falls) == (1200, {"shape": 400})
    assert len(seen) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
def test_a_forked_child(net):
    """In a forked child a fork-safe built serves on, also one whose lock was held; another falls to the original."""
    net.eval()
    install(
        [
            entry(unit_of(net.first, "first"), lambda x: x + 100, concurrent=False),
            entry(unit_of(net.second, "second"), lambda x: x + 100, fork_safe=False),
        ],
    )
    want = X + 100
    assert torch.equal(net.first(X), want)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pid = os.fork()
        if pid == 0:
            ok = torch.equal(net.first(X), want) and not torch.equal(net.second(X), want)
            ok = ok and stats(net)["second"].falls == {"process": 1}
            os._exit(0 if ok else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert torch.equal(net.second(X), want)
