"""`python -m tt_core cache`: what is remembered is shown, and forgotten."""

from __future__ import annotations

import torch

from tt_core.__main__ import main
from tt_core.store import cache
from tt_core.testing.fakes import FakeBackend


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
