import errno
import json
import os
import signal
from pathlib import Path

import pytest

from denserk.commands.app import run
from denserk.errors import Interrupted, UsageError
from denserk.models import compiled_cache
from denserk.models.compiled_cache import ENTRY, FILES, Entry

KEY = {"fingerprint": "a1", "dtype": "float32"}


@pytest.fixture(autouse=True)
def folder(cache, monkeypatch):
    """The folder of compiled models, which is not there yet."""
    monkeypatch.setenv(compiled_cache.LIMIT, "1")
    return cache / "compiled"


def write_files(folder, size=10):
    for name in FILES:
        (folder / name).write_bytes(name.encode() * size)


def write(key=KEY, *, size=10, check=lambda entry: True):
    content = {"name": f"model-{key['fingerprint']}"}
    return compiled_cache.write(key, content, lambda folder: write_files(folder, size), check)


def test_what_is_written_is_found(folder):
    assert compiled_cache.find(KEY) is None
    written = write()
    entry = compiled_cache.find(KEY)
    assert entry is not None
    assert entry.folder == written
    assert written.parent == folder
    assert entry.content["name"] == "model-a1"
    assert compiled_cache.find({**KEY, "dtype": "bfloat16"}) is None
    assert sorted(path.name for path in folder.iterdir()) == [written.name]


@pytest.mark.parametrize("name", [ENTRY, *FILES])
@pytest.mark.parametrize("damage", ["other", "short", "gone"])
def test_a_damaged_entry_is_none_and_is_written_again(name, damage):
    path = write() / name
    content = path.read_bytes()
    if damage == "other":
        middle = len(content) // 2
        path.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
    elif damage == "short":
        path.write_bytes(content[:-1])
    else:
        path.unlink()
    assert compiled_cache.find(KEY) is None
    write()
    assert compiled_cache.find(KEY) is not None


def test_an_entry_that_is_not_as_it_should_be_is_not_kept(folder):
    def is_whole(entry: Entry) -> bool:
        assert (entry.folder / ENTRY).is_file()
        return False

    assert write(check=is_whole) is None
    assert list(folder.iterdir()) == []


def test_two_processes_write_the_same_entry(folder):
    """One ends while the other still writes: both go on, and one entry is there, whole."""

    def write_meanwhile(entry: Entry) -> bool:
        assert write() is not None
        return True

    write(check=write_meanwhile)
    assert compiled_cache.find(KEY) is not None
    assert len(list(folder.iterdir())) == 1


def test_an_unfinished_entry_is_not_seen_and_goes_when_it_is_old(folder):
    written = write()
    unfinished = folder / f".{written.name}.0123abcd.part"
    unfinished.mkdir()
    (unfinished / FILES[0]).write_bytes(b"half")
    write({**KEY, "fingerprint": "b2"})
    assert unfinished.exists()
    assert len(list(compiled_cache.entries())) == 2
    os.utime(unfinished, (0, 0))
    write({**KEY, "fingerprint": "c3"})
    assert not unfinished.exists()


def test_entries_that_were_not_used_for_longest_go(monkeypatch):
    names = ("a1", "b2", "c3")
    for time, name in enumerate(names, start=1):
        written = write({**KEY, "fingerprint": name}, size=1000)
        os.utime(written / ENTRY, (time, time))
    compiled_cache.find({**KEY, "fingerprint": "a1"})  # it is used now
    size = next(compiled_cache.entries()).size
    monkeypatch.setenv(compiled_cache.LIMIT, str(2.5 * size / 1e9))
    write({**KEY, "fingerprint": "d4"}, size=1000)
    assert {entry.model for entry in compiled_cache.entries()} == {"model-a1", "model-d4"}
    monkeypatch.setenv(compiled_cache.LIMIT, str(0.5 * size / 1e9))
    assert write({**KEY, "fingerprint": "e5"}, size=1000) is None


def test_zero_turns_it_off(folder, monkeypatch):
    write()
    monkeypatch.setenv(compiled_cache.LIMIT, "0")
    assert compiled_cache.find(KEY) is None
    monkeypatch.setenv(compiled_cache.LIMIT, "much")
    with pytest.raises(UsageError, match="DENSERK_COMPILED_GB=much"):
        compiled_cache.limit_bytes()


def test_a_folder_that_cannot_be_written_is_no_error(folder, caplog):
    folder.parent.mkdir(parents=True)
    folder.write_text("a file in its place")
    caplog.set_level("DEBUG", logger="denserk")
    assert compiled_cache.find(KEY) is None
    assert write() is None
    assert [record.levelname for record in caplog.records] == ["DEBUG"]
    assert compiled_cache.clear() == (0, 0)
    assert folder.read_text() == "a file in its place"


@pytest.mark.parametrize("number", [errno.EROFS, errno.EPERM])
def test_an_entry_of_a_cache_that_is_only_read_is_found(monkeypatch, number):
    def refuse(path):
        raise OSError(number, os.strerror(number), str(path))

    written = write()
    monkeypatch.setattr("denserk.models.compiled_cache.os.utime", refuse)
    entry = compiled_cache.find(KEY)
    assert entry is not None
    assert entry.folder == written


def test_an_entry_that_must_not_be_read_is_none(monkeypatch):
    def refuse(path):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    write()
    monkeypatch.setattr(Path, "read_bytes", refuse)
    assert compiled_cache.find(KEY) is None


def test_a_user_without_a_home_has_no_cache(monkeypatch):
    def has_no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("DENSERK_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", has_no_home)
    assert compiled_cache.find(KEY) is None
    assert write() is None
    assert list(compiled_cache.entries()) == []
    assert compiled_cache.clear() == (0, 0)


def test_a_full_disk_leaves_no_half_written_files(folder):
    """Models are saved by way of a temporary folder, which stays where saving fails."""

    def fill_disk(target: Path) -> None:
        inner = target / f".{FILES[0]}.0123abcd.part"
        inner.mkdir()
        (inner / FILES[0]).write_bytes(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    assert compiled_cache.write(KEY, {"name": "model"}, fill_disk, lambda entry: True) is None
    assert list(folder.iterdir()) == []


def test_files_of_others_stay(folder, capsys):
    written = write()
    (written / "notes.txt").write_text("mine")
    (folder / "mine").mkdir()
    (folder / "mine" / ENTRY).write_text("mine")
    write({**KEY, "fingerprint": "b2"})
    assert run(["doctor", "--clear-compiled"]) == 0
    assert f"removed 1 compiled model (0.00 GB) from {folder}" in capsys.readouterr().out
    remaining_files = {path for path in folder.rglob("*") if path.is_file()}
    assert remaining_files == {written / "notes.txt", folder / "mine" / ENTRY}


def test_doctor_shows_entries(folder, capsys):
    write()
    damaged = write({**KEY, "fingerprint": "b2"})
    (damaged / ENTRY).write_text(json.dumps({"content": {}}))
    assert run(["doctor"]) == 0
    section = capsys.readouterr().out.partition("Compiled models\n")[2].partition("Java\n")[0]
    assert f"{folder} (2 models, 0.00 of 1 GB)" in section
    assert "model-a1, used 20" in section
    assert "damaged, used 20" in section


def test_a_signal_that_looks_like_an_error_is_not_lost(monkeypatch):
    def interrupted(folder):
        Interrupted.received = Interrupted(signal.SIGTERM)
        raise RuntimeError("a library's own error")

    monkeypatch.setattr(Interrupted, "received", None)
    with pytest.raises(Interrupted):
        compiled_cache.write(KEY, {"name": "model"}, interrupted, lambda entry: True)
    assert list(compiled_cache.entries()) == []
