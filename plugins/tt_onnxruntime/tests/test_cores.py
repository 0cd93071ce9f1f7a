"""Threads are bound where a session has every core of the process, and only there."""

from __future__ import annotations

import os

import pytest
from tt_onnxruntime.cores import affinities


@pytest.fixture
def topology(tmp_path, monkeypatch):
    """Makes a system of processors, given as the siblings of each, of which this process may use some."""

    def make(siblings, allowed=None):
        for processor, told in siblings.items():
            place = tmp_path / f"cpu{processor}" / "topology"
            place.mkdir(parents=True)
            (place / "thread_siblings_list").write_text(f"{told}\n")
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(allowed or siblings), raising=False)
        return tmp_path

    return make


def test_every_thread_but_the_callers_has_a_core(topology):
    assert affinities(3, topology({0: "0", 1: "1", 2: "2"})) == "2;3"


@pytest.mark.parametrize(
    ("siblings", "bound"),
    [
        pytest.param({0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"}, "2,4", id="second half"),
        pytest.param({0: "0-1", 1: "0-1", 2: "2-3", 3: "2-3"}, "3,4", id="next to it"),
    ],
)
def test_a_thread_may_use_both_processors_of_its_core(topology, siblings, bound):
    assert affinities(2, topology(siblings)) == bound


def test_a_pool_with_some_of_the_cores_is_not_bound(topology):
    place = topology({0: "0", 1: "1", 2: "2", 3: "3"})

    assert affinities(2, place) == ""
    assert affinities(8, place) == ""


def test_only_the_processes_own_cores_count(topology):
    assert affinities(2, topology({n: str(n) for n in range(8)}, allowed=[5, 6])) == "7"


def test_one_thread_is_the_callers(topology):
    assert affinities(1, topology({0: "0"})) == ""


def test_not_bound_where_the_system_says_nothing(tmp_path):
    assert affinities(2, tmp_path) == ""
