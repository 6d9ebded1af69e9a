import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from denserk.errors import InputError
from denserk.formats.json_lines import dump_json, parse_objects, read_objects, write_objects

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), json_values, max_size=4))
def test_a_written_line_reads_back(value):
    line = dump_json(value)
    assert line.count(b"\n") == 1
    assert list(parse_objects([(7, line.rstrip(b"\n"))], "f")) == [(7, value)]


def test_numbers_are_those_of_the_lines(tmp_path):
    path = tmp_path / "f.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}\r\n\r\n  \n{"b": "\xc3\xb6"}')
    assert list(read_objects(path)) == [(1, {"a": 1}), (4, {"b": "\u00f6"})]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (b'{"a": 1', "not JSON"),
        (b"[1]", "JSON list"),
        (b"null", ""),
        (b'"x"', "JSON str"),
        (b'{"a": NaN}', "not JSON"),
        (b'{"a": "\\ud800"}', "not JSON"),
        (b'{"a": "\xff"}', "not JSON"),
        (b'{"a": 1} {"b": 2}', "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"{\x00}", "not JSON"),
    ],
)
def test_a_broken_line_is_told_with_its_number(tmp_path, line, found):
    path = tmp_path / "f.jsonl"
    path.write_bytes(b'{"a": 1}\n' + line + b"\n")
    with pytest.raises(InputError, match=f"f.jsonl, line 2: found .*{found}"):
        list(read_objects(path))


def test_objects_written(tmp_path):
    path = tmp_path / "f.jsonl"
    vector = np.array([0.5, 1], dtype=np.float32)
    assert write_objects(path, [{"b": 1, "a": vector}, {"c": "\u00f6"}]) == 2
    assert path.read_text() == '{"b":1,"a":[0.5,1.0]}\n{"c":"\u00f6"}\n'
