import pytest
from hypothesis import given
from hypothesis import strategies as st

from denserk.errors import InputError
from denserk.formats.identifiers import identifier


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
