import io
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from denserk.errors import InputError
from denserk.io import json_records
from denserk.io.json_records import (
    Fields,
    dump_json,
    identifier,
    parse_objects,
    read_array,
    read_objects,
    write_objects,
)

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


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text(max_size=4), VALUES, max_size=3)


def read(data: bytes):
    return list(read_array(io.BytesIO(data), "x.json"))


class Slow(io.BytesIO):
    """A file of which a few bytes can be read at once."""

    def __init__(self, data: bytes, most: int) -> None:
        super().__init__(data)
        self.most = most

    def read(self, size=-1):
        return super().read(self.most)


@given(st.lists(OBJECTS, max_size=5), st.sampled_from([None, 1]), st.integers(1, 9))
def test_arrays_equal_json_whatever_the_chunk(objects, indent, chunk):
    data = json.dumps(objects, indent=indent, ensure_ascii=False).encode("utf-8")
    assert [value for _, value in read_array(Slow(data, chunk), "x.json")] == objects


def test_lines_are_where_objects_begin():
    data = b'\xef\xbb\xbf[\n  {"a": 1,\n   "b": 2},\n\n  {"c": "x\\"]}"}, {}\n]\n'
    assert read(data) == [(2, {"a": 1, "b": 2}), (5, {"c": 'x"]}'}), (5, {})]


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "x.json, line 1: found an empty file"),
        (b'{"a": 1}', "line 1: found '{' at its start"),
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
    monkeypatch.setattr(json_records, "LONGEST", 64)
    endless = Slow(b'[{"a": "' + b"x" * 10_000, 16)
    with pytest.raises(InputError, match="never closed"):
        next(read_array(endless, "x.json"))
    assert endless.tell() < 200


def fields(**record):
    return Fields(record, "f.jsonl", 7)


@pytest.mark.parametrize(
    ("value", "expected"), [("007", "007"), (7, "7"), (None, "none"), ("", "none")]
)
def test_ids_keep_their_spelling(value, expected):
    assert fields(id=value).identifier("id", "none") == expected


@pytest.mark.parametrize(("value", "expected"), [(3, 3.0), ("-1.5", -1.5), (None, None)])
def test_numbers(value, expected):
    assert fields(score=value).number("score") == expected


@pytest.mark.parametrize(
    "read",
    [
        lambda: fields(id="a b").identifier("id"),
        lambda: fields(id=1.5).identifier("id"),
        lambda: fields(id=True).identifier("id"),
        lambda: fields(text=["a"]).text("text"),
        lambda: fields(score=True).number("score"),
        lambda: fields(score="high").number("score"),
        lambda: fields(score="inf").number("score"),
        lambda: fields(score=[1]).number("score"),
        lambda: fields(texts="abc").texts("texts"),
        lambda: fields(texts=["a", 1]).texts("texts"),
        lambda: fields(ids=["a", ""]).identifiers("ids"),
        lambda: list(fields(objects=["a"]).objects("objects")),
    ],
)
def test_wrong_types_are_refused_by_file_and_line(read):
    with pytest.raises(InputError, match=r"f\.jsonl, line 7: found "):
        read()


def test_the_rest_is_what_is_not_known():
    assert fields(a=1, b=2, c=None).rest(("a",)) == {"b": 2, "c": None}


@given(st.text())
def test_an_id_is_taken_exactly_where_a_line_of_columns_keeps_it_whole(text):
    if f"q {text} 1".split() == ["q", text, "1"]:
        assert identifier(text, "f", 1, "passage") == text
    else:
        with pytest.raises(InputError):
            identifier(text, "f", 1, "passage")


@pytest.mark.parametrize(("value", "taken"), [(7, "7"), (10**30, "1" + "0" * 30), ("007", "007")])
def test_digits_are_kept(value, taken):
    assert identifier(value, "f", 1, "query") == taken


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("a b", "the query id 'a b'"),
        ("a\u00a0b", "the query id"),
        ("", "an empty query id"),
        (" ", "an empty query id"),
        (None, "a query id that is null"),
        (True, "a query id that is bool"),
        (1.5, "a query id that is float"),
        (["a"], "a query id that is list"),
    ],
)
def test_what_is_no_id_is_told(value, found):
    with pytest.raises(InputError, match=f"f, line 3: found {found}"):
        identifier(value, "f", 3, "query")
