"""What a module runs, as a text: equal for equal code and settings, other for any other, empty where it cannot be told."""

from __future__ import annotations

import functools
import importlib
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from torch import nn

from tt_core.flat import code_print


class Setting:
    def __init__(self, scale=2.0):
        self.scale, self.names = scale, {"a", "b", "c"}


def plain(x):
    return x + 1


class Net(nn.Module):
    step = 1

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.setting, self.sizes, self.table = Setting(), [1, (2, 3)], torch.arange(3)
        self.act = functools.partial(torch.nn.functional.softmax, dim=-1)
        self.after, self.again = plain, self.sizes
        self.lstm = nn.LSTM(2, 2)

    def forward(self, x):
        return self.after(self.act(self.second(self.first(x)) * self.setting.scale))

    @property
    def half(self):
        return self.step / 2


CHANGES = {
    "a flag": lambda net: net.eval(),
    "an attribute": lambda net: setattr(net, "fresh", 1),
    "a number inside of an object": lambda net: setattr(net.setting, "scale", 3.0),
    "an int that is a float now": lambda net: net.sizes.__setitem__(0, 1.0),
    "what was one object": lambda net: setattr(net, "again", [1, (2, 3)]),
    "a small tensor": lambda net: net.table.add_(1),
    "a keyword of a partial": lambda net: setattr(net, "act", functools.partial(torch.nn.functional.softmax, dim=0)),
    "a function": lambda net: setattr(net, "after", lambda x: x + 2),
    "a default": lambda net: setattr(net, "after", lambda x, y=1: x + y),
    "another default": lambda net: setattr(net, "after", lambda x, y=2: x + y),
    "an operator": lambda net: setattr(net, "after", torch.ops.aten.relu.default),
    "a function of torch": lambda net: setattr(net, "after", torch.relu),
    "a method": lambda net: setattr(net, "after", net.first.extra_repr),
    "the forward of one module": lambda net: setattr(net.first, "forward", lambda x: x),
    "a hook": lambda net: net.first.register_forward_hook(lambda *_: None),
    "a child of another class": lambda net: setattr(net, "first", nn.Identity()),
    "a tied weight": lambda net: setattr(net.first, "weight", net.second.weight),
    "a dtype": lambda net: net.second.double(),
    "a shape": lambda net: setattr(net, "second", nn.Linear(4, 5)),
    "a buffer": lambda net: net.register_buffer("more", torch.zeros(2)),
}


def test_equal_for_equals():
    """For two nets of the same code, whatever their weights are; and again for one."""
    net = Net()
    assert code_print(net) == code_print(net) == code_print(Net())
    assert len(code_print(net)) == 64
    with torch.no_grad():
        net.first.weight.add_(1)
    assert code_print(net) == code_print(Net())


def test_every_change_shows():
    """Each is another text, from the first one and from each other."""
    found = {"nothing": code_print(Net())}
    for name, change in CHANGES.items():
        net = Net()
        change(net)
        found[name] = code_print(net)
    assert all(found.values())
    assert len(set(found.values())) == len(found)


@pytest.mark.parametrize(
    ("owner", "name", "value"),
    [
        (Net, "forward", lambda self, x: x),
        (nn.Linear, "forward", lambda self, x: x),
        (Net, "step", 2),
        (Net, "half", property(lambda self: 3)),
        (Setting, "scale", 4),
        (Net, "fresh", classmethod(lambda cls: 1)),
    ],
)
def test_a_class_that_was_patched_shows(monkeypatch, owner, name, value):
    """Code is read as it is now, not as a file has it."""
    before = code_print(Net())
    monkeypatch.setattr(owner, name, value, raising=False)
    assert code_print(Net()) not in {before, ""}


def test_the_default_dtype_shows():
    before = code_print(Net())
    try:
        torch.set_default_dtype(torch.float64)
        net = Net()
    finally:
        torch.set_default_dtype(torch.float32)
    assert code_print(net.float()) == before
    try:
        torch.set_default_dtype(torch.float64)
        assert code_print(net) != before
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(
    "value",
    [threading.Lock(), nn.Linear(2, 2), (each for each in ""), torch.zeros(1 << 15), torch.Generator(), [].append],
    ids=["lock", "unregistered", "generator", "large", "rng", "bound"],
)
def test_what_cannot_be_told_makes_it_empty(value):
    """State that cannot be seen, modules that are registered nowhere, large tensors that are no weights."""
    net = Net()
    net.setting.more = [value]
    assert code_print(net) == ""


def test_scripted_and_endless_things_make_it_empty():
    net = Net()
    net.scripted = torch.jit.script(nn.Linear(2, 2))
    assert code_print(net) == ""
    net = Net()
    for _ in range(5000):
        net.sizes = [net.sizes]
    assert code_print(net) == ""
    net = Net()
    net.sizes = [[] for _ in range(100_001)]
    assert code_print(net) == ""


def test_things_that_hold_each_other():
    """A cycle ends."""
    net = Net()
    net.setting.net, net.setting.me = net, net.setting
    assert code_print(net) not in {"", code_print(Net())}


def test_a_changed_file_shows(tmp_path: Path, monkeypatch):
    """Also the file of a function that is only called: what is installed nowhere may be anything."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "tt_some_helper", raising=False)
    before = code_print(Net())
    file = tmp_path / "tt_some_helper.py"
    file.write_text("def helped(x):\n    return x\n")
    importlib.import_module("tt_some_helper")
    there = code_print(Net())
    file.write_text("def helped(x):\n    return x + 1\n")
    changed = code_print(Net())
    file.unlink()
    assert len({before, there, changed, code_print(Net())}) == 4
    monkeypatch.delitem(sys.modules, "tt_some_helper")


def test_the_same_in_another_process(tmp_path: Path):
    """Whatever the seed of its hashes is."""
    script = tmp_path / "script.py"
    script.write_text(
        "from torch import nn\nfrom tt_core.flat import code_print\n"
        "class Net(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.names = {'a', 'b', 'c', 'd'}\n"
        "    def forward(self, x):\n        return x if 'a' in {'a', 'e', 'f'} else x + 1\n"
        "print(code_print(Net()))\n"
    )
    said = {
        subprocess.run(
            [sys.executable, script],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1
    assert said != {"\n"}
