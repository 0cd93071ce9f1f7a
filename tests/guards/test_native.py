"""The compiled test of weights: it is trusted only where it sees every change, holds no module alive, and says what it is."""

from __future__ import annotations

import gc
import importlib
import importlib.util
import shutil
import weakref
from typing import Any

import pytest
import torch
from guard_units import Block, X, guard
from torch import nn

from tt_core.guards import Watch, native
from tt_core.guards.quick import quick
from tt_core.values import Call, Weights

INSTALLED = importlib.util.find_spec("tt_native") is not None
PARTS = ("tensors", "written", "dicts", "empty", "classes")
COMPILER = any(map(shutil.which, ("c++", "g++", "clang++", "cl")))
needs_it = pytest.mark.skipif(native.snapshot is None, reason=native.why)


@pytest.mark.skipif(not (INSTALLED and COMPILER), reason="tt-native is not installed, or nothing compiles it")
def test_it_is_built_where_there_is_a_compiler():
    """A build that fails is no error of pip's, so it is one here."""
    assert (native.why, native.snapshot is None) == ("", False)


def blind(to: str) -> Any:
    """The compiled test, but with nothing in the place of what it is to overlook."""
    taken = native.snapshot

    def snapshot(*given: Any) -> Any:
        return taken(*(dict(zip(PARTS, given, strict=True)) | ({to: []} if to else {})).values())

    return snapshot


@needs_it
@pytest.mark.parametrize("what", ["", *PARTS])
def test_one_that_overlooks_something_is_not_trusted(what):
    """Whatever kind of change it does not see."""
    assert (native.tried(blind(what)) is None) == bool(what)


@needs_it
@pytest.mark.parametrize("index", range(len(native.CHANGES)))
def test_one_that_overlooks_a_change_of_a_tensor_is_not_trusted(index, monkeypatch):
    """Each way to change a tensor is tried, by itself."""
    changes = [*native.CHANGES]
    changes[index] = lambda _: None
    monkeypatch.setattr(native, "CHANGES", changes)
    assert native.tried(native.snapshot) is None


@pytest.mark.parametrize("answer", [True, False])
def test_one_that_always_says_the_same_is_not_trusted(answer):
    """Neither one that never sees a change nor one that always does."""
    assert native.tried(lambda *_: lambda: answer) is None


@pytest.mark.parametrize("error", [TypeError, ValueError, RuntimeError])
def test_one_that_raises_is_not_used(error):
    """Another version's may want other arguments."""

    def snapshot(*_: Any) -> Any:
        raise error("other arguments")

    assert native.tried(snapshot) is None


@needs_it
def test_one_for_another_torch_is_not_used(monkeypatch):
    """Its tensors may be laid out otherwise; the error says what to do, and a guard goes on without."""
    import tt_native

    monkeypatch.setattr(torch, "__version__", "1.0.0")
    with pytest.raises(ImportError, match=r"built for torch .*this is torch 1\.0\.0.*pip install"):
        importlib.reload(tt_native)


@needs_it
@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((1, [], [], [], []), "made of sequences"),
        (([1], [], [], [], []), "must hold tensors, not int"),
        (([], [], [1], [], []), "must hold dicts, not int"),
        (([], [], [], [()], []), "must hold dicts, not tuple"),
        (([], [], [], [], [int]), "forward"),
        (([torch.ones(2).to_sparse()], [], [], [], []), "without a storage"),
        ((), "required argument"),
    ],
)
def test_what_it_cannot_compare_it_refuses(arguments, error):
    """With an error of Python's, never the end of the process."""
    with pytest.raises((TypeError, ValueError, AttributeError), match=error):
        native.snapshot(*arguments)


@needs_it
def test_a_guarded_module_is_collected():
    """A snapshot in the module that it watches is a cycle, which the garbage collector sees through."""
    module = Block().eval()
    module.kept = native.snapshot([*module.parameters()], [], [vars(module), module._parameters], [], [Block])
    weight = weakref.ref(module.lin.weight)
    del module
    gc.collect()
    assert weight() is None


@needs_it
def test_what_changes_before_it_is_taken_shows():
    """Between the record of a module and the snapshot: another thread may write."""
    with torch.no_grad():
        for change in (
            lambda m: m.lin.weight.add_(1),
            lambda m: setattr(m.drop, "p", 0.5),
            lambda m: setattr(m.lin.weight, "data", torch.zeros(4, 4)),
        ):
            module = Block().eval()
            watch = Watch.of(module, Weights.VALUES)
            change(module)
            assert not quick(watch)()


@needs_it
def test_a_snapshot_is_all_that_a_call_asks(monkeypatch):
    """As a rule the question is the compiled one itself, with no function of ours around it."""
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()
    found = guard(Call(X), module, Weights.VALUES)
    asked = next(value for name, value in found.accepts.__globals__.items() if name.endswith("unchanged"))
    assert type(asked) is type(native.snapshot([], [], [], [], []))


@needs_it
def test_what_may_be_written_is_no_alarm():
    """A built that reads weights where they are asks no second time after they were written to."""
    module = Block().eval()
    watch = Watch.of(module, Weights.STORAGE)
    with torch.no_grad():
        module.lin.weight.add_(1)
    assert quick(watch)()
    module.lin.weight.data = torch.zeros(4, 4)
    assert not quick(watch)()
