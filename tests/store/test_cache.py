"""Remembered plans: a second tuning starts from what the first one found, checks it, and searches where it no longer wins."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import attrs
import pytest
import torch
from torch import nn
from torch.export import Dim

import tt_core as tt
from tt_core.__main__ import main
from tt_core.install import Dispatcher
from tt_core.store import cache
from tt_core.testing.fakes import Bench, FakeBackend, FakeLayer, raising

HIT = "remembered from an earlier run; settings.cache='refresh' searches again"


class Last(FakeLayer):
    """No twin of the first: twins are exported to be found, which takes its time."""


class Net(nn.Module):
    def __init__(self, bench, size=4):
        super().__init__()
        self.first, self.second = FakeLayer(bench, size=size, seed=1), Last(bench, size=size, seed=2)

    def forward(self, x, k=1):
        return torch.tanh(self.first(x)) @ self.second.weight * k + self.second(x)


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.setenv("TT_DISABLE_AUTOLOAD", "1")
    return Bench()


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """An empty cache of this test's own; where its plans go."""
    monkeypatch.setenv("TT_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "plans"


@pytest.fixture
def net(bench):
    return lambda **fields: Net(bench, **fields).eval()


@pytest.fixture
def data():
    return [torch.randn(rows, 4, generator=torch.Generator().manual_seed(rows)) for rows in (2, 8)]


@pytest.fixture
def auto(bench, folder):
    """`auto(obj, data, plugin, ...)`; `mode` is settings.cache."""

    def run(obj, dataset, *plugins, mode="use", expected_calls=None, **fields):
        settings = tt.Settings(plugins=(bench, *plugins), cache=mode, expected_calls=expected_calls)
        return tt.auto_tune(obj, dataset, **{"settings": settings, "progress": False, "max_depth": 0, **fields})

    return run


@pytest.fixture
def fast(bench):
    return FakeBackend(bench)


@pytest.fixture
def slow(bench):
    return FakeBackend(bench, "slow", 0.9)


def hit(result):
    return HIT in result.headline


def chosen(result):
    return result.plan.cut, [(c.unit, c.key, c.candidate) for c in result.plan.choices]


def test_a_second_tuning_builds_what_is_planned(net, data, auto, fast, slow, folder):
    """Only the planned candidates; the same plan, checked and raced again, with its trials in the result."""
    first = auto(net(), data, fast, slow, max_depth=1)
    built = fast.count("build"), slow.count("build")
    obj = net()
    second = auto(obj, data, fast, slow, max_depth=1)
    assert not hit(first)
    assert hit(second)
    assert (fast.count("build") - built[0], slow.count("build") - built[1]) == (1, 0)
    assert chosen(second) == chosen(first)
    assert isinstance(vars(obj)["forward"], Dispatcher)
    assert [(t.candidate.name, t.failed) for t in second.trials] == [("fast", False)]
    assert [(d.origin, d.cut.depths, d.timing is not None) for d in second.depths] == [("cache", (0,), True)]
    assert second.speedup == pytest.approx(2.0)
    assert second.seconds <= first.seconds / 3
    assert len(list(folder.iterdir())) == 1


def test_a_tuned_object_is_the_same_object(net, data, auto, fast):
    """Tuning an object again hits too: it is looked at without its tuning."""
    obj = net()
    auto(obj, data, fast)
    assert hit(auto(obj, data, fast))
    assert fast.open == 1


def test_other_values_are_the_same_structure(net, data, auto, fast):
    """Weights and samples of other values, equal shapes: the plan is the same."""
    auto(net(), data, fast)
    other = net()
    with torch.no_grad():
        other.first.weight.mul_(0.5)
    assert hit(auto(other, [x + 1 for x in data], fast))


def test_a_remembered_plan_that_no_longer_wins(net, data, auto, bench, fast, slow):
    """It stays in the table, the search runs, and what that finds is remembered instead."""
    auto(net(), data, fast, slow)
    lame, better = FakeBackend(bench, "fast", 1.5), FakeBackend(bench, "slow", 0.5)
    result = auto(net(), data, lame, better)
    assert not hit(result)
    assert result.depths[0].origin == "cache"
    assert {c.candidate.name for c in result.plan.choices} == {"slow"}
    assert hit(auto(net(), data, lame, better))


def test_a_remembered_plan_that_is_wrong_now(net, data, auto, bench, fast):
    """A candidate that gives wrong results today is not installed because it was right once."""
    auto(net(), data, fast)
    wrong = FakeBackend(bench, "fast", 0.1, breaks=lambda call: lambda *args, **kwargs: 3 * call(*args, **kwargs))
    result = auto(net(), data, wrong)
    assert not result.changed
    assert wrong.open == 0


def test_that_nothing_won_is_remembered(net, data, auto, bench):
    """A second tuning leaves the object alone at once, and says why and what to do."""
    lame = FakeBackend(bench, pace=2.0)
    assert not auto(net(), data, lame).changed
    built = lame.count("build")
    result = auto(net(), data, lame)
    assert lame.count("build") == built
    assert result.headline == (
        f"Nothing was installed, the object is as before: an earlier run found nothing that beats it ({HIT})."
    )
    assert result.plan.eager
    assert not result.trials


def test_that_everything_failed_is_not_remembered(net, data, auto, bench, fast, folder):
    """What was missing may be there the next time."""
    assert not auto(net(), data, raising(bench, "fast")).changed
    assert list(folder.iterdir()) == []
    assert auto(net(), data, fast).changed


def test_that_noise_decided_is_not_remembered(net, data, auto, bench, folder, monkeypatch):
    """A quieter hour may find a winner; a winner is remembered whatever the noise elsewhere."""
    from tt_core.session import remember

    result = auto(net(), data, FakeBackend(bench), mode="off")
    (depth,), (trial,) = result.depths, result.trials
    noisy = attrs.evolve(depth, timing=attrs.evolve(depth.timing, undecided=True))
    tied = attrs.evolve(trial, outcome=attrs.evolve(trial.outcome, undecided=True))
    eager = small_plan()
    assert remember._unsure(eager, [noisy], [trial])
    assert remember._unsure(eager, [depth], [tied])
    assert not remember._unsure(eager, [depth], [trial])
    assert not remember._unsure(result.plan, [noisy], [tied])


def test_nothing_to_tune_is_remembered(net, data, auto, bench, slow, folder):
    """A depth without a unit to tune was decided all the same."""
    lame = FakeBackend(bench, "lame", 2.0)
    auto(net(), data, lame, max_depth=1, skip=["first", "second"])
    assert "an earlier run found nothing" in auto(net(), data, lame, max_depth=1, skip=["first", "second"]).headline


def test_refresh_searches_again(net, data, auto, bench, fast):
    """And remembers what it found."""
    auto(net(), data, fast)
    lame = FakeBackend(bench, "fast", 2.0)
    assert not hit(auto(net(), data, lame, mode="refresh"))
    assert "an earlier run found nothing" in auto(net(), data, lame).headline


def test_off_neither_reads_nor_writes(net, data, auto, fast, folder):
    """The folder is not even made."""
    auto(net(), data, fast, mode="off")
    assert not folder.exists()
    auto(net(), data, fast)
    assert not hit(auto(net(), data, fast, mode="off"))


def test_an_empty_variable_switches_it_off(net, data, auto, fast, monkeypatch):
    """Without a note: it was asked for."""
    monkeypatch.setenv("TT_CACHE_DIR", "")
    monkeypatch.setattr(cache, "cache_folder", lambda: pytest.fail("looked for a folder"))
    auto(net(), data, fast)
    result = auto(net(), data, fast)
    assert not hit(result)
    assert not any("remembered" in note for note in result.notes)


def test_an_unknown_mode_is_refused():
    """The words are listed."""
    with pytest.raises(tt.UsageError, match="one of 'use', 'refresh', 'off' is needed"):
        tt.Settings(cache="yes")


CHANGES = {
    "depths": {"max_depth": 1},
    "tolerance": {"tolerance": 1e-3},
    "tie tolerance": {"tie_tolerance": 0.05},
    "select": {"select": ["second", ""]},
    "skip": {"skip": ["first"]},
    "strategy": {"strategy": tt.HighestThroughputStrategy(["fast"])},
    "strategies": {"strategies": {"first": tt.OneBackendStrategy("fast")}},
    "backends": {"backends": ["eager", "fast"]},
    "declared": {"dynamic_shapes": {"x": {0: Dim("rows", min=2, max=16)}}},
    "expected calls": {"expected_calls": 1e6},
}


@pytest.mark.long
@pytest.mark.parametrize("name", CHANGES)
def test_arguments_that_matter(net, data, auto, fast, slow, name):
    """Each has plans of its own."""
    auto(net(), data, fast, slow)
    assert not hit(auto(net(), data, fast, slow, **CHANGES[name]))
    assert hit(auto(net(), data, fast, slow, **CHANGES[name]))
    assert hit(auto(net(), data, fast, slow))


def test_declared_bounds_matter(net, data, auto, fast):
    """Another bound is another declaration."""
    for most in (16, 32):
        assert not hit(auto(net(), data, fast, dynamic_shapes={"x": {0: Dim("rows", min=2, max=most)}}))


def test_another_structure_is_searched(net, data, auto, fast):
    """Other shapes of weights, another class, another order of modules."""
    auto(net(), data, fast)
    assert not hit(auto(net(size=8), [torch.cat([x, x], 1) for x in data], fast))

    class Other(Net):
        pass

    assert not hit(auto(Other(fast._bench).eval(), data, fast))


def test_other_samples_are_searched(net, data, auto, fast):
    """Other sizes, another number of samples, another constant, another weight."""
    auto(net(), data, fast)
    for other in (
        [*data, data[0]],
        [data[0], data[1][:4]],
        [tt.Call(x, k=2) for x in data],
        [tt.Call(x).weighted(3) for x in data],
    ):
        assert not hit(auto(net(), other, fast))


def test_long_texts_are_told_apart(bench, auto, fast, data):
    """Calls that differ only in the end of a long text: the remembered plan does not know them, and is not installed."""

    class Named(FakeLayer):
        def forward(self, x, name="x"):
            return super().forward(x)

    model = Named(bench).eval()
    auto(model, [tt.Call(data[0], "a" * 100)], fast)
    result = auto(model, [tt.Call(data[0], "a" * 99 + "b")], fast)
    assert not hit(result)
    assert result.depths[0].error == "the remembered plan does not know all calls of this run"
    assert result.changed


@pytest.mark.parametrize("name", ["torch", "device", "cpu", "threads", "plugin"])
def test_another_environment_is_searched(net, data, auto, fast, monkeypatch, name):
    """Versions and hardware."""
    from tt_core import environment
    from tt_core.session import remember

    auto(net(), data, fast)
    real = environment.environment
    monkeypatch.setattr(remember, "environment", lambda device: {**real(device), name: "another"})
    assert not hit(auto(net(), data, fast))


def test_another_backend_is_searched(net, data, auto, fast, slow):
    """A new backend may be faster than what is remembered."""
    auto(net(), data, fast)
    assert not hit(auto(net(), data, fast, slow))


class Own(tt.Strategy):
    """A strategy of the caller's own."""


@pytest.mark.parametrize(
    "fields",
    [
        {"check": lambda expected, actual: True},
        {"strategy": Own()},
        {"strategies": {"first": Own()}},
        {"backends": ["eager"]},
    ],
)
def test_what_has_no_name_is_not_remembered(net, data, auto, fast, folder, fields):
    """A check or strategy that is code, and a run without anything to search."""
    auto(net(), data, fast, **fields)
    assert not folder.exists()


def test_a_search_that_ran_out_of_time_is_not_remembered(net, data, auto, fast, folder):
    """The next one may have more."""
    auto(net(), data, fast, max_depth=1, time_budget=0.5)
    assert list(folder.iterdir()) == []


def test_a_plan_of_the_callers_is_searched_and_remembered(net, data, auto, fast):
    """`plan=` asks for a search; its result is remembered."""
    plan = auto(net(), data, fast, mode="off").plan
    result = auto(net(), data, fast, plan=plan)
    assert [depth.origin for depth in result.depths] == ["plan", ""]
    assert hit(auto(net(), data, fast))


def test_a_call_without_a_form(net, bench, data, auto, fast, folder):
    """A plan that cannot be written is not remembered, and a note says why."""
    from dataclasses import dataclass

    @dataclass
    class Pair:
        x: torch.Tensor

    class Taking(FakeLayer):
        def forward(self, pair):
            return super().forward(pair.x)

    result = auto(Taking(bench).eval(), [tt.Call(Pair(data[0]))], fast)
    assert result.changed
    assert any(note.startswith("the plan is not remembered: class ") for note in result.notes)
    assert list(folder.iterdir()) == []


def entry(folder):
    (path,) = folder.iterdir()
    return path


DAMAGE = {
    "empty": b"",
    "cut short": lambda data: data[: len(data) // 2],
    "no plan": b"[]",
    "no text": b"\xff\xfe\x00",
    "a newer format": lambda data: data.replace(b'"format": 1', b'"format": 2'),
    "an unknown backend": lambda data: data.replace(b'"fast"', b'"warp"'),
    "a unit that is not there": lambda data: data.replace(b'"units": [\n   ""\n  ]', b'"units": ["gone", ""]'),
    "too large": b" " * (cache.LARGEST + 1),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_entry_is_no_entry(net, data, auto, fast, folder, name):
    """The search runs, and repairs it."""
    auto(net(), data, fast)
    path = entry(folder)
    before = path.read_bytes()
    after = DAMAGE[name](before) if callable(DAMAGE[name]) else DAMAGE[name]
    assert after != before
    path.write_bytes(after)
    result = auto(net(), data, fast)
    assert not hit(result)
    assert result.changed
    assert hit(auto(net(), data, fast))


def test_files_are_private(net, data, auto, fast, folder):
    """Folders 0700, files 0600, and no name of a user, a host or a folder in them."""
    auto(net(), data, fast)
    modes = [oct(path.stat().st_mode & 0o777) for path in (folder.parent, folder, entry(folder))]
    assert modes == ["0o700", "0o700", "0o600"]
    text = entry(folder).read_text("utf-8")
    assert str(folder) not in text
    assert os.uname().nodename not in text


@pytest.mark.parametrize("which", ["outer", "inner"])
@pytest.mark.parametrize("how", ["link", "group", "others", "file"])
def test_a_folder_of_others_is_not_used(net, data, auto, fast, folder, tmp_path, which, how):
    """One sentence, nothing read and nothing written; the tuning goes on."""
    place = folder.parent if which == "outer" else folder
    place.parent.mkdir(exist_ok=True, mode=0o700)
    target = tmp_path / "elsewhere"
    target.mkdir(mode=0o700)
    if how == "link":
        place.symlink_to(target)
    elif how == "file":
        place.write_text("")
    else:
        place.mkdir(mode=0o700)
        place.chmod(0o720 if how == "group" else 0o702)
    result = auto(net(), data, fast)
    words = {"link": "is a symbolic link", "file": "is no folder"}.get(how, "can be written to by others")
    assert [note for note in result.notes if "not remembered" in note] == [
        f"plans are not remembered: the folder {place.name!r} {words}"
    ]
    assert result.changed
    assert list(target.iterdir()) == []
    assert how in {"link", "file"} or list(place.iterdir()) == []


def test_a_folder_of_another_user_is_not_used(net, data, auto, fast, folder, monkeypatch):
    """By its owner."""
    auto(net(), data, fast)
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    result = auto(net(), data, fast)
    assert not hit(result)
    assert "plans are not remembered: the folder 'cache' belongs to another user" in result.notes


def test_an_entry_of_others_is_no_entry(net, data, auto, fast, folder, tmp_path):
    """A link, a pipe, or a file that others may write."""
    auto(net(), data, fast)
    path = entry(folder)
    path.chmod(0o622)
    assert not hit(auto(net(), data, fast))
    assert path.stat().st_mode & 0o777 == 0o600
    path.rename(tmp_path / "plan.json")
    path.symlink_to(tmp_path / "plan.json")
    assert not hit(auto(net(), data, fast))
    assert not path.is_symlink()
    path.unlink()
    os.mkfifo(path, 0o600)
    assert not hit(auto(net(), data, fast))
    assert path.is_file()


def test_a_folder_that_cannot_be_made(net, data, auto, fast, monkeypatch, tmp_path):
    """One sentence, whatever the system says."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TT_CACHE_DIR", str(tmp_path / "file" / "cache"))
    result = auto(net(), data, fast)
    assert any(
        note.startswith("plans are not remembered: the folder of TT_CACHE_DIR cannot be used") for note in result.notes
    )
    assert str(tmp_path) not in "".join(result.notes)


def test_a_disk_that_is_full(net, data, auto, fast, folder, monkeypatch):
    """The result stands; a note says that it is not remembered, and nothing is left behind."""

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    result = auto(net(), data, fast)
    assert result.changed
    assert "the plan is not remembered: the folder of TT_CACHE_DIR: No space left on device" in result.notes
    assert list(folder.iterdir()) == []


def small_plan(words=""):
    return tt.Plan(cut=tt.Cut(depths=(), units=()), choices=(), environment={"torch": words})


@pytest.fixture
def opened(folder):
    found, why = cache.open_cache()
    assert why == ""
    return found


def test_the_least_recently_used_go_first(opened, monkeypatch):
    """By use, not by age; the newest always stays."""
    names = [cache.name_of(number) for number in range(4)]
    for place, name in enumerate(names[:3]):
        opened.write(name, small_plan())
        os.utime(opened.folder / f"{name}.json", (place, place))
    assert opened.read(names[0]) is not None
    size = (opened.folder / f"{names[0]}.json").stat().st_size
    monkeypatch.setattr(cache, "MOST", 2 * size)
    opened.write(names[3], small_plan())
    assert [opened.read(name) is not None for name in names] == [True, False, False, True]
    monkeypatch.setattr(cache, "MOST", 1)
    opened.write(names[1], small_plan())
    assert [name for name, _, _ in opened.entries()] == [names[1]]


def test_a_plan_that_is_too_large(opened, monkeypatch):
    """It is refused, and nothing is written."""
    monkeypatch.setattr(cache, "LARGEST", 100)
    with pytest.raises(tt.StoreError, match="at most 100 are kept"):
        opened.write(cache.name_of(1), small_plan())
    assert list(opened.folder.iterdir()) == []


def test_names_depend_on_everything():
    """Every part, its kind and its place."""
    parts = [None, 1, "1", True, [1], {"a": 1}, {"b": 1}, [1, 2], [2, 1], "\ud800"]
    assert len({cache.name_of(part) for part in parts}) == len(parts)


@pytest.mark.long
def test_threads_and_processes_share_a_folder(opened):
    """Whoever reads finds a whole plan or none; whoever writes last has the last word; clearing meanwhile harms nobody."""
    name = cache.name_of(1)
    plans = [small_plan(str(number) * 200) for number in range(4)]
    code = (
        "import sys, tt_core as tt; from tt_core.store import cache; found, _ = cache.open_cache(); name = cache.name_of(1)\n"
        "plan = tt.Plan(cut=tt.Cut(depths=(), units=()), choices=(), environment={'torch': 'x' * 200})\n"
        "for _ in range(40): found.write(name, plan); found.read(name); found.clear()\n"
    )
    with subprocess.Popen([sys.executable, "-c", code]) as other:
        words = {plan.environment["torch"] for plan in plans} | {"x" * 200}

        def work(plan):
            for _ in range(40):
                opened.write(name, plan)
                read = opened.read(name)
                assert read is None or read.environment["torch"] in words
                assert all(found is None or found.environment["torch"] in words for _, _, found in opened.entries())

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, plans))
    assert other.returncode == 0
    opened.write(name, plans[0])
    assert [path.name for path in opened.folder.iterdir()] == [f"{name}.json"]


@pytest.mark.long
def test_a_second_process_finds_the_plan(bench, folder):
    """What one process found, another one takes up: nothing of the process is in the name."""
    code = (
        "import torch, tt_core as tt\n"
        "from tt_core.testing.fakes import Bench, FakeBackend, FakeLayer\n"
        "bench = Bench(); model = FakeLayer(bench).eval()\n"
        "plugins = (bench, FakeBackend(bench))\n"
        "print(tt.auto_tune(model, [torch.zeros(2, 4)], settings=tt.Settings(plugins=plugins), progress=False).headline)\n"
    )
    found = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    ]
    assert [HIT in text for text in found] == [False, True]


def test_show_and_clear(net, data, auto, bench, fast, folder, capsys):
    """`python -m tt_core cache`: what is remembered in a line each, and the way to forget it."""
    assert main(["cache", "show"]) == 1
    assert "plans are not remembered: the folder 'cache' is not there yet" in capsys.readouterr().err
    assert not folder.exists()
    auto(net(), data, fast)
    auto(net(), data, FakeBackend(bench, "lame", 2.0))
    (folder / f"{cache.name_of(1)}.json").write_text("damaged")
    (folder / "notes.txt").write_text("mine")
    assert main(["cache", "show"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("3 plans of ")
    assert f"1 unit with fast (torch {torch.__version__}, device cpu)" in shown
    assert "stays eager (" in shown
    assert "cannot be read: it is ignored" in shown
    assert main(["cache", "clear"]) == 0
    assert capsys.readouterr().out.startswith("Forgot 3 plans in ")
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]
    assert main(["cache", "show"]) == 0
    assert capsys.readouterr().out.endswith("  none\n")


def test_show_where_it_is_off(monkeypatch, capsys):
    """It says so."""
    monkeypatch.setenv("TT_CACHE_DIR", "")
    assert main(["cache", "show"]) == 1
    assert capsys.readouterr().err == "Plans are not remembered: TT_CACHE_DIR is empty.\n"


def test_the_suite_uses_no_cache():
    """No other test writes to the user's home."""
    assert os.environ["TT_CACHE_DIR"] == ""


def test_the_report_tells(net, data, auto, fast):
    """The row of the table says where its cut comes from; the JSON too."""
    auto(net(), data, fast)
    result = auto(net(), data, fast)
    assert "0 (cache)" in str(result)
    assert [depth["origin"] for depth in result.to_json()["depths"]] == ["cache"]
    json.dumps(result.to_json(), allow_nan=False)
