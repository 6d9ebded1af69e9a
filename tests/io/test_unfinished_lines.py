"""A file that grows block by block and takes its name in the end."""

import pytest

from denserk.errors import OutputError
from denserk.io.block_journal import Block
from denserk.io.manifest import Kind, Manifest, read_manifest
from denserk.io.unfinished_lines import UnfinishedLines, begun_manifest, folder_of

MANIFEST = Manifest(Kind.EXPANSIONS, complete=False, settings={"seed": 1})


def test_it_has_no_name_until_it_is_whole(tmp_path):
    output = tmp_path / "deep" / "x"
    assert begun_manifest(output) is None
    lines = UnfinishedLines(output, MANIFEST, overwrite=False)
    lines.write(Block(3, 2, "ab"), b"one\ntwo\n")
    assert not output.exists()
    assert begun_manifest(output) == folder_of(output)
    again = UnfinishedLines(output, MANIFEST, overwrite=False)
    assert [(b.number, b.count, b.end) for b in again.finished.values()] == [(3, 2, 8)]
    again.write(Block(4, 1, "cd"), b"three\n")
    again.finish({"count": 3})
    assert output.read_bytes() == b"one\ntwo\nthree\n"
    assert begun_manifest(output) == output
    found = read_manifest(output, Kind.EXPANSIONS)
    assert (found.settings, found.contents) == ({"seed": 1}, {"count": 3})
    assert not folder_of(output).exists()


def test_overwriting_begins_anew_and_keeps_the_old_one_until_then(tmp_path):
    first = UnfinishedLines(tmp_path / "x", MANIFEST, overwrite=False)
    first.write(Block(0, 1, "ab"), b"old\n")
    first.finish({})
    second = UnfinishedLines(tmp_path / "x", MANIFEST, overwrite=True)
    assert second.finished == {}
    second.write(Block(0, 1, "ab"), b"new\n")
    assert (tmp_path / "x").read_bytes() == b"old\n"
    second.finish({})
    assert (tmp_path / "x").read_bytes() == b"new\n"


def test_a_place_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot be written"):
        UnfinishedLines(tmp_path / "file" / "x", MANIFEST, overwrite=False)
