"""Text to pre-train on, in every format."""

import json

import pytest

from denserk.config.pretraining import RawText
from denserk.errors import InputError
from denserk.io.pretraining_text import (
    Document,
    Expansion,
    TokenDocument,
    append_queries,
    read_documents,
    read_expansions,
)
from denserk.records import Passage
from tests.expansions import write_expansions
from tests.reporters import Heard


def written(path, text):
    path.write_text(text, encoding="utf-8")
    return str(path)


def jsonl(path, *records):
    return written(path, "".join(json.dumps(record) + "\n" for record in records))


def parts(source, **options):
    documents = read_documents(source, **options)
    return [document.parts for document in documents if isinstance(document, Document)]


@pytest.mark.parametrize(
    ("text", "documents", "kind"),
    [
        ("one.\ntwo.\n", [("one.",), ("two.",)], "lines"),
        ("one.\ntwo.\n\nthree.\n", [("one.\ntwo.",), ("three.",)], "paragraphs"),
        ("one.\r\ntwo.\r\n\r\nthree.", [("one.\ntwo.",), ("three.",)], "paragraphs"),
        ("\ufeffone.\n\n\n", [("one.",)], "lines"),
        ("one.\n\n \n\ntwo.\n", [("one.",), ("two.",)], "paragraphs"),
    ],
)
def test_plain_text(tmp_path, text, documents, kind):
    heard = Heard()
    source = written(tmp_path / "c.txt", text)
    assert parts(source) == documents
    assert heard.notes == [f"c.txt: plain text, documents are {kind}"]


def test_plain_text_by_word_of_mouth(tmp_path):
    source = written(tmp_path / "c.txt", "one.\n\ntwo.\n")
    heard = Heard()
    assert parts(source, raw_text=RawText.LINES) == [("one.",), ("two.",)]
    assert heard.notes == []
    source = written(tmp_path / "d.txt", "one.\ntwo.\n")
    assert parts(source, raw_text=RawText.PARAGRAPHS) == [("one.\ntwo.",)]


def test_a_corpus_gives_its_fields_in_order(tmp_path):
    records = [
        {"_id": "1", "title": " T ", "text": "a text", "url": "u"},
        {"_id": "2", "title": "", "text": " "},
    ]
    source = jsonl(tmp_path / "c.jsonl", *records)
    found = list(read_documents(source))
    assert found == [Document("1", "T", ("T", "a text")), Document("2", "", ())]
    assert parts(source, fields=("text", "url"))[0] == ("a text", "u")


def test_spans_of_documents(tmp_path):
    heard = Heard()
    source = jsonl(tmp_path / "c.jsonl", {"spans": ["a b", " ", "c"]}, {"spans": []})
    assert list(read_documents(source)) == [
        Document("1", "", ("a b", "c"), cut=True),
        Document("2", "", (), cut=True),
    ]
    assert heard.notes == ["c.jsonl: spans of documents"]


def test_token_ids(tmp_path):
    heard = Heard()
    record = {"text": [5, 6], "queries": [[7], [8, 9]], "next": [[3]]}
    source = jsonl(tmp_path / "c.jsonl", record, {"text": []}, {"text": [1], "next": None})
    found = list(read_documents(source))
    assert [document[:4] for document in found] == [
        ([[5, 6]], False, [[7], [8, 9]], [[3]]),
        ([[]], False, None, None),
        ([[1]], False, None, None),
    ]
    assert heard.notes == ["c.jsonl: token ids of texts"]


def test_token_ids_of_spans(tmp_path):
    source = jsonl(tmp_path / "c.jsonl", {"spans": [[5, 6], [7]]})
    (found,) = read_documents(source)
    assert isinstance(found, TokenDocument)
    assert (found.texts, found.cut) == ([[5, 6], [7]], True)


@pytest.mark.parametrize(
    "record",
    [
        {"text": "words"},
        {"text": [1, "a"]},
        {"text": [1.5]},
        {"text": [True]},
        {"text": [1], "queries": [1]},
        {"text": [1], "next": "moon"},
        {},
    ],
)
def test_what_are_no_token_ids(tmp_path, record):
    source = jsonl(tmp_path / "c.jsonl", {"text": [1]}, record)
    with pytest.raises(InputError, match=r"c.jsonl, line 2: "):
        list(read_documents(source))


def test_a_folder_is_its_files_by_name(tmp_path):
    written(tmp_path / "b.txt", "two.\nthree.\n")
    jsonl(tmp_path / "a.jsonl", {"_id": "1", "text": "one."})
    written(tmp_path / ".hidden.txt", "no.\n")
    written(tmp_path / "manifest.json", "{}")
    written(tmp_path / "notes.md", "no.\n")
    assert parts(str(tmp_path)) == [("one.",), ("two.",), ("three.",)]


MADE = [
    Expansion("d1", ("who runs?", "moon \u2013 sun"), ("and then\nit fell",)),
    Expansion("d2", (), ()),
]


@pytest.mark.parametrize("name", ["x.jsonl", "x.jsonl.gz"])
def test_a_round_trip(tmp_path, name):
    assert write_expansions(tmp_path / name, MADE) == 2
    assert list(read_expansions(tmp_path / name)) == MADE


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


def test_queries_are_appended_to_the_text_of_their_passage(tmp_path):
    write_expansions(tmp_path / "x", [MADE[0], Expansion("d3", ("who?",), ())])
    passages = [Passage("d1", "it runs", "Moon"), Passage("d2", "b"), Passage("d3", "")]
    assert list(append_queries(passages, tmp_path / "x")) == [
        Passage("d1", "it runs who runs? moon \u2013 sun", "Moon"),
        Passage("d2", "b"),
        Passage("d3", "who?"),
    ]


@pytest.mark.parametrize("ids", [["d1", "d9"], ["d2", "d1"]])
def test_expansions_of_another_corpus_are_rejected(tmp_path, ids):
    write_expansions(tmp_path / "x", [Expansion(docid, ("who?",), ()) for docid in ids])
    with pytest.raises(InputError, match=f"an expansion of {ids[1]}, which the corpus does not"):
        list(append_queries([Passage("d1", "a"), Passage("d2", "b")], tmp_path / "x"))
