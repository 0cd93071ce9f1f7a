"""What does not fit is refused whole with a sentence of its own, or left in eager with it; nothing of it is opened."""

from __future__ import annotations

import pickle
import struct
import zipfile

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import tt_core as tt
from tt_core.store import fit, head, machine, seal
from tt_core.testing.fakes import FakeBackend, FakeLayer
from tt_core.testing.stored import StoredBackend, coded


@pytest.fixture
def file(tmp_path):
    return tmp_path / "model.tt"


@pytest.fixture
def saved(data, tuned, plugged, file):
    tt.save(tuned(data), file, settings=plugged(data))
    return file


@pytest.fixture
def refused(data, fresh, plugged, saved):
    """Loads, expects a refusal, and that nothing was opened or changed; the same not strict gives the sentence."""

    def check(match, obj=None, plugin=data, **options):
        obj = fresh() if obj is None else obj
        before = [dict(vars(module)) for module in obj.modules()]
        settings = plugged(plugin) if plugin is not None else plugged()
        with pytest.raises(tt.StoreError, match=match) as caught:
            tt.load(obj, saved, settings=settings, **options)
        report = tt.load(obj, saved, strict=False, settings=settings, **options)
        assert report.installed == ()
        assert [dict(vars(module)) for module in obj.modules()] == before
        assert data.opened == []
        return str(caught.value)

    return check


def test_another_architecture(refused, bench):
    """A unit that is not there, a unit of another class."""
    text = refused(
        r"no module of that name, which was a Block: load into an object of the same", nn.Linear(2, 2).eval()
    )
    assert "strict=False installs what fits" in text
    assert "(1 more like this)" in text
    other = nn.Module()
    other.blocks = nn.ModuleList([FakeLayer(bench), FakeLayer(bench)])
    refused("it is a FakeLayer, and was a Block", other.eval())


def test_another_module_inside(refused, fresh):
    """The same class with another module inside."""
    obj = fresh()
    obj.blocks[0].first.extra = nn.ReLU()
    obj.blocks[1].first.extra = nn.ReLU()
    refused("it has a module 'first.extra' that was not there", obj.eval())
    other = fresh()
    for block in other.blocks:
        del block.first
    refused("it has no module 'first'", other)
    third = fresh()
    for block in third.blocks:
        block.first = nn.Identity().eval()
    refused("its 'first' is a Identity, and was a FakeLayer", third)


def test_other_shapes(refused, fresh, bench):
    """Another size, another dtype, a missing tensor."""
    obj = fresh()
    for block in obj.blocks:
        block.first = FakeLayer(bench, size=8).eval()
    refused(r"its tensor 'first.bias' is float32 \(8,\), and was float32 \(4,\)", obj)
    refused(r"is float64 \(4,\), and was float32", fresh().double())
    third = fresh()
    for block in third.blocks:
        block.first.register_buffer("more", torch.zeros(1))
    refused(r"its tensor 'first.more' is float32 \(1,\), and was not there", third)


def test_other_settings(refused, fresh):
    """A number that the constructor takes, and that no weight shows."""
    obj = fresh()
    for block in obj.blocks:
        block.gain = 1.5
    refused(r"its setting 'gain' is 1.5, and was 1.0: construct the object with the settings", obj)


def test_other_weights(refused, fresh):
    """One number of one weight."""
    obj = fresh()
    with torch.no_grad():
        for block in obj.blocks:
            block.first.weight[0, 0] += 1e-6
    refused("its weights are not those that it was tuned with: load these first; rebuild=True builds it here", obj)


def test_another_mode(refused, fresh):
    """An object that nobody called eval on, and one with a part in another mode."""
    refused(r"it is not in eval mode, as it was when it was tuned: call .eval\(\) first", fresh().train())
    obj = fresh()
    for block in obj.blocks:
        block.first.train()
    refused(r"its 'first' is not in eval mode", obj)


@pytest.mark.parametrize(
    ("name", "value", "match"),
    [
        ("torch", "1.0", r"it was made with torch .*, this is 1.0: install torch"),
        ("python", "2.7.1", r"it was made with Python 3\.\d+, this is 2.7: run it with Python 3"),
        ("system", "Plan9 pdp11", "this is Plan9 pdp11: tune on a system like this"),
        ("cpu", "MMX", "made for a processor with .*, this one has MMX: tune on a processor like this"),
        ("accelerator", "Abacus", "made for no known one, this is Abacus: tune on a device like this"),
        ("device", "cuda:0", "it was made on cpu, and the object is on cuda: move the object"),
    ],
)
def test_another_environment(refused, monkeypatch, name, value, match):
    """Versions, system, processor and device."""
    real = fit.environment
    monkeypatch.setattr(fit, "environment", lambda device: {**real(device), name: value})
    refused(match)


def test_code_for_another_processor(bench, tuned, fresh, plugged, file, monkeypatch):
    """Code whose processor had instructions that this one lacks is not opened, sealed or not; data is."""
    plugin, data = coded(bench), StoredBackend(bench)
    tt.save(tuned(plugin), file, settings=plugged(plugin))
    tt.save(tuned(data), file.with_name("data.tt"), settings=plugged(data))
    monkeypatch.setattr(machine, "flags", lambda: ("fpu",))
    with pytest.raises(tt.StoreError, match=r"code for a processor with .*, which this one lacks"):
        tt.load(fresh(), file, trust=True, settings=plugged(plugin))
    assert plugin.opened == []
    tt.load(fresh(), file.with_name("data.tt"), settings=plugged(data))


def test_another_plugin_version(refused, monkeypatch):
    """The plugin's own version."""
    monkeypatch.setattr("tt_core.plugins.Plugins.version", lambda _, name: f"tt-{name} 9")
    refused("it was made with an unpackaged plugin, this is tt-data 9: install that one")


def test_a_missing_backend(refused, bench, monkeypatch):
    """Not known, disabled, not for this device."""
    refused("backend 'data' is not known here: install its plugin", plugin=None)
    refused("backend 'data' cannot be used: runs on npu, not on cpu", plugin=StoredBackend(bench, devices={"npu"}))

    monkeypatch.setenv("TT_DISABLE_BACKENDS", "data")
    refused("backend 'data' cannot be used: disabled by TT_DISABLE_BACKENDS")


class Absent(StoredBackend):
    """A backend that cannot build here."""

    @tt.hookimpl
    def tt_probe(self):
        return tt.Unavailable(reason="its compiler is missing", hint="apt install one")


def test_a_backend_that_cannot_build_may_load(bench, data, fresh, plugged, saved, same):
    """What is stored needs no compiler; what would have to be built is refused with the probe's sentence."""
    absent, obj = Absent(bench), fresh()
    assert tt.load(obj, saved, settings=plugged(absent)).installed == ("blocks.0", "blocks.1")
    assert same(obj, fresh()) == 6
    with torch.no_grad():
        obj.blocks[0].first.weight.add_(1)
    with pytest.raises(
        tt.StoreError, match=r"not those that it was tuned with.*: its compiler is missing. apt install"
    ):
        tt.load(obj, saved, rebuild=True, settings=plugged(absent))

    class Worse(Absent):
        @tt.hookimpl
        def tt_restore(self):
            raise ModuleNotFoundError("No module named 'runtime'")

    with pytest.raises(tt.StoreError, match="No module named 'runtime'; backend 'data' cannot be used: its compiler"):
        tt.load(fresh(), saved, settings=plugged(Worse(bench)))


def test_a_missing_backend_without_payload(bench, data, tuned, fresh, plugged, file):
    """What has to be built needs a backend that can."""
    data.silent = True
    tt.save(tuned(data), file, settings=plugged(data))
    with pytest.raises(tt.StoreError, match=r"backend 'data' cannot be used: its compiler is missing. apt install one"):
        tt.load(fresh(), file, settings=plugged(Absent(bench)))


def test_a_backend_that_reads_nothing_any_more(refused, bench):
    """A version of the backend that has no payloads."""
    refused("backend 'data' of this version reads no payloads", plugin=FakeBackend(bench, "data"))


def test_a_backend_that_lost_an_ability(bench, tuned, fresh, plugged, file):
    """A unit that needs what the backend no longer keeps."""

    class Many(nn.Module):
        def __init__(self, bench):
            super().__init__()
            self.layer = FakeLayer(bench)

        def forward(self, x):
            return self.layer(x), "word"

    plugin, poor = StoredBackend(bench, devices={"*"}), StoredBackend(bench, keeps=frozenset())
    tt.save(tuned(plugin, units=0, kind=Many), file, settings=plugged(plugin))
    with pytest.raises(tt.StoreError, match="data does not keep results that are not tensors"):
        tt.load(fresh(Many), file, settings=plugged(poor))


def test_another_signature(refused, fresh):
    """A forward with another parameter, one of another name."""

    class Block(nn.Module):
        def forward(self, y, scale=2, mask=None):
            return y

    obj = fresh()
    for block in obj.blocks:
        block.__class__ = Block
    Block.__qualname__ = "Block"
    refused("it was tuned for a forward with other parameters", obj)


def test_rebuild_cures(data, fresh, plugged, saved, same):
    """Other weights: rebuild=True builds for these."""
    obj, plain = fresh(), fresh()
    with torch.no_grad():
        for each in (obj, plain):
            each.blocks[0].first.weight.add_(0.1)
    report = tt.load(obj, saved, rebuild=True, settings=plugged(data))
    assert [line.how for line in report.lines] == ["rebuilt", "restored"]
    assert "its weights are not those" in report.lines[0].note
    assert data.opened == ["blocks.1"]
    assert same(obj, plain) == 6


def test_a_restore_that_fails(bench, data, fresh, plugged, saved, same):
    """The plugin's own refusal: strict says it, not strict runs eager, rebuild builds."""

    class Picky(StoredBackend):
        @tt.hookimpl
        def tt_restore(self):
            raise tt.BuildRefusedError("its grammar changed", "tune again")

    picky = Picky(bench)
    with pytest.raises(tt.StoreError, match=r"data: its grammar changed \(tune again\); strict=False"):
        tt.load(fresh(), saved, settings=plugged(picky))
    assert len(tt.load(fresh(), saved, strict=False, settings=plugged(picky)).eager) == 2
    obj = fresh()
    report = tt.load(obj, saved, rebuild=True, settings=plugged(picky))
    assert [line.how for line in report.lines] == ["rebuilt", "rebuilt"]
    assert "its grammar changed" in report.lines[0].note
    assert same(obj, fresh()) == 6


def test_nothing_is_left_open_by_a_refusal(bench, data, fresh, plugged, saved):
    """The second unit's restore fails: the first one's built is closed."""

    class Second(StoredBackend):
        @tt.hookimpl
        def tt_restore(self, unit, key, covers, dumped, folder, inner):
            if unit.path == "blocks.1":
                raise RuntimeError("no")
            return super().tt_restore(unit, key, covers, dumped, folder, inner)

    plugin = Second(bench)
    with pytest.raises(tt.StoreError, match="no"):
        tt.load(fresh(), saved, settings=plugged(plugin))
    assert plugin.log == [("restore", "blocks.0"), ("close", "blocks.0")]
    obj = fresh()
    assert tt.load(obj, saved, strict=False, settings=plugged(plugin)).installed == ("blocks.0",)
    assert set(tt.stats(obj)) == {"blocks.0"}


# what is no file of ours


def torch_zip(path):
    torch.save({"a": torch.ones(3)}, path)


def torch_old(path):
    torch.save({"a": torch.ones(3)}, path, _use_new_zipfile_serialization=False)


def pickle_of(protocol):
    def write(path):
        path.write_bytes(pickle.dumps({"a": [1, 2], "b": "text"}, protocol=protocol))

    return write


def archive(path):
    with zipfile.ZipFile(path, "w") as made:
        made.writestr("readme.txt", "hello")


def tensors(path):
    save_file({"a": torch.ones(3)}, path)


@pytest.mark.parametrize(
    ("write", "match"),
    [
        (torch_zip, r"it is a PyTorch checkpoint \(torch.save\), which holds a pickle"),
        (torch_old, "it is a PyTorch checkpoint of the old kind, which is a pickle"),
        *[(pickle_of(protocol), "it is a pickle, which can run anything") for protocol in range(6)],
        (lambda path: path.write_bytes(b"cos\nsystem\n(S'false'\ntR."), "it is a pickle"),
        (archive, "it is a zip archive"),
        (tensors, "it is a safetensors file, which holds weights only"),
        (lambda path: path.write_text('{"kind": "tt_core plan"}'), "it is a JSON text: a plan goes to tt.apply"),
        (lambda path: path.write_text("To whom it may concern: é"), "it is a text"),
        (lambda path: path.write_bytes(b"\x7fELF\x02\x01\x01\xff\xfe\x00"), "it is of no known kind"),
        (lambda path: path.write_bytes(b""), "the file is empty"),
        (lambda path: path.write_bytes(b"TTCORE\x00\x00"), "its first bytes are damaged"),
        (lambda path: path.write_bytes(b"TTCORE\x00\x01"), "its manifest is said to have 0 bytes"),
        (lambda path: path.write_bytes(b"TTCORE\x00\x01" + struct.pack("<Q", 1 << 63)), "its manifest is said to have"),
        (
            lambda path: path.write_bytes(b"TTCORE\x00\x02" + bytes(80)),
            "its layout is 2, and this tt_core reads up to 1",
        ),
    ],
)
def test_other_files(fresh, file, write, match):
    """Recognised by its first bytes, each with its sentence."""
    write(file)
    with pytest.raises(tt.StoreError, match=match) as caught:
        tt.load(fresh(), file)
    assert str(caught.value).startswith(f"{file} was not loaded: ")


def test_places_that_are_no_files(fresh, tmp_path, file):
    """A folder, a pipe, a device, nothing, and a name with a zero byte: none of them waits or reads."""
    import os

    os.mkfifo(tmp_path / "pipe")
    for path, match in [
        (tmp_path, "it is no plain file"),
        (tmp_path / "pipe", "it is no plain file"),
        ("/dev/zero", "it is no plain file"),
        (tmp_path / "missing", "cannot be opened: No such file"),
        ("a\x00b", "cannot be opened"),
    ]:
        with pytest.raises(tt.StoreError, match=match):
            tt.load(fresh(), path)
    with pytest.raises(OSError):  # also the kind of error that a caller of open() expects
        tt.load(fresh(), tmp_path / "missing")
    with pytest.raises(tt.UsageError, match=r"a text or pathlib.Path"):
        tt.load(fresh(), os.fsencode(file))


def test_a_newer_format(data, fresh, plugged, tuned, file, monkeypatch):
    """Both numbers, and what to do."""
    monkeypatch.setattr("tt_core.store.write.FORMAT", 2)
    tt.save(tuned(data), file, settings=plugged(data))
    with pytest.raises(tt.StoreError, match="its format is 2, and this tt_core reads up to 1: update tt-core"):
        tt.load(fresh(), file, settings=plugged(data))
    assert head.FORMAT == 1


def test_damage(data, fresh, plugged, saved):
    """One bit of a payload, a byte too few, a byte too many, a byte between payloads."""
    whole = saved.read_bytes()
    at = whole.index(b'{"scale": 1.0}')
    for wrong, match in [
        (whole[:at] + b"[" + whole[at + 1 :], "the hash of payload 0 is not the one in its table"),
        (whole[:-1], "its table speaks of"),
        (whole + b"\x00", "its table speaks of"),
        (whole[: at + 14] + b"\x01" + whole[at + 15 :], "there are bytes between its payloads"),
        (whole[:-40] + b"TTSEAL\x00\x02" + whole[-32:], "what follows its payloads is no seal"),
    ]:
        saved.write_bytes(wrong)
        with pytest.raises(tt.StoreError, match=match):
            tt.load(fresh(), saved, settings=plugged(data))
    assert data.opened == []


def test_a_seal_is_only_needed_for_code(data, fresh, plugged, saved, same):
    """Data without a seal, and data with the wrong one, load."""
    whole = saved.read_bytes()
    for content in (whole[:-40], whole[:-1] + bytes([whole[-1] ^ 1])):
        saved.write_bytes(content)
        obj = fresh()
        report = tt.load(obj, saved, settings=plugged(data))
        assert not report.sealed
        assert same(obj, fresh()) == 6
    assert seal.own_key() is not None
