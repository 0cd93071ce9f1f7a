"""Plugins that fail in every way: each costs only itself and leaves its sentence; all failing leaves the object as before."""

from __future__ import annotations

import sys
import types

import pytest
import torch

import tt_core as tt
from tt_core.testing.fakes import FakeBackend, meddling, moving, raising, tripling
from tt_core.testing.wrong import WRONG


@pytest.fixture
def plugin_module(monkeypatch):
    """Makes a module importable; `TT_PLUGINS` names all that were made."""
    names = []

    def add(name, **content):
        module = types.ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
        names.append(name)
        monkeypatch.setenv("TT_PLUGINS", ",".join(names))

    return add


def other_dtype(bench):
    return FakeBackend(bench, "doubled", 0.1, breaks=WRONG["dtype"])


def other_container(bench):
    return FakeBackend(bench, "boxed", 0.1, breaks=WRONG["container"])


def raising_in_service(bench):
    def breaks(call):
        def run(*args, **kwargs):
            raise ValueError("lost the device")

        return run

    return FakeBackend(bench, "lost", 0.1, breaks=breaks)


BROKEN = {
    "raises in build": (raising, "broken", "no kernel for this"),
    "three times the answer": (tripling, "tripled", "off float64"),
    "another dtype": (other_dtype, "doubled", "float64"),
    "another container": (other_container, "boxed", "tuple"),
    "raises when called": (raising_in_service, "lost", "lost the device"),
}


@pytest.mark.parametrize(("kind", "name", "says"), BROKEN.values(), ids=BROKEN)
def test_a_broken_backend_costs_only_itself(stack, data, auto, bench, kind, name, says):
    """The other backend is installed, and the table says what was wrong with the broken one."""
    result = auto(stack, data, kind(bench), FakeBackend(bench), max_depth=0)
    assert {choice.candidate.name for choice in result.plan.choices} == {"fast"}
    failure = next(trial.outcome for trial in result.trials if trial.candidate.name == name)
    assert says in failure.reason
    assert f"{name}: " in str(result)


def test_a_failed_import_and_a_foreign_api(stack, data, auto, bench, plugin_module, monkeypatch):
    """Plugins that cannot take part leave their sentence in the table and in `tt.backends`."""
    plugin_module(
        "old_plugin", tt_backends=tt.hookimpl(lambda: tt.Backend(name="old", devices={"*"}, fidelity=1, api=99))
    )
    monkeypatch.setenv("TT_PLUGINS", "no_such_plugin,old_plugin")
    result = auto(stack, data, FakeBackend(bench), max_depth=0)
    assert result.changed
    for text in (" ".join(str(result).split()), str(tt.backends("cpu"))):
        assert "no_such_plugin: its import failed: ModuleNotFoundError: No module named 'no_such_plugin'" in text
        assert "old: speaks API 99, this core speaks 1 to 1" in text


def test_when_all_fail_the_object_is_as_before(stack, data, auto, bench, same):
    """Not an object in any `vars()`, no value, hook, flag or random number is another one; the headline says why."""
    check = same(stack)
    plugins = [kind(bench) for kind, _, _ in BROKEN.values()]
    result = auto(stack, data, *plugins)
    check()
    assert not result.changed
    assert [depth.failed for depth in result.depths] == [1, 3, 5]
    assert "every unit failed to tune" in result.headline
    assert all(plugin.open == 0 for plugin in plugins)


def test_a_meddling_backend_leaves_no_trace(stack, data, auto, bench, same):
    """RNG, default dtype, grad mode, threads, flags and moved tensors are put back, and the backend still wins."""
    check = same(stack)
    result = auto(stack, data, meddling(bench), moving(bench), max_depth=1)
    assert result.changed
    tt.untune(stack)
    check()


@pytest.mark.parametrize("grad", [True, False])
def test_the_callers_grad_mode_stays(stack, data, auto, bench, grad):
    """Tuning works under either grad mode and leaves it."""
    with torch.set_grad_enabled(grad):
        auto(stack, data, FakeBackend(bench), max_depth=0)
        assert torch.is_grad_enabled() is grad


def test_a_check_plugin_can_veto(stack, data, auto, bench):
    """Every check must agree; a veto of a plugin is a wrong result like any other."""

    class Strict:
        @tt.hookimpl
        def tt_check(self, facts):
            return tt.Verdict(ok=False, reason="not on a Tuesday")

    result = auto(stack, data, FakeBackend(bench), Strict(), max_depth=0)
    assert not result.changed
    assert "fast: not on a Tuesday" in result.headline


def test_every_trial_is_told(stack, data, auto, bench):
    """`tt_trial_done` hears of right and failed trials alike."""
    told = []

    class Listener:
        @tt.hookimpl
        def tt_trial_done(self, trial):
            told.append((trial.candidate.name, trial.failed))

    auto(stack, data, FakeBackend(bench), raising(bench), Listener(), max_depth=0)
    assert sorted(told) == [("broken", True), ("fast", False)]
