"""Native code runs with this user's seal, or because the caller says so; a key is this user's alone."""

from __future__ import annotations

import os
import stat

import pytest
import torch

import tt_core as tt
from tt_core.store import container, folders, seal, write
from tt_core.testing.stored import StoredBackend, coded


@pytest.fixture
def code(bench):
    return coded(bench)


@pytest.fixture
def file(tmp_path, code, tuned, plugged):
    path = tmp_path / "model.tt"
    assert tt.save(tuned(code), path, settings=plugged(code)).sealed
    return path


def other_user(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path / "other"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "other" / "data"))


def test_code_of_this_user_loads(code, file, fresh, plugged, same):
    """Sealed here, opened here."""
    obj = fresh()
    assert tt.load(obj, file, settings=plugged(code)).sealed
    assert code.opened == ["blocks.0", "blocks.1"]
    assert same(obj, fresh()) == 6


def test_the_key_is_private(file):
    """0600 in a folder of 0700, made at the first save and kept."""
    folder = folders.data_folder()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [path.name for path in folder.iterdir()] == ["seal.key"]
    assert stat.S_IMODE((folder / "seal.key").stat().st_mode) == 0o600
    assert seal.own_key() == seal.own_key_or_new() == (folder / "seal.key").read_bytes()
    assert len(seal.own_key()) == 32


@pytest.mark.parametrize("trailer", ["other", "none", "flipped"])
def test_code_without_this_users_seal_does_not_run(code, file, fresh, plugged, monkeypatch, tmp_path, trailer):
    """Another user's seal, none, a broken one: refused, or eager with the sentence; built anew on request."""
    whole = file.read_bytes()
    if trailer == "other":
        other_user(monkeypatch, tmp_path)
    else:
        file.write_bytes(whole[:-40] if trailer == "none" else whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(tt.StoreError, match="native code, and the file does not carry your seal: trust=True opens it"):
        tt.load(fresh(), file, settings=plugged(code))
    report = tt.load(fresh(), file, strict=False, settings=plugged(code))
    assert [line.how for line in report.lines] == ["eager", "eager"]
    assert "trust=True" in report.eager[0].note
    assert [line.how for line in tt.load(fresh(), file, rebuild=True, settings=plugged(code)).lines] == ["rebuilt"] * 2
    assert code.opened == []
    assert [line.how for line in tt.load(fresh(), file, trust=True, settings=plugged(code)).lines] == ["restored"] * 2
    assert code.opened == ["blocks.0", "blocks.1"]


def test_code_resealed_with_another_key_does_not_run(code, file, fresh, plugged):
    """A payload swapped by somebody with a key of his own."""
    with container.opened(file, seal.own_key()) as box:
        form = {name: value for name, value in box.manifest.items() if name not in {"kind", "format", "payloads"}}
    evil = file.with_name("evil")
    evil.write_text('{"scale": 3.0}')
    write.write(file, form, [write.Part.of(evil, "code")], key=bytes(range(32)))
    with pytest.raises(tt.StoreError, match="does not carry your seal"):
        tt.load(fresh(), file, settings=plugged(code))
    assert code.opened == []
    with pytest.raises(tt.StoreError, match="is not what the original forward computes"):
        tt.load(fresh(), file, trust=True, settings=plugged(code))  # who trusts it still gets right results


def test_code_that_calls_itself_data_does_not_run(code, bench, fresh, plugged, tuned, tmp_path):
    """What the installed backend says counts, not what the file says; a data backend's payload marked code is code."""
    honest, file = StoredBackend(bench, "coded"), tmp_path / "data.tt"
    tt.save(tuned(honest), file, settings=plugged(honest))
    file.write_bytes(file.read_bytes()[:-40])
    with pytest.raises(tt.StoreError, match="does not carry your seal"):
        tt.load(fresh(), file, settings=plugged(code))
    assert code.opened == []


def test_without_files_code_is_code_too(bench, tuned, fresh, plugged, tmp_path):
    """A backend of code that only returns JSON."""

    class Bare(StoredBackend):
        @tt.hookimpl
        def tt_dump(self):
            return {"format": 1}

    bare, file = Bare(bench, payload=tt.Payload.CODE), tmp_path / "model.tt"
    tt.save(tuned(bare), file, settings=plugged(bare))
    file.write_bytes(file.read_bytes()[:-40])
    with pytest.raises(tt.StoreError, match="does not carry your seal"):
        tt.load(fresh(), file, settings=plugged(bare))
    assert bare.opened == []


@pytest.mark.parametrize("damage", ["mode", "length", "link", "folder"])
def test_a_key_that_others_may_know_is_not_used(code, file, fresh, plugged, tuned, tmp_path, damage):
    """Readable by others, damaged, a link: no seal of this user, and the next file is not sealed, with the reason."""
    key = folders.data_folder() / "seal.key"
    if damage == "mode":
        key.chmod(0o640)
    elif damage == "length":
        key.write_bytes(b"short")
    elif damage == "link":
        key.rename(tmp_path / "elsewhere")
        key.symlink_to(tmp_path / "elsewhere")
    else:
        key.unlink()
        key.mkdir()
    with pytest.raises(tt.StoreError, match="does not carry your seal"):
        tt.load(fresh(), file, settings=plugged(code))
    report = tt.save(tuned(code), tmp_path / "again.tt", settings=plugged(code))
    assert not report.sealed
    assert "not sealed: the key of the seal" in str(report)


def test_a_home_that_cannot_be_written(code, fresh, plugged, tuned, tmp_path, monkeypatch):
    """No key can be made: the file is written without a seal, and says so."""
    (tmp_path / "plain").write_text("")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "plain"))
    report = tt.save(tuned(code), tmp_path / "model.tt", settings=plugged(code))
    assert not report.sealed
    assert "not sealed: the folder" in str(report)
    assert seal.own_key() is None


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")
def test_folders_of_others(tmp_path):
    """A folder that others may write into is not used."""
    open_ = tmp_path / "open"
    open_.mkdir()
    open_.chmod(0o777)
    with pytest.raises(tt.StoreError, match="can be written to by others: chmod 700 it"):
        folders.made_private(open_)
    assert stat.S_IMODE(folders.made_private(tmp_path / "a" / "b").stat().st_mode) == 0o700


def test_two_processes_make_one_key(bench, monkeypatch):
    """Whoever comes second uses the first one's."""
    first = seal.own_key_or_new()
    real = seal._read
    answers = iter([FileNotFoundError("not yet")])

    def late(path, missing=tt.StoreError):
        for error in answers:
            raise error
        return real(path, missing)

    monkeypatch.setattr(seal, "_read", late)
    assert seal.own_key_or_new() == first
    assert [path.name for path in folders.data_folder().iterdir()] == ["seal.key"]


EVIL = "__import__('pathlib').Path('evil').touch() or x"


def test_a_parameters_name_is_never_code(data, fresh, plugged, tuned, tmp_path, monkeypatch):
    """Guards are generated from keys: a name out of a file that is no parameter of the object's own is refused."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "model.tt"
    tt.save(tuned(data), path, settings=plugged(data))
    with container.opened(path, seal.own_key()) as box:
        form = {name: value for name, value in box.manifest.items() if name not in {"kind", "format", "payloads"}}
        box.copy(0, tmp_path / "program")
    for record in form["records"]:
        arguments = record["key"]["arguments"]["dict"]
        assert arguments[0][0] == "x"
        arguments[0][0] = EVIL
    write.write(path, form, [write.Part.of(tmp_path / "program", "data")], seal.own_key())
    obj = fresh()
    with pytest.raises(tt.StoreError, match="it was tuned for a forward with other parameters"):
        tt.load(obj, path, trust=True, rebuild=True, settings=plugged(data))
    tt.load(obj, path, strict=False, trust=True, rebuild=True, settings=plugged(data))
    obj(torch.ones(2, 4))
    assert not (tmp_path / "evil").exists()
