import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from denserk.errors import InputError
from denserk.formats import json_array
from denserk.formats.json_array import read_array

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text(max_size=4), VALUES, max_size=3)


def read(data: bytes):
    return list(read_array(io.BytesIO(data), "x.json"))


@given(st.lists(OBJECTS, max_size=5), st.sampled_from([None, 1]), st.integers(1, 9))
def test_equals_json_whatever_the_chunk(objects, indent, chunk):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_array, "CHUNK", chunk)
        data = json.dumps(objects, indent=indent, ensure_ascii=False).encode("utf-8")
        assert [value for _, value in read(data)] == objects


def test_lines_are_where_objects_begin():
    data = b'\xef\xbb\xbf[\n  {"a": 1,\n   "b": 2},\n\n  {"c": "x\\"]}"}, {}\n]\n'
    assert read(data) == [(2, {"a": 1, "b": 2}), (5, {"c": 'x"]}'}), (5, {})]


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "x.json, line 1: found an empty file"),
        (b'{"a": 1}', "line 1: found b'{' at its start"),
        (b'[{"a": 1}\n{"b": 2}]', "line 2: found '{' after an object; expected a comma"),
        (b'[{"a": 1},\n]', "line 2: found a comma before the closing bracket"),
        (b'[{"a": 1}, 2]', "found '2'; expected one JSON array of objects"),
        (b'[{"a": 1},\n{"b": "text', "line 2: found an array that breaks off"),
        (b'[{"a": 1}', "found an array that breaks off"),
        (b'[{"a": 1}] x', "found more after the array's end"),
        (b'[{"a": 1},\n{"a" 1}]', "line 2: found an object that is not JSON"),
    ],
)
def test_refusals_name_the_line(data, told):
    with pytest.raises(InputError) as caught:
        read(data)
    assert told in str(caught.value)


def test_a_quote_that_never_closes_is_refused_before_the_memory_is_full(monkeypatch):
    monkeypatch.setattr(json_array, "CHUNK", 16)
    monkeypatch.setattr(json_array, "LONGEST", 64)
    endless = io.BytesIO(b'[{"a": "' + b"x" * 10_000)
    with pytest.raises(InputError, match="never closed"):
        next(read_array(endless, "x.json"))
    assert endless.tell() < 200
