"""The journal of finished blocks, and files of lines that are written block by block."""

from dataclasses import replace

from denserk.io.blocks import Block, ResumableLines, started_output
from denserk.io.manifest import Kind, Manifest, read_manifest
from denserk.io.outputs import unfinished_folder

MANIFEST = Manifest(Kind.EXPANSIONS, complete=False, settings={"seed": 1})


def test_lines_have_no_name_until_they_are_complete(tmp_path):
    output = tmp_path / "deep" / "x"
    assert started_output(output) is None
    lines = ResumableLines(output, MANIFEST, overwrite=False)
    lines.write(Block(3, 2, "ab"), b"one\ntwo\n")
    assert not output.exists()
    assert started_output(output) == unfinished_folder(output)
    (unfinished_folder(output) / ".block-00004.jsonl.0123abcd.part").write_bytes(b"a block cut sh")
    again = ResumableLines(output, MANIFEST, overwrite=False)
    assert list(again.finished.values()) == [Block(3, 2, "ab")]
    again.write(Block(4, 1, "cd"), b"three\n")
    again.finish({"count": 3})
    assert output.read_bytes() == b"one\ntwo\nthree\n"
    assert started_output(output) == output
    found = read_manifest(output, Kind.EXPANSIONS)
    assert found == replace(MANIFEST, complete=True, contents={"count": 3})
    assert not unfinished_folder(output).exists()


def test_overwriting_keeps_the_old_file_until_the_end(tmp_path):
    for text in (b"old\n", b"new\n"):
        lines = ResumableLines(tmp_path / "x", MANIFEST, overwrite=True)
        assert lines.finished == {}
        lines.write(Block(0, 1, "ab"), text)
        if text == b"new\n":
            assert (tmp_path / "x").read_bytes() == b"old\n"
        lines.finish({})
        assert (tmp_path / "x").read_bytes() == text
