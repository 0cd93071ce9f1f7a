"""What the dispatcher counts, and what it says."""

from __future__ import annotations

import warnings

import pytest
import torch
from install_units import X, entry, tuned, unit_of

from tt_core.errors import FallbackWarning
from tt_core.install import install, stats


def test_each_kind_warns_once_and_counts_always(net):
    """The first fall of a kind warns with the fix, later ones are only counted; nothing raises."""
    tuned(net)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(3):
            net(X.double().float()[:, None])
            with torch.enable_grad():
                net(X)
    assert len(seen) == 2
    assert "wrap the call in torch.inference_mode()" in str(seen[1].message)
    assert seen[0].filename == __file__
    assert dict(stats(net)[""].falls) == {"shape": 3, "grad": 3}


def test_reset_begins_anew(net):
    """What fell while tuning was measured is forgotten by `reset`: counts from 0, and each kind warns again."""
    made = tuned(net)
    for _ in range(2):
        with pytest.warns(FallbackWarning, match="axes"):
            net(X[0])
        made.reset()
        assert stats(net)[""].falls == {}


def test_counting_hits_is_switched(net):
    """Hits are counted only between `hits=True` and `hits=False`; falls always."""
    tuned(net)
    net(X)
    assert stats(net)[""].hits is None
    assert stats(net, hits=True)[""].hits == 0
    net(X)
    assert stats(net)[""].hits == 1
    assert stats(net, hits=False)[""].hits is None


def test_stats_have_the_paths_of_the_object(net):
    """Paths are those of the object that is asked about, also for a plain object that holds modules."""
    install([entry(unit_of(net.first, "first"), lambda x: x), entry(unit_of(net.second, "second"), lambda x: x)])
    assert set(stats(net)) == {"first", "second"}
    assert set(stats(net.first)) == {""}
    assert set(stats([{"a": net}])) == {"0['a'].first", "0['a'].second"}
