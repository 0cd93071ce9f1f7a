"""Saved, and loaded on a fresh object: same results, nothing built, everything as after tuning."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
import torch
from torch import nn

import tt_core as tt
from tt_core.store.fit import _moved
from tt_core.testing.fakes import FakeBackend, FakeLayer
from tt_core.testing.stored import StoredBackend, coded


@pytest.fixture
def file(tmp_path):
    return tmp_path / "model.tt"


def test_loads_without_building(data, tuned, fresh, plugged, same, file):
    """Same results, no build, warm, and all calls served."""
    saved = tt.save(tuned(data), file, settings=plugged(data))
    assert [line.how for line in saved.lines] == ["stored", "stored"]
    assert saved.size == file.stat().st_size
    obj, built = fresh(), data.count("build")
    report = tt.load(obj, file, settings=plugged(data))
    assert report.installed == ("blocks.0", "blocks.1")
    assert [line.how for line in report.lines] == ["restored", "restored"]
    assert data.count("build") == built
    assert same(obj, fresh()) == 6
    assert str(report).count("restored") == 2
    assert "stored" in str(saved)


def test_a_loaded_object_answers_like_a_tuned_one(data, tuned, fresh, plugged, file):
    """stats, stale and untune work; untune puts the very forwards back and closes."""
    tt.save(tuned(data), file, settings=plugged(data))
    obj = fresh()
    before = [dict(vars(module)) for module in obj.modules()]
    tt.load(obj, file, settings=plugged(data))
    assert set(tt.stats(obj)) == {"blocks.0", "blocks.1"}
    assert tt.stale(obj) == ()
    open_ = data.open
    assert tt.untune(obj) == ("blocks.0", "blocks.1")
    assert data.open == open_ - 2
    assert [dict(vars(module)) for module in obj.modules()] == before


def test_load_save_load(data, tuned, fresh, plugged, same, file, tmp_path):
    """What was loaded is saved as the very same bytes, and loads again."""
    tt.save(tuned(data), file, settings=plugged(data))
    second, third = fresh(), fresh()
    tt.load(second, file, settings=plugged(data))
    tt.save(second, tmp_path / "again.tt", settings=plugged(data))
    assert (tmp_path / "again.tt").read_bytes() == file.read_bytes()
    tt.load(third, tmp_path / "again.tt", settings=plugged(data))
    assert same(third, fresh()) == 6


def test_twins_share_their_payload(data, tuned, plugged, file, bench, fresh):
    """Two units that dump the same bytes: one payload."""
    tt.save(tuned(data), file, settings=plugged(data))
    assert file.read_bytes().count(b'{"scale": 1.0}') == 1


def test_a_file_is_private_and_replaced_as_a_whole(data, tuned, plugged, file):
    """Mode 0600, nothing left beside it, an older file replaced."""
    file.write_text("old")
    tt.save(tuned(data), file, settings=plugged(data))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in file.parent.iterdir() if path.name != "home"] == ["model.tt"]


def test_a_folder_is_never_replaced(data, tuned, plugged, tmp_path):
    """A target that is a folder, or that has no folder, is refused."""
    obj = tuned(data)
    (tmp_path / "there").mkdir()
    with pytest.raises(tt.StoreError, match="is a folder: name a file"):
        tt.save(obj, tmp_path / "there", settings=plugged(data))
    with pytest.raises(tt.StoreError, match="cannot be written: No such file"):
        tt.save(obj, tmp_path / "missing" / "model.tt", settings=plugged(data))
    assert (tmp_path / "there").is_dir()


def test_nothing_won(fresh, plugged, file, data):
    """An object that stayed eager: the file says so, and installs nothing."""
    report = tt.save(fresh(), file, settings=plugged(data))
    assert "nothing was tuned" in str(report)
    obj = fresh()
    loaded = tt.load(obj, file, settings=plugged(data))
    assert loaded.installed == ()
    assert "everything runs as in eager" in str(loaded)
    assert tt.stats(obj) == {}


def test_a_unit_that_stayed_eager(data, fresh, samples, plugged, same, file):
    """One unit tuned, its neighbour not: the same after loading."""
    obj = fresh()
    chosen = tt.OneBackendStrategy("data")
    tt.tune(obj, samples, units=["blocks.1"], strategy=chosen, settings=plugged(data), progress=False)
    tt.save(obj, file, settings=plugged(data))
    other = fresh()
    assert tt.load(other, file, settings=plugged(data)).installed == ("blocks.1",)
    assert same(other, fresh()) == 3


class Pipeline:
    """No module itself; a module in a list, one in a dict, one twice."""

    def __init__(self, bench):
        shared = FakeLayer(bench, seed=5)
        self.heads = [FakeLayer(bench, seed=1), FakeLayer(bench, seed=2)]
        self.named = {"a": shared}
        self.again = shared

    def __call__(self, x):
        for head in self.heads:
            x = head(x)
        return self.again(x) + self.named["a"](x)

    def eval(self):
        for module in (*self.heads, self.again):
            module.eval()
        return self


def test_pipelines_and_shared_modules(data, tuned, fresh, plugged, file, same):
    """Units in lists and dicts; a shared module is one unit and loads once."""
    saved = tt.save(tuned(data, kind=Pipeline, units=0), file, settings=plugged(data))
    obj = fresh(Pipeline)
    report = tt.load(obj, file, settings=plugged(data))
    assert len(report.installed) == len(saved.lines) == 3
    assert same(obj, fresh(Pipeline)) == 12


def test_a_chain(bench, tuned, fresh, plugged, file, same):
    """Inner and outer restored, outer over inner; closed outer first."""
    inner = StoredBackend(bench, "inner", capturable=True)
    outer = StoredBackend(bench, "outer", layer=True)
    settings = plugged(inner, outer)
    tt.save(tuned(inner, outer, name="inner+outer"), file, settings=settings)
    obj = fresh()
    built = len(inner.log) + len(outer.log)
    report = tt.load(obj, file, settings=settings)
    assert {line.candidate for line in report.lines} == {"inner+outer"}
    assert inner.opened == outer.opened == ["blocks.0", "blocks.1"]
    assert len(inner.log) + len(outer.log) == built + 4
    assert same(obj, fresh()) == 6
    tt.untune(obj)
    assert inner.count("close") >= 2
    assert outer.count("close") >= 2


def test_a_layer_over_eager(bench, tuned, fresh, plugged, file, same):
    """A layer that was chosen on its own stands on the original forward again."""
    outer = StoredBackend(bench, "outer", layer=True)
    tt.save(tuned(outer), file, settings=plugged(outer))
    obj = fresh()
    assert [line.how for line in tt.load(obj, file, settings=plugged(outer)).lines] == ["restored", "restored"]
    assert same(obj, fresh()) == 6


def test_without_a_payload_it_is_built_at_load(bench, tuned, fresh, plugged, file, same):
    """A backend that writes nothing: said at saving, built and compared at loading."""
    plain = FakeBackend(bench, "plain")
    saved = tt.save(tuned(plain), file, settings=plugged(plain))
    assert [line.how for line in saved.lines] == ["rebuilt at load"] * 2
    assert "it writes nothing" in str(saved)
    obj = fresh()
    report = tt.load(obj, file, settings=plugged(plain))
    assert [line.how for line in report.lines] == ["rebuilt", "rebuilt"]
    assert same(obj, fresh()) == 6


def test_a_dump_that_is_refused(bench, tuned, fresh, plugged, file, same):
    """Its reason is kept, and it is built at load."""
    plugin = StoredBackend(bench)
    obj = tuned(plugin)
    plugin.silent = True
    assert "it has nothing to write" in str(tt.save(obj, file, settings=plugged(plugin)))
    other = fresh()
    assert "it has nothing to write" in str(tt.load(other, file, settings=plugged(plugin)))
    assert same(other, fresh()) == 6


def test_what_is_built_wrong_at_load_is_not_installed(bench, tuned, fresh, plugged, file):
    """A backend that became wrong meanwhile: strict refuses, not strict runs eager."""
    tt.save(tuned(FakeBackend(bench, "plain")), file, settings=plugged(FakeBackend(bench, "plain")))
    wrong = FakeBackend(bench, "plain", breaks=lambda call: lambda *a, **k: 3 * call(*a, **k))
    obj = fresh()
    with pytest.raises(tt.StoreError, match="is not what the original forward computes"):
        tt.load(obj, file, settings=plugged(wrong))
    assert tt.stats(obj) == {}
    assert wrong.open == 0
    report = tt.load(obj, file, strict=False, settings=plugged(wrong))
    assert report.installed == ()
    assert len(report.eager) == 2
    assert wrong.open == 0


@pytest.mark.parametrize("names", [("a\\b",), ("a/b/c/d/e/f",), ("x y",), (".hidden",), ("Ab", "aB")])
def test_file_names_of_plugins_are_plain(bench, tuned, plugged, file, names):
    """What has another name is not stored, and the reason is kept."""
    plugin = StoredBackend(bench, files=dict.fromkeys(names, b"x"))
    report = tt.save(tuned(plugin), file, settings=plugged(plugin))
    assert [line.how for line in report.lines] == ["rebuilt at load"] * 2
    assert "not allowed" in str(report) or "in one place" in str(report)


def test_links_are_not_followed(bench, tuned, plugged, file, tmp_path):
    """A plugin that leaves a link in its folder stores nothing."""

    class Linking(StoredBackend):
        @tt.hookimpl
        def tt_dump(self, built, folder):
            (folder / "link").symlink_to("/etc/passwd")
            return {}

    plugin = Linking(bench)
    assert "which is no plain file" in str(tt.save(tuned(plugin), file, settings=plugged(plugin)))
    assert b"root:" not in file.read_bytes()


def test_files_of_plugins_in_folders(bench, tuned, fresh, plugged, file):
    """Folders, an empty file and a large one come back as they were."""
    seen = {}

    class Looking(StoredBackend):
        @tt.hookimpl
        def tt_restore(self, unit, key, covers, dumped, folder, inner):
            seen.update({p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()})
            seen["modes"] = {stat.S_IMODE(p.stat().st_mode) for p in folder.rglob("*")}
            return super().tt_restore(unit, key, covers, dumped, folder, inner)

    files = {"0/weights.bin": bytes(range(256)) * 9000, "0/empty": b"", "1/a.b-c_d": b"x"}
    plugin = Looking(bench, files=files)
    tt.save(tuned(plugin), file, settings=plugged(plugin))
    tt.load(fresh(), file, settings=plugged(plugin))
    assert {name: seen[name] for name in files} == files
    assert seen["modes"] == {0o600, 0o700}


def test_nothing_private_is_in_a_file(data, tuned, plugged, file, tmp_path, monkeypatch):
    """No host, user, home, folder, and no sample."""
    import getpass
    import socket

    monkeypatch.setenv("USER", "somebody-secret")
    tt.save(tuned(data), file, settings=plugged(data))
    text = file.read_bytes()
    words = [str(tmp_path), str(tmp_path.parent), str(Path.cwd()), "somebody-secret"]
    words += [word for word in (socket.gethostname(), getpass.getuser()) if len(word) > 4]
    assert [word for word in words if word.encode() in text] == []


class Worded(nn.Module):
    def __init__(self, bench):
        super().__init__()
        self.layer = FakeLayer(bench)

    def forward(self, x, prompt="none"):
        return self.layer(x) * len(prompt)


def test_a_long_text_argument_is_not_kept(data, tuned, plugged, file, fresh):
    """Only its hash would be there, so that call is left out, with the reason; the short one is loaded."""
    secret = "the patient's name is " + "x" * 80
    calls = [tt.Call(torch.ones(2, 4), prompt=secret), tt.Call(torch.ones(2, 4))]
    obj = tuned(data, units=0, kind=Worded, data=calls)
    report = tt.save(obj, file, settings=plugged(data))
    assert sorted(line.how for line in report.lines) == ["left out", "stored"]
    assert b"patient" not in file.read_bytes()
    other = fresh(Worded)
    loaded = tt.load(other, file, settings=plugged(data))
    assert [line.how for line in loaded.lines] == ["restored", "eager"]
    assert "is not kept" in loaded.eager[0].note


def test_weights_in_the_file(data, tuned, fresh, plugged, file, same, bench):
    """weights=True: an object with other weights gets them, tied and unsaved ones too."""
    obj = tuned(data)
    report = tt.save(obj, file, weights=True, settings=plugged(data))
    assert report.size > 500
    other = fresh()
    with torch.no_grad():
        for tensor in (*other.parameters(), *other.buffers()):
            tensor.add_(1)
    held = [id(p) for p in other.parameters()]
    loaded = tt.load(other, file, settings=plugged(data))
    assert "its weights were loaded: 10 tensors" in str(loaded)
    assert [id(p) for p in other.parameters()] == held
    assert same(other, fresh()) == 6


def test_refused_weights_leave_the_object(data, tuned, fresh, plugged, file):
    """What is refused after the weights were written puts the old ones back."""
    tt.save(tuned(data), file, weights=True, settings=plugged(data))
    other = fresh()
    with torch.no_grad():
        other.shift.add_(1)
    other.blocks[0].gain = 2.0
    with pytest.raises(tt.StoreError, match=r"its setting 'gain' is 2.0, and was 1.0"):
        tt.load(other, file, settings=plugged(data))
    assert torch.equal(other.shift, torch.full((4,), 1.5))


def test_an_earlier_tuning_is_replaced_or_kept(data, tuned, fresh, plugged, file, same):
    """A load that works ends the earlier tuning; one that is refused leaves it on."""
    tt.save(tuned(data), file, settings=plugged(data))
    obj = tuned(data, units=["blocks.0.first"])
    file2 = file.with_name("broken.tt")
    file2.write_bytes(file.read_bytes()[:-7])
    with pytest.raises(tt.StoreError):
        tt.load(obj, file2, settings=plugged(data))
    assert set(tt.stats(obj)) == {"blocks.0.first"}
    tt.load(obj, file, settings=plugged(data))
    assert set(tt.stats(obj)) == {"blocks.0", "blocks.1"}
    assert same(obj, fresh()) == 6


def test_state_and_rng_are_kept(data, tuned, fresh, plugged, file):
    """Loading runs units: buffers, attributes and generators are as before."""
    tt.save(tuned(data), file, settings=plugged(data))
    obj = fresh()
    before, state = torch.random.get_rng_state(), {k: v.clone() for k, v in obj.state_dict().items()}
    tt.load(obj, file, settings=plugged(data))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(v, state[k]) for k, v in obj.state_dict().items())


def test_bytes_are_deterministic(data, tuned, plugged, file):
    """The same tuning twice: the same bytes."""
    tt.save(tuned(data), file, settings=plugged(data))
    first = file.read_bytes()
    tt.save(tuned(data), file, settings=plugged(data))
    assert file.read_bytes() == first


def test_figures_and_tolerance_are_kept(bench, fresh, samples, plugged, file):
    """What a unit was checked with is in the file, and comes back."""
    plugin = coded(bench)
    obj = fresh()
    tt.tune(
        obj,
        samples,
        units=1,
        strategy=tt.OneBackendStrategy("coded"),
        tolerance=0.25,
        settings=plugged(plugin),
        progress=False,
    )
    tt.save(obj, file, settings=plugged(plugin))
    report = tt.load(fresh(), file, settings=plugged(plugin))
    assert [line.how for line in report.lines] == ["restored", "restored"]
    assert {choice.unit for choice in report.plan.choices} == {"blocks.0", "blocks.1"}


def test_weights_of_another_architecture(data, tuned, fresh, plugged, file, bench):
    """Names and shapes must fit whole: refused, or, not strict, left out with the sentence."""
    tt.save(tuned(data), file, weights=True, settings=plugged(data))
    more, other = fresh(), fresh()
    more.register_buffer("extra", torch.zeros(1))
    other.shift = torch.zeros(5)
    for obj, match in [
        (more, "weight 'extra' is in the object but not in the file"),
        (other, r"weight 'shift' is float32 \(5,\), and was float32 \(4,\)"),
    ]:
        with pytest.raises(tt.StoreError, match=match):
            tt.load(obj, file, settings=plugged(data))
        report = tt.load(obj, file, strict=False, settings=plugged(data))
        assert "its weights were not loaded: weight" in str(report)
        assert report.installed == ("blocks.0", "blocks.1")  # these have the weights that they were tuned with


def test_keys_follow_the_device():
    """A file of one card loads on another of its kind: the keys speak of the object's own device."""
    leaf = tt.TensorLeaf(
        dtype=torch.float32, rank=2, device=torch.device("cuda:0"), layout=torch.strided, type=torch.Tensor
    )
    beside = tt.ConstLeaf(type=int, value=3)
    key = tt.CallKey(tree=None, leaves=(leaf, beside), ambient=tt.Ambient())
    moved = _moved(key, "cuda:0", torch.device("cuda:1"))
    assert [str(one.device) for one in moved.tensors] == ["cuda:1"]
    assert moved.leaves[1] == beside
    assert _moved(key, "cuda:3", torch.device("cuda:1")) == key
