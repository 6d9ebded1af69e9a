import gzip

import pytest

from denserk.config.pretraining import RawText
from denserk.errors import InputError
from denserk.io.corpus import read_passages
from denserk.io.pretraining_text import (
    Document,
    Expansion,
    append_queries,
    read_documents,
    read_expansions,
)
from denserk.records import Passage
from tests.support.training_examples import jsonl, write_expansions

ONE, TWO, BOTH = (("one.",), ("two.",), ("one.\ntwo.",))
IDS = {"text": [5, 6], "queries": [[7], [8, 9]], "next": [[3]]}
TITLED = {"_id": "1", "title": " T ", "text": "a text", "url": "u"}


@pytest.mark.parametrize(
    ("text", "raw_text", "documents", "kind"),
    [
        ("one.\ntwo.\n", None, [ONE, TWO], "lines"),
        ("one.\ntwo.\n\ntwo.\n", None, [BOTH, TWO], "paragraphs"),
        ("\ufeffone.\r\ntwo.\r\n\r\n \r\ntwo.", None, [BOTH, TWO], "paragraphs"),
        ("\ufeffone.\n\n\n", None, [ONE], "lines"),
        ("one.\n\ntwo.\n", RawText.LINES, [ONE, TWO], None),
        ("one.\ntwo.\n", RawText.PARAGRAPHS, [BOTH], None),
    ],
)
def test_plain_text(tmp_path, text, raw_text, documents, kind, caplog):
    (tmp_path / "c.txt").write_text(text)
    found = read_documents(str(tmp_path / "c.txt"), raw_text=raw_text)
    assert [document.parts for document in found] == documents
    notes = [f"c.txt: plain text, documents are {kind}"] if kind else []
    assert caplog.messages == notes


@pytest.mark.parametrize(
    ("record", "document"),
    [
        (TITLED, Document("1", "T", ("a text", "u"))),
        ({"spans": ["a b", " ", "c"]}, Document("1", "", ("a b", "c"), cut=True)),
        ({"spans": []}, Document("1", "", (), cut=True)),
        (IDS, Document("", "", (), False, [[5, 6]], [[7], [8, 9]], [[3]])),
        ({"text": [1], "next": None}, Document("", "", (), False, [[1]])),
        ({"text": []}, Document("", "", (), False, [[]])),
        ({"spans": [[5, 6], [7]]}, Document("", "", (), True, [[5, 6], [7]])),
    ],
)
def test_records(tmp_path, record, document):
    (found,) = read_documents(jsonl(tmp_path / "c.jsonl", [record]), fields=("text", "url"))
    assert found[:-1] == document[:-1]


@pytest.mark.parametrize(
    "record", [{"text": "words"}, {"text": [1.5]}, {"text": [True]}, {"text": [1], "next": [1]}, {}]
)
def test_what_are_no_token_ids(tmp_path, record):
    source = jsonl(tmp_path / "c.jsonl", [{"text": [1]}, record])
    with pytest.raises(InputError, match=r"c.jsonl, line 2: "):
        list(read_documents(source))


def test_a_folder_is_its_files_by_name(tmp_path):
    (tmp_path / "b.tsv.gz").write_bytes(gzip.compress(b"d10\tone.\nd2\ttwo.\n"))
    jsonl(tmp_path / "a.jsonl", [{"_id": "1", "text": "one."}])
    for name in (".hidden.tsv", "manifest.json", "notes.md"):
        (tmp_path / name).write_text("{}")
    assert [passage.docid for passage in read_passages(str(tmp_path))] == ["1", "d10", "d2"]
    (tmp_path / "c.txt").write_text("two.\n")
    assert [document.parts for document in read_documents(str(tmp_path))] == [ONE, ONE, TWO, TWO]


def test_a_folder_of_documents(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.txt").write_text("one.\n\ntwo.\n")
    (tmp_path / "b.md").write_text("# Head\n\none.\n")
    documents = list(read_documents(str(tmp_path)))
    assert [document.docid for document in documents] == ["b.md", "sub/a.txt"]
    assert [document.parts for document in documents] == [("Head", "one."), ("one.\n\ntwo.",)]


@pytest.mark.parametrize(
    "line", ['{"queries": ["a"]}', '{"docid": "a b"}', '{"docid": "1", "next": [3]}', "[1]"]
)
def test_broken_expansions_are_named(tmp_path, line):
    (tmp_path / "x.jsonl").write_text('{"docid": "0"}\n' + line + "\n")
    with pytest.raises(InputError, match="line 2: "):
        list(read_expansions(tmp_path / "x.jsonl"))


@pytest.mark.parametrize("ids", [["d1", "d9"], ["d2", "d1"]])
def test_expansions_of_another_corpus_are_rejected(tmp_path, ids):
    write_expansions(tmp_path / "x", [Expansion(docid, ("who?",), ()) for docid in ids])
    with pytest.raises(InputError, match=f"an expansion of {ids[1]}, which the corpus does not"):
        list(append_queries([Passage("d1", "a"), Passage("d2", "b")], tmp_path / "x"))
