import pytest

from denserk.errors import InputError
from denserk.formats.json_fields import Fields


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
