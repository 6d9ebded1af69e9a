"""The journal of finished blocks: what a kill leaves of it, and what is no journal."""

from dataclasses import dataclass

import pytest

from denserk.errors import InputError
from denserk.io.block_journal import JOURNAL, Block, append_to_journal, read_journal, write_journal


@dataclass(frozen=True)
class Sized(Block):
    """A block of another kind of output."""

    end: int


def test_blocks_come_back_and_a_line_cut_short_is_none(tmp_path):
    assert read_journal(tmp_path, Sized) == []
    first, second = Sized(1, 4, "ab", 10), Sized(2, 4, "cd", 20)
    write_journal(tmp_path, [second, first])
    assert read_journal(tmp_path, Sized) == [first, second]
    third = Sized(3, 1, "ef", 30)
    append_to_journal(tmp_path, third)
    assert read_journal(tmp_path, Sized) == [first, second, third]
    with (tmp_path / JOURNAL).open("ab") as out:
        out.write(b'{"number":4,"co')
    assert read_journal(tmp_path, Sized) == [first, second, third]


@pytest.mark.parametrize("line", [b"[]\n", b"{\n", b'{"number":1}\n'])
def test_a_broken_line_is_named(tmp_path, line):
    (tmp_path / JOURNAL).write_bytes(line)
    with pytest.raises(InputError, match="line 1: found"):
        read_journal(tmp_path, Block)
