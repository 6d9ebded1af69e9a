"""What other models made of passages."""

import gzip

import pytest

from denserk.errors import InputError, UsageError
from denserk.formats.expansions import (
    Expansion,
    append_queries,
    read_expansions,
    write_expansions,
)
from denserk.records import Passage

MADE = [
    Expansion("d1", ("who runs?", "moon \u2013 sun"), ("and then\nit fell",)),
    Expansion("d2", (), ()),
]


@pytest.mark.parametrize("name", ["x.jsonl", "x.jsonl.gz"])
def test_a_round_trip(tmp_path, name):
    assert write_expansions(tmp_path / name, MADE) == 2
    assert list(read_expansions(tmp_path / name)) == MADE


def test_what_is_absent_is_empty(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"docid": 7}\n{"docid": "8", "queries": null, "next": []}\n')
    assert list(read_expansions(tmp_path / "x.jsonl")) == [
        Expansion("7", (), ()),
        Expansion("8", (), ()),
    ]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ('{"queries": ["a"]}', "line 2: found an expansion without `docid`"),
        ('{"docid": "a b"}', "line 2: "),
        ('{"docid": "1", "queries": "who"}', "line 2: "),
        ('{"docid": "1", "next": [3]}', "line 2: "),
        ('{"docid": ', "line 2: "),
        ("[1]", "line 2: "),
    ],
)
def test_broken_lines_are_named(tmp_path, line, found):
    (tmp_path / "x.jsonl").write_text('{"docid": "0"}\n' + line + "\n")
    with pytest.raises(InputError, match=found):
        list(read_expansions(tmp_path / "x.jsonl"))


def test_no_such_file(tmp_path):
    with pytest.raises(UsageError):
        list(read_expansions(tmp_path / "none.jsonl"))


def test_nothing_is_left_of_a_write_that_fails(tmp_path):
    def broken():
        yield MADE[0]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_expansions(tmp_path / "x.jsonl", broken())
    assert list(tmp_path.iterdir()) == []


def test_gzip_is_written_as_its_name_says(tmp_path):
    write_expansions(tmp_path / "x.jsonl.gz", MADE)
    with gzip.open(tmp_path / "x.jsonl.gz") as lines:
        assert next(lines).startswith(b'{"docid":"d1"')


def test_queries_are_appended_to_the_text_of_their_passage(tmp_path):
    write_expansions(tmp_path / "x", [MADE[0], Expansion("d3", ("who?",), ())])
    passages = [Passage("d1", "it runs", "Moon"), Passage("d2", "b"), Passage("d3", "")]
    assert list(append_queries(passages, tmp_path / "x")) == [
        Passage("d1", "it runs who runs? moon \u2013 sun", "Moon"),
        Passage("d2", "b"),
        Passage("d3", "who?"),
    ]


@pytest.mark.parametrize("ids", [["d1", "d9"], ["d2", "d1"]])
def test_expansions_of_another_corpus_are_refused(tmp_path, ids):
    write_expansions(tmp_path / "x", [Expansion(docid, ("who?",), ()) for docid in ids])
    with pytest.raises(InputError, match=f"an expansion of {ids[1]}, which the corpus does not"):
        list(append_queries([Passage("d1", "a"), Passage("d2", "b")], tmp_path / "x"))
