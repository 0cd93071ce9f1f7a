"""The plugin room: what is loaded, what is refused and with which sentence, and the three ways of asking."""

from __future__ import annotations

import sys
import types

import pytest
import torch

from tt_core.contain import Caught
from tt_core.errors import UnknownBackendError
from tt_core.hookspecs import hookimpl
from tt_core.plugins import Plugins, registry
from tt_core.testing.fake_clock import FakeClock
from tt_core.values import Backend, Built, Facts, Fidelity, Limits, Ready, Refusal, Tolerance, Unavailable, Verdict

CPU = torch.device("cpu")


class Fake:
    """A plugin with one backend; keyword arguments replace the fields of its declaration."""

    def __init__(self, name: str = "fake", **fields: object) -> None:
        self.backend = Backend(**{"name": name, "devices": {"cpu"}, "fidelity": Fidelity.CLOSE, **fields})

    @hookimpl
    def tt_backends(self):
        return self.backend

    @hookimpl
    def tt_build(self, unit):
        return Built(call=unit.forward)


def load(*extra: object, **environ: str) -> Plugins:
    return Plugins.load(extra=extra, environ={"TT_DISABLE_AUTOLOAD": "1", **environ})


def refusal(plugins: Plugins, name: str, device: torch.device = CPU, **kw: object) -> Refusal:
    _, refused = plugins.ready(device, **kw)
    return next(r for r in refused if r.name == name)


def ready(plugins: Plugins, device: torch.device = CPU, **kw: object) -> list[str]:
    return [b.name for b in plugins.ready(device, **kw)[0]]


def test_eager_is_always_there():
    """With no plugin at all eager runs on every device."""
    assert ready(load()) == ["eager"]
    assert ready(load(), torch.device("meta")) == ["eager"]


def test_an_extra_plugin_takes_part():
    """A plugin object needs no package."""
    assert ready(load(Fake())) == ["eager", "fake"]


def test_import_failure_costs_only_itself(monkeypatch):
    """A module that raises at import is refused with its error; the next one still loads."""
    good = types.ModuleType("good_plugin")
    good.tt_backends = hookimpl(lambda: Backend(name="good", devices={"cpu"}, fidelity=Fidelity.CLOSE))
    monkeypatch.setitem(sys.modules, "good_plugin", good)
    plugins = load(TT_PLUGINS="no_such_module_at_all,good_plugin")
    assert "good" in ready(plugins)
    found = refusal(plugins, "no_such_module_at_all")
    assert found.stage == "import"
    assert "No module named 'no_such_module_at_all'" in found.reason


def test_foreign_api_is_refused_with_both_numbers():
    """A plugin for API 99 is told which versions this core speaks."""
    found = refusal(load(Fake(api=99)), "fake")
    assert found.stage == "api"
    assert found.reason == "speaks API 99, this core speaks 1 to 1"


def test_nonsense_declaration_is_refused():
    """tt_backends must answer Backend values."""

    class Nonsense:
        @hookimpl
        def tt_backends(self):
            return ["not a backend"]

    plugins = load(Nonsense(), Fake())
    assert "fake" in ready(plugins)
    assert any("answered str, not tt.Backend" in r.reason for r in plugins.refused)


def test_unknown_hook_argument_is_refused():
    """A hook that asks for an argument that does not exist is refused when it is registered."""

    class Wrong:
        @hookimpl
        def tt_build(self, nonsense):
            return nonsense

    plugins = load(Wrong(), Fake())
    assert "fake" in ready(plugins)
    assert any(r.stage == "declare" and "nonsense" in r.reason for r in plugins.refused)


def test_unknown_hook_is_refused():
    """A misspelt hook is refused, not silently never called."""

    class Misspelt:
        @hookimpl
        def tt_biuld(self, unit):
            return unit

    assert any("tt_biuld" in r.reason for r in load(Misspelt()).refused)


def test_only_tt_names_of_a_plugin_are_looked_at():
    """A property that raises does not disturb loading."""

    class Bomb(Fake):
        @property
        def other(self):
            raise RuntimeError("looked at")

    assert "fake" in ready(load(Bomb()))


def test_second_owner_of_a_name_is_refused():
    """The first to declare a name keeps it; the refusal names both."""
    found = [r for r in load(Fake("eager")).refused if r.name == "eager"]
    assert "eager" in found[0].reason
    assert found[0].stage == "declare"


def test_disabled_by_backend_name():
    """TT_DISABLE_BACKENDS drops a declared backend with a sentence; eager stays."""
    plugins = load(Fake(), TT_DISABLE_BACKENDS="fake,eager,typo")
    assert ready(plugins) == ["eager"]
    assert refusal(plugins, "fake").reason == "disabled by TT_DISABLE_BACKENDS"
    assert "cannot be disabled" in refusal(plugins, "eager").reason
    assert "nothing of that name" in refusal(plugins, "typo").reason


def test_disabled_plugins_are_not_imported(monkeypatch):
    """A plugin named in TT_DISABLE_BACKENDS is never imported."""
    asked = []

    class Point:
        name = "heavy"

        def load(self):
            asked.append(1)

    monkeypatch.setattr(registry, "_entry_points", lambda: [Point()])
    plugins = Plugins.load(environ={"TT_DISABLE_BACKENDS": "heavy"})
    assert asked == []
    assert refusal(plugins, "heavy").stage == "disabled"


def test_missing_extras_come_with_the_pip_line(monkeypatch):
    """What tt-core's extras offer and nobody installed is missing, with the command that installs it."""
    monkeypatch.setattr(registry, "_entry_points", list)
    monkeypatch.setattr(registry, "_extras", lambda: ["openish"])
    found = refusal(Plugins.load(environ={}), "openish")
    assert (found.stage, found.reason) == ("missing", "openish is not installed")
    assert found.hint == 'pip install "tt-core[openish]"'


@pytest.mark.parametrize(
    ("fields", "stage", "word"),
    [
        ({"devices": {"xpu"}}, "device", "runs on xpu, not on cpu"),
        ({"fidelity": Fidelity.LOSSY}, "fidelity", "changes the precision"),
    ],
)
def test_filters_leave_their_sentence(fields, stage, word):
    """Device type and fidelity drop a backend before it is probed."""
    found = refusal(load(Fake(**fields)), "fake")
    assert found.stage == stage
    assert word in found.reason


def test_lossy_takes_part_by_name():
    """Asking for a lossy backend by name lets it in."""
    assert ready(load(Fake(fidelity=Fidelity.LOSSY)), only=["fake", "eager"]) == ["eager", "fake"]


def test_probe_is_asked_once_and_may_refuse():
    """A probe's reason and hint reach the refusal; it is asked once per process and device."""
    asked = []

    class Probed(Fake):
        @hookimpl
        def tt_probe(self, backend, device):
            asked.append((backend, str(device)))
            return Unavailable(reason="too old", hint="upgrade")

    plugin = Probed()
    for _ in range(2):
        found = refusal(load(plugin), "fake")
    assert (found.stage, found.reason, found.hint) == ("probe", "too old", "upgrade")
    assert asked == [("fake", "cpu")]


def test_raising_probe_counts_as_unavailable():
    """A probe that raises costs only its backend."""

    class Crash(Fake):
        @hookimpl
        def tt_probe(self):
            raise OSError("libsomething.so not found")

    plugins = load(Crash(), Fake("other"))
    assert ready(plugins) == ["eager", "other"]
    assert "OSError: libsomething.so not found" in refusal(plugins, "fake").reason


def test_unknown_names_are_errors_that_list_the_known():
    """backends= and exclude= refuse a name that nobody declared."""
    with pytest.raises(UnknownBackendError, match=r"^backend 'nope' is not known here. Known: eager, fake") as caught:
        load(Fake()).ready(CPU, only=["nope"])
    assert caught.value.args[1:] == ("nope", ("eager", "fake"))
    with pytest.raises(UnknownBackendError):
        load(Fake()).ready(CPU, exclude=["nope"])


def test_build_is_asked_of_the_owner_only():
    """A rival can neither answer for another's backend nor wrap it."""
    asked = []

    class Greedy(Fake):
        @hookimpl(tryfirst=True)
        def tt_build(self, unit, backend):
            asked.append(backend)
            return Built(call=lambda: "stolen")

    plugins = load(Fake(), Greedy("greedy"))
    unit = types.SimpleNamespace(forward=len)
    built = plugins.build("fake", unit, None, CPU, {}, None, Limits(seconds=1))
    assert built.call is len
    assert asked == []


def test_failed_builds_are_values():
    """An exception, and an answer of another type, come back as `Caught` with a sentence."""

    class Bad(Fake):
        answer: object = 3

        @hookimpl
        def tt_build(self):
            if isinstance(self.answer, Exception):
                raise self.answer
            return self.answer

    bad = Bad()
    plugins = load(bad)
    built = plugins.build("fake", None, None, CPU, {}, None, Limits(seconds=1))
    assert isinstance(built, Caught)
    assert built.reason == "tt_build of 'fake' answered int, not Built"
    bad.answer = RuntimeError("boom")
    assert plugins.build("fake", None, None, CPU, {}, None, Limits(seconds=1)).reason == "boom"


def test_every_check_votes_and_raising_is_a_veto():
    """All plugins' checks are asked; one that raises vetoes with its name."""

    class Broken:
        @hookimpl
        def tt_check(self):
            raise ValueError("cannot")

    class Silent:
        @hookimpl
        def tt_check(self):
            return None

    verdicts = load(Broken(), Silent()).check(Facts(), [], [], [], Tolerance())
    assert any(not v.ok and "ValueError: cannot" in v.reason for v in verdicts)
    assert all(isinstance(v, Verdict) for v in verdicts)


def test_the_first_timer_wins_and_a_broken_one_is_passed_over():
    """A plugin's timer comes before the core's; one that raises is noted and the next is asked."""
    mine = FakeClock()

    class Mine:
        @hookimpl
        def tt_timer(self):
            return mine

    class Broken:
        @hookimpl
        def tt_timer(self):
            raise RuntimeError("no clock")

    plugins = load(Mine(), Broken())
    assert plugins.timer(CPU) is mine
    assert any("no clock" in r.reason for r in plugins.refused)


def test_ready_probe_answer_is_kept():
    """A probe's note is handed on."""

    class Noted(Fake):
        @hookimpl
        def tt_probe(self):
            return Ready(note="7.1")

    assert load(Noted()).probe("fake", CPU) == Ready(note="7.1")
