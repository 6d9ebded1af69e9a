"""Files of lines that are written block by block; tests/models/test_generation.py resumes them."""

from denserk.io.blocks import Block, ResumableLines, started_output
from denserk.io.manifest import Kind, Manifest
from denserk.io.outputs import unfinished_folder
from tests.faults import contents

MANIFEST = Manifest(Kind.EXPANSIONS, complete=False, settings={"seed": 1})


def test_overwriting_keeps_the_old_file_until_the_end(tmp_path):
    output = tmp_path / "x"
    assert started_output(output) is None
    for before, text in ((None, b"old\n"), (b"old\n", b"new\n")):
        lines = ResumableLines(output, MANIFEST, overwrite=True)
        assert lines.finished == {}
        lines.write(Block(0, 1, "ab"), text)
        (unfinished_folder(output) / ".block-00001.jsonl.0123abcd.part").write_bytes(b"cut sh")
        assert contents(tmp_path).get("x") == before
        assert started_output(output) == unfinished_folder(output)
        again = ResumableLines(output, MANIFEST, overwrite=False)
        assert list(again.finished.values()) == [Block(0, 1, "ab")]
        again.finish({})
        assert contents(tmp_path).keys() == {"x", "x.manifest.json"}
        assert output.read_bytes() == text
