"""The folder of plans: damaged, of others, full, and shared by threads and processes."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from remembered import entry, hit, small_plan

import tt_core as tt
from tt_core.store import cache

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
