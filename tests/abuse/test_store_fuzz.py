"""Mutated files: refused with a StoreError, or harmless. No process, no file outside, no import, no foreign code."""

from __future__ import annotations

import copy
import json
import os
import random
import struct
import sys
import tempfile
from pathlib import Path

import coverage
import pytest
import torch
from torch import nn

import tt_core as tt
from tt_core import store
from tt_core.plugins import Plugins
from tt_core.store import container, fit, head, seal
from tt_core.testing.fakes import Bench, FakeBackend, FakeLayer
from tt_core.testing.stored import StoredBackend, coded

pytestmark = [pytest.mark.abuse, pytest.mark.timeout(3000), pytest.mark.filterwarnings("ignore")]

MEASURED = 5_000
"""Files for which branches are counted, which takes more time than reading them."""
FILES = 20_000
READER = ("container.py", "head.py", "recognise.py", "reader.py", "structure.py", "fit.py", "load.py")
BRANCHES = 0.95
ROOT = Path(store.__file__).parent
OTHER_KEY = bytes(range(32))
OLD = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
EVIL = "__import__('os').system('touch evil')"


class Part(nn.Module):
    def __init__(self, bench, seed):
        super().__init__()
        self.layer, self.gain = FakeLayer(bench, size=2, seed=seed), 1.5

    def forward(self, x, scale=2, *rest, mode="plain", **more):
        return self.layer(x) * scale * self.gain


class Model(nn.Module):
    def __init__(self, bench):
        super().__init__()
        self.a, self.b, self.c = Part(bench, 1), Part(bench, 2), Part(bench, 3)
        self.b.register_buffer("mark", torch.zeros(1))
        self.c.register_buffer("mark", torch.zeros(2))

    def forward(self, x):
        return self.c(self.b(self.a(x, 3, mode="other"), flag=1.5))


class World:
    """A model, the backends, and the files that are mutated."""

    def __init__(self, folder):
        self.folder = folder
        self.bench = Bench()
        self.data = StoredBackend(self.bench, files={"0/more.bin": bytes(range(200)), "empty": b""}, capturable=True)
        self.code = coded(self.bench, dumped={"sizes": [1, 2], "deep": {"er": [None]}})
        self.layer = StoredBackend(self.bench, "layer", layer=True)
        self.plain = FakeBackend(self.bench, "plain")
        self.poor, self.absent = (
            FakeBackend(self.bench, "poor", keeps=()),
            FakeBackend(self.bench, "absent", devices={"npu"}),
        )
        self.all = (self.bench, self.data, self.code, self.layer, self.plain, self.poor, self.absent)
        self.settings = tt.Settings(plugins=self.all, unit_race_s=0.01, pass_race_s=0.01)
        self.plugins = Plugins.load(extra=self.all)
        self.samples = [torch.linspace(-1, 1, 2 * rows).reshape(rows, 2) for rows in (2, 5)]
        self.obj = Model(self.bench).eval()
        self.weights = {name: value.clone() for name, value in self.obj.state_dict().items()}
        self.vars = [dict(vars(module)) for module in self.obj.modules()]
        self.files = [self.saved(n, *one) for n, one in enumerate(self.tunings())]

    def tunings(self):
        yield {"a": "data", "b": "coded", "c": "data+layer"}, False
        yield {"a": "plain", "b": "layer", "c": "data"}, True
        yield {}, False

    def saved(self, number, strategies, weights):
        path = self.folder / f"{number}.tt"
        obj = Model(self.bench).eval()
        if strategies:
            chosen = {unit: tt.OneBackendStrategy(name) for unit, name in strategies.items()}
            data = [*self.samples, torch.ones(3, 2)]
            tt.tune(obj, data, units=list(strategies), strategies=chosen, settings=self.settings, progress=False)
            assert set(tt.stats(obj)) == set(strategies)
        tt.save(obj, path, weights=weights, settings=self.settings)
        with container.opened(path, seal.own_key()) as box:
            payloads = []
            for index, payload in enumerate(box.payloads):
                box.copy(index, self.folder / "payload")
                payloads.append(((self.folder / "payload").read_bytes(), payload.kind))
                (self.folder / "payload").unlink()
            return path.read_bytes(), box.manifest, payloads

    def pristine(self):
        """The object as it was, whatever was loaded onto it."""
        tt.untune(self.obj)
        with torch.no_grad():
            for name, value in self.obj.state_dict().items():
                value.copy_(self.weights[name])
        assert [dict(vars(module)) for module in self.obj.modules()] == self.vars


VALUES = [
    None, True, False, 0, 1, -1, 2, 3, 2**31, 2**53, 2**63 - 1, 2**63, -(2**64), 10**400, 0.0, -0.0, 0.5, 1e12, 1e308, -1.5,
    "", "a", "x", "layer", "eager", "data", "coded", "data+layer", "cpu", "cuda:0", "meta", "float32", "int64", "Tensor",
    "../../evil", "/evil", "a/../../evil", "a//b", ".", "..", "CON", "program.json", "program.json/a", "x" * 2000, "\ud800",
    "\x00", "a\nb", "os:system", "builtins:eval", "subprocess:Popen", "posixpath:join", "antigravity:x", EVIL, f"x if {EVIL} else x",
    "torch.nn.modules.linear:Linear", "torch:Tensor", "collections:OrderedDict", "0x1.0p+0", "nan", "inf", "VALUES", "LIVE", "weights",
    [], {}, [[]], [{}], {"a": 1}, [1, 2], ["a", "b"], [["a", 0]], [None] * 50, {"tuple": []}, {"dict": [["x", None]]},
    {"dict": [[EVIL, {"tensor": "float32", "rank": 2, "device": "cpu"}]]}, {"node": "os:system", "context": [], "items": []},
    {"dataclass": "builtins:int", "items": []}, {"namedtuple": "builtins:tuple", "items": []}, {"float": "nan"}, {"float": "0x1.8p+1"},
    {"bytes": "00ff"}, {"str": {"blake2b": "00", "length": 99}}, {"numpy": ["<f4", "00000000"]}, {"slice": [None, 1, None]},
    "plain", "poor", "absent", "nobody", "0" * 32, {"random": True}, {"non_tensors": True, "tied": True}, {"dict": [[5, None]]},
    {"writes_inputs": True}, {"writes_state": ["x"]}, [{"backend": "poor"}], [{"backend": "absent"}], [{"backend": "plain"}],
    {"lo": 0, "hi": 2**60, "symbol": "s0"}, {"lo": 1, "hi": 3, "symbol": EVIL}, {"lo": 5, "hi": 1, "symbol": "s"}, {"scale": 3.0},
]  # fmt: skip


def nodes(form, path=()):
    """Every place in a JSON value."""
    if path:
        yield path
    items = form.items() if isinstance(form, dict) else enumerate(form) if isinstance(form, list) else ()
    for key, value in list(items):
        yield from nodes(value, (*path, key))


def at(form, path):
    for key in path:
        form = form[key]
    return form


def descent(form, rng):
    """A place on the way down: every field of a level as likely as its neighbours, whatever it holds."""
    path = ()
    while True:
        below = list(form) if isinstance(form, dict) else list(range(len(form))) if isinstance(form, list) else []
        if not below or (path and rng.random() < 0.15):
            return path
        path = (*path, rng.choice(below))
        form = form[path[-1]]


def edited(form, rng):
    """A manifest with one place edited."""
    places = list(nodes(form))
    path = rng.choice(places) if rng.random() < 0.2 else descent(form, rng)
    parent, key = at(form, path[:-1]), path[-1]
    how = rng.randrange(8)
    if how == 0:
        del parent[key]
    elif how == 1 and isinstance(parent, list):
        parent.append(copy.deepcopy(parent[key]))
    elif how == 2 and isinstance(parent, dict):
        parent[rng.choice(["extra", EVIL, "kind", key + "x" if isinstance(key, str) else "x"])] = parent.pop(key)
    elif how == 3:
        parent[key] = copy.deepcopy(at(form, rng.choice(places)))
    elif how == 4 and isinstance(parent, list):
        rng.shuffle(parent)
    elif how == 5 and isinstance(parent[key], int):
        parent[key] = parent[key] + rng.choice([-1, 1, 7])
    else:
        parent[key] = copy.deepcopy(rng.choice(VALUES))
    return form


def payload(content, rng):
    """A payload with something else in it."""
    how = rng.randrange(6)
    if how == 0:
        return flipped(content, rng)
    if how == 1:
        return content[: rng.randrange(len(content) + 1)]
    if how == 2:
        return content + os.urandom(0) + rng.randbytes(rng.randrange(1, 90))
    if how == 3:
        scale = rng.choice(["1.0", "3.0", "NaN", '"x"', "null", "1e999", "[1]", "-1.0"])
        return b'{"scale": %b}' % scale.encode()
    return b"" if how == 4 else rng.randbytes(rng.randrange(200))


def flipped(content, rng):
    found = bytearray(content)
    for _ in range(rng.randrange(1, 4) if found else 0):
        found[rng.randrange(len(found))] ^= 1 << rng.randrange(8)
    return bytes(found)


def raw(content, rng):  # noqa: PLR0911  one line a way to break it
    """A file broken without care for hashes."""
    how = rng.randrange(9)
    if how <= 2:
        return flipped(content, rng)
    if how == 3:
        return content[: rng.randrange(len(content))]
    if how == 4:
        return content + rng.randbytes(rng.randrange(1, 100))
    if how == 5:
        a, b = sorted(rng.randrange(len(content)) for _ in range(2))
        return content[:a] + content[b:] + content[a:b]
    if how == 6:
        lie = rng.choice([0, 1, 15, 2**20, 2**31, 2**63, 2**64 - 1, len(content)])
        return content[:8] + struct.pack("<Q", lie) + content[16:]
    if how == 7:
        start = rng.choice(
            [
                b"PK\x03\x04",
                b"\x80\x04",
                b"{",
                b"",
                b"TTCORE\x00\x02",
                b"TTCORE\x00\x00",
                b"text",
                b"\x00" * 8,
                b"(",
                b"PK\x03\x04" + bytes(26) + b"archive/data.pkl",
                OLD,
                bytes([64] + [0] * 7) + b"{}",
            ]
        )
        return start + content[len(start) :] if rng.random() < 0.5 else start
    at_ = rng.randrange(16, len(content))
    return content[:at_] + bytes(len(content[at_ : at_ + 64])) + content[at_ + 64 :]


def lying(form, rng):
    """A table that does not say the truth about sizes, offsets, hashes and kinds."""
    rows = form["payloads"]
    if not rows:
        return form
    row = rng.choice(rows)
    name = rng.choice(["offset", "size", "sha256", "kind"])
    row[name] = rng.choice(["data", "code", "weights", "0" * 64]) if name in {"kind", "sha256"} else row[name] + rng.choice(
        [-64, -1, 1, 64, 2**40, 2**62]
    )  # fmt: skip
    return form


def text_of(form, rng):
    """The manifest's bytes; now and then no JSON that json would write."""
    text = json.dumps(form, separators=(",", ":"))
    how = rng.randrange(40)
    if how == 0:
        return text.replace(":1,", ":1e999,", 1).encode()
    if how == 1:
        return (
            text.replace(":", ":NaN,", 1).replace("NaN,", "NaN", 1).encode() if rng.random() < 0.5 else b"[" * 100_000
        )
    if how == 2:
        return (text[:-1] + "," + text[1:]).encode()  # everything twice
    if how == 3:
        return b'{"kind":"tt_core model","format":1,"payloads":' + b"[" * 200 + b"]" * 200 + b"}"
    return flipped(text.encode(), rng) if how == 4 else text.encode("utf-8", "surrogatepass")


def built(form, payloads, rng, key, *, lie):
    """A file of a manifest and payloads, its hashes and table right unless `lie`; sealed with `key`."""
    import hashlib
    import hmac

    rows, body, end = [], b"", 0
    for content, kind in payloads:
        rows.append({"offset": end, "size": len(content), "sha256": hashlib.sha256(content).hexdigest(), "kind": kind})
        body += content + bytes(head.aligned(len(content)) - len(content))
        end = len(body)
    if isinstance(form, dict):
        form["payloads"] = rows
        if lie:
            form = lying(form, rng)
    text = text_of(form, rng)
    start = head.MAGIC + struct.pack("<Q", len(text)) + text
    whole = start + bytes(head.aligned(len(start)) - len(start)) + body
    return whole if key is None else whole + container.MARK + hmac.digest(key, whole, "sha256")


def mutant(world, rng):
    """A broken file, and whether it carries this user's seal."""
    content, form, payloads = rng.choices(world.files, weights=(10, 8, 1))[0]
    if rng.random() < 0.5:
        found = raw(content, rng)
        return found, found == content
    form, payloads = copy.deepcopy(form), list(payloads)
    if form["records"] and rng.random() < 0.1:
        step = rng.choice(rng.choice(form["records"])["candidate"])
        step["backend"] = rng.choice(["data", "coded", "plain", "layer", "poor", "absent", "nobody", "eager"])
    if form["records"] and rng.random() < 0.05:
        name = rng.choice(["random", "non_tensors", "aliases", "writes_inputs"])
        rng.choice(form["records"])["facts"][name] = True
    for _ in range(rng.choices((0, 1, 2, 3), weights=(2, 10, 3, 1))[0]):
        form = edited(form, rng)
    if payloads and rng.random() < 0.3:
        index = rng.randrange(len(payloads))
        other = rng.choice(payloads)[0]
        payloads[index] = (other if rng.random() < 0.3 else payload(payloads[index][0], rng), payloads[index][1])
    key = rng.choice([None, None, OTHER_KEY, seal.own_key()])
    return built(form, payloads, rng, key, lie=rng.random() < 0.1), key == seal.own_key()


class Watcher:
    """Notes what must not happen while it is on."""

    NEVER = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty", "socket.",
             "pickle.find_class", "ctypes.dlopen", "shutil.", "urllib.", "ftplib.", "webbrowser.")  # fmt: skip
    WRITES = (
        "os.mkdir",
        "os.rename",
        "os.link",
        "os.symlink",
        "os.truncate",
        "os.chown",
        "os.remove",
        "os.rmdir",
        "os.chmod",
    )

    def __init__(self, folder):
        self.folder, self.on, self.found = str(folder), False, []
        sys.addaudithook(self)

    def __call__(self, event, args):
        if not self.on:
            return
        if event == "shutil.rmtree":
            self.inside(event, args[0])
        elif event.startswith(self.NEVER):
            self.found.append((event, args))
        elif event in self.WRITES:
            if len(args) < 2 or args[-1] == -1 or event == "os.rename":  # relative to a folder: rmtree's own
                self.inside(event, args[0])
        elif event == "open" and len(args) > 2 and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            self.inside(event, args[0])

    def inside(self, event, path):
        if isinstance(path, str | bytes | os.PathLike) and not os.path.realpath(os.fsdecode(path)).startswith(
            self.folder
        ):
            self.found.append((event, path))


@pytest.fixture
def world(tmp_path, monkeypatch):
    monkeypatch.setenv("TT_DISABLE_AUTOLOAD", "1")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    now = fit.environment(torch.device("cpu"))  # asks every installed package: not 20,000 times
    monkeypatch.setattr(fit, "environment", lambda _: now)
    return World(tmp_path)


def attempt(world, path, options):
    """Loads; True where it was refused. What is installed must be right."""
    try:
        report = store.load(
            world.obj, path, plugins=world.plugins, loading=store.Loading(device=torch.device("cpu"), **options)
        )
    except tt.StoreError as error:
        text = str(error)
    else:
        text = ""
    if text:
        assert tt.stats(world.obj) == {}
        assert text.startswith(str(path))
        assert "Traceback" not in text
        return True
    compared = not any("not compared" in line.note or "not called" in line.note for line in report.lines)
    with torch.no_grad():
        results = [world.obj(sample) for sample in world.samples]
        tt.untune(world.obj)
        if compared:
            for result, sample in zip(results, world.samples, strict=True):
                torch.testing.assert_close(result, world.obj(sample), rtol=1e-3, atol=1e-3, equal_nan=True)
    return False


def copied_all(box, path):
    for index in range(len(box.payloads)):
        box.copy(index, path.with_name(f"copy{index}"))


def changing(world, path):
    """Files that change while they are read: a payload, and the end."""
    for content in (lambda whole: whole.replace(b'"scale": 1.0', b'"scale": 2.0'), lambda whole: whole[:1000]):
        path.write_bytes(world.files[0][0])
        with container.opened(path, None) as box:
            path.write_bytes(content(world.files[0][0]))
            with pytest.raises(tt.StoreError, match=r"while .* was read"):
                copied_all(box, path)
        for copied in path.parent.glob("copy*"):
            copied.unlink()


def test_mutated_files(world, tmp_path):
    """20,000 of them, half re-hashed, half of those resealed: the reader's branches are all but all reached."""
    rng, path, watcher = random.Random(0), tmp_path / "mutant.tt", Watcher(tmp_path)
    refused = 0
    cover = coverage.Coverage(branch=True, data_file=None, include=[str(ROOT / name) for name in READER])
    for attempt_ in ({"strict": True}, {"strict": False, "trust": True, "rebuild": True}):
        path.write_bytes(world.files[0][0])  # everything that is imported on first use
        attempt(world, path, attempt_)
    modules = set(sys.modules)
    cover.start()
    try:
        changing(world, path)
        for number in range(FILES):
            if number == MEASURED:
                cover.stop()
            content, own = mutant(world, rng)
            path.write_bytes(content)
            options = {"strict": rng.random() < 0.5, "trust": rng.random() < 0.1, "rebuild": rng.random() < 0.3}
            world.code.opened.clear()
            watcher.on = True
            try:
                refused += attempt(world, path, options)
            except BaseException:
                (tmp_path / "failed.tt").write_bytes(content)
                print(f"file {number}, {options}")
                raise
            finally:
                watcher.on = False
            assert watcher.found == [], number
            assert own or options["trust"] or not world.code.opened, number
            world.pristine()
            assert not any((tmp_path / "tmp").iterdir()), number
    finally:
        cover.stop()
    assert {name for name in set(sys.modules) - modules if not name.startswith(("torch", "$coverage"))} == set()
    assert not (tmp_path / "evil").exists()
    assert 0.5 < refused / FILES < 0.99
    assert branches(cover, tmp_path) >= BRANCHES


def branches(cover, folder) -> float:
    """The share of the reader's branches that were taken."""
    cover.json_report(outfile=str(folder / "coverage.json"))
    found = json.loads((folder / "coverage.json").read_text("utf-8"))
    for name, file in found["files"].items():
        print(name, file["summary"]["covered_branches"], file["summary"]["num_branches"], file["missing_branches"])
    return found["totals"]["covered_branches"] / found["totals"]["num_branches"]
