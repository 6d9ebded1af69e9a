"""What a power cut leaves of every command's output: the old state, the new one, or an error."""

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from denserk.commands.app import run
from tests.support import power_cuts
from tests.support.file_operations import record, why_not

REASON = why_not()
pytestmark = pytest.mark.skipif(REASON is not None, reason=str(REASON))
RERUNS = 6  # states of a case after which the command is run again

RENAME = """
import os
with open("new", "w") as out:
    out.write("new text")
    {flush_bytes}
os.rename("new", "text")
{flush_names}
"""
FLUSH_BYTES = "out.flush(), os.fsync(out.fileno())"
FLUSH_NAMES = "os.fsync(os.open('.', os.O_RDONLY))"


@pytest.fixture
def states_after(tmp_path):
    """The texts of the file `text`, which was old, that a power cut can leave of a program."""

    def states(program: str, *, ended: bool = False) -> set[bytes | None]:
        folder = tmp_path / "program"
        folder.mkdir(exist_ok=True)
        for path in folder.iterdir():
            path.unlink()
        (folder / "text").write_text("old text")
        recording = record([sys.executable, "-c", program], folder, os.environ)
        states = power_cuts.States(recording)
        return {state.get("text") for at_end, state in states if at_end or not ended}

    return states


def test_a_rename_may_survive_without_the_bytes_of_its_file(states_after):
    program = RENAME.format(flush_bytes="pass", flush_names="pass")
    assert states_after(program) == {b"old text", b"new text", b"new ", b""}


def test_a_flushed_file_is_whole_under_its_old_or_its_new_name(states_after):
    program = RENAME.format(flush_bytes=FLUSH_BYTES, flush_names="pass")
    assert states_after(program) == {b"old text", b"new text"}
    assert states_after(program, ended=True) == {b"old text", b"new text"}


def test_a_name_is_on_the_disk_after_its_folder_was_flushed(states_after):
    program = RENAME.format(flush_bytes=FLUSH_BYTES, flush_names=FLUSH_NAMES)
    assert states_after(program, ended=True) == {b"new text"}


def test_a_write_may_survive_without_an_earlier_one(states_after):
    program = "import os\nout = os.open('text', os.O_WRONLY | os.O_APPEND)\n"
    program += "os.write(out, b' and'), os.write(out, b' more')"
    gap = b"old text\0\0\0\0 more"
    assert {b"old text", b"old text and", gap, b"old text and more"} < states_after(program)


def test_writes_through_a_memory_map_are_named(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "array").write_bytes(bytes(8))
    program = "import mmap\nwith open('array', 'r+b') as array:\n"
    program += "    mmap.mmap(array.fileno(), 8)[0] = 1"
    recording = record([sys.executable, "-c", program], tmp_path / "folder", os.environ)
    assert recording.mapped == ["array"]


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """A folder with what the commands read."""
    work = tmp_path_factory.mktemp("power-cuts") / "work"
    power_cuts.prepare(work)
    return work


@pytest.mark.slow
@pytest.mark.parametrize("name", power_cuts.CASES)
def test_a_power_cut_leaves_the_old_state_the_new_state_or_an_error(work, name):
    outcome = power_cuts.cut_power(work, name, RERUNS)
    assert not outcome.wrong, f"{outcome}: {outcome.wrong[:3]}"
    assert not outcome.lost, f"{outcome}: {outcome.lost[:3]}"
    assert outcome.recording.mapped == []
    assert outcome.opened["new"] > 0
    if power_cuts.CASES[name].replaced_case:
        assert outcome.opened["old"] > 0
    else:
        assert outcome.opened["old"] == 0


CONVERT = ["convert", "corpus.jsonl", "out.tsv", "--to", "dpr", "--quiet"]


@pytest.fixture
def failing_flush(toy, monkeypatch):
    """`failing_flush(error, folders=True)`: fsync fails, of folders or of files."""
    monkeypatch.chdir(toy)
    fsync = os.fsync

    def fail(error: int, *, folders: bool) -> None:
        def or_fail(descriptor: int) -> None:
            if stat.S_ISDIR(os.fstat(descriptor).st_mode) == folders:
                raise OSError(error, os.strerror(error))
            fsync(descriptor)

        monkeypatch.setattr(os, "fsync", or_fail)

    return fail


def test_a_file_system_that_flushes_no_folders_is_no_error(failing_flush):
    failing_flush(errno.EINVAL, folders=True)
    assert run(CONVERT) == 0
    assert Path("out.tsv").read_text()


@pytest.mark.parametrize("folders", [True, False])
def test_a_disk_that_fails_to_flush_is_an_error(failing_flush, capfd, folders):
    failing_flush(errno.EIO, folders=folders)
    assert run(CONVERT) == 1
    assert "out.tsv cannot be written" in capfd.readouterr().err


@pytest.mark.slow
def test_the_tool_reports_its_states(tmp_path):
    command = [
        sys.executable,
        "-m",
        "tests.support.power_cuts",
        str(tmp_path / "work"),
        "convert corpus",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 wrong, 0 lost" in done.stdout
