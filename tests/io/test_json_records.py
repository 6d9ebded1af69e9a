import io
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from denserk.errors import InputError
from denserk.io import json_records
from denserk.io.json_records import identifier, read_array, read_objects


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (b'{"a": 1', "not JSON"),
        (b"[1]", "JSON that is no object"),
        (b'{"a": NaN}', "not JSON"),
        (b'{"a": "\\ud800"}', "not JSON"),
        (b"[" * 100_000, "not JSON"),
    ],
)
def test_a_broken_line_is_reported_with_its_number(tmp_path, line, found):
    path = tmp_path / "f.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}\r\n \n' + line + b"\n")
    with pytest.raises(InputError, match=f"f.jsonl, line 3: found .*{found}"):
        list(read_objects(path))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text(max_size=4), VALUES, max_size=3)


def items_of_array(data: bytes):
    return list(read_array(io.BytesIO(data), "x.json"))


class SlowFile(io.BytesIO):
    """A file of which a few bytes can be read at once."""

    def __init__(self, data: bytes, chunk_size: int) -> None:
        super().__init__(data)
        self.chunk_size = chunk_size

    def read(self, size=-1):
        return super().read(self.chunk_size)


@given(st.lists(OBJECTS, max_size=5), st.sampled_from([None, 1]), st.integers(1, 9))
def test_arrays_equal_json_whatever_the_chunk(objects, indent, chunk_size):
    data = json.dumps(objects, indent=indent, ensure_ascii=False).encode("utf-8")
    file = SlowFile(data, chunk_size)
    assert [value for _, value in read_array(file, "x.json")] == objects


def test_lines_are_where_objects_begin():
    data = b'\xef\xbb\xbf[\n  {"a": 1,\n   "b": 2},\n\n  {"c": "x\\"]}"}, {}\n]\n'
    assert items_of_array(data) == [(2, {"a": 1, "b": 2}), (5, {"c": 'x"]}'}), (5, {})]


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"", "line 1: found ''"),
        (b'[{"a": 1}\n{"b": 2}]', "line 2: found '{\"b\": 2}]' (no object"),
        (b'[{"a": 1}, 2]', "line 1: found '2]'"),
        (b'[{"a": 1},\n{"b": "text', "(Unterminated string starting at); expected one JSON array"),
        (b'[{"a": 1}] x', "line 1: found more after the array's end"),
        (b'[{"a": NaN}]', "line 1: found '{\"a\": NaN}]' ("),
        (b'[{"a": 1},\n{"b": %b}]' % (b"9" * 5000), 'line 2: found \'{"b": 99'),
        (b'[{"a": 1},\n{"b": %b}]' % (b"[" * 3000 + b"]" * 3000), 'line 2: found \'{"b": [['),
        (b'[{"a": "\xff"}]', "x.json: found a byte that is not UTF-8"),
    ],
)
def test_errors_of_arrays_name_the_line(data, found):
    with pytest.raises(InputError, match=re.escape(found)):
        items_of_array(data)


def test_a_quote_that_never_closes_is_rejected_before_the_memory_is_full(monkeypatch):
    monkeypatch.setattr(json_records, "LONGEST", 64)
    file = SlowFile(b'[{"a": "' + b"x" * 10_000, chunk_size=16)
    with pytest.raises(InputError, match="Unterminated string"):
        next(read_array(file, "x.json"))
    assert file.tell() < 200


@given(st.text())
def test_an_id_is_taken_exactly_where_a_line_of_columns_keeps_it_whole(text):
    if f"q {text} 1".split() == ["q", text, "1"]:
        assert identifier(text, "f", 1, "passage") == text
    else:
        with pytest.raises(InputError):
            identifier(text, "f", 1, "passage")
