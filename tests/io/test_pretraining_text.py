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


@pytest.mark.parametrize(
    ("content", "texts", "unit"),
    [
        ("one.\ntwo.\n", ["one.", "two."], "lines"),
        ("one.\ntwo.\n\ntwo.\n", ["one.\ntwo.", "two."], "paragraphs"),
        ("\ufeffone.\r\ntwo.\r\n\r\n \r\ntwo.", ["one.\ntwo.", "two."], "paragraphs"),
        ("\ufeffone.\n\n\n", ["one."], "lines"),
    ],
)
def test_empty_lines_decide_where_documents_of_plain_text_end(
    tmp_path, content, texts, unit, caplog
):
    path = tmp_path / "c.txt"
    path.write_text(content)
    documents = read_documents(str(path))
    assert [document.texts for document in documents] == [(text,) for text in texts]
    assert caplog.messages == [f"c.txt: plain text, documents are {unit}"]


@pytest.mark.parametrize(
    ("content", "raw_text", "texts"),
    [
        ("one.\n\ntwo.\n", RawText.LINES, ["one.", "two."]),
        ("one.\ntwo.\n", RawText.PARAGRAPHS, ["one.\ntwo."]),
    ],
)
def test_an_option_decides_where_documents_of_plain_text_end(
    tmp_path, content, raw_text, texts, caplog
):
    path = tmp_path / "c.txt"
    path.write_text(content)
    documents = read_documents(str(path), raw_text=raw_text)
    assert [document.texts for document in documents] == [(text,) for text in texts]
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("record", "document"),
    [
        (
            {"_id": "1", "title": " T ", "text": "a text", "url": "u"},
            Document("1", "T", ("a text", "u")),
        ),
        ({"spans": ["a b", " ", "c"]}, Document("1", "", ("a b", "c"), has_spans=True)),
        ({"spans": []}, Document("1", "", (), has_spans=True)),
        (
            {"text": [5, 6], "queries": [[7], [8, 9]], "next": [[3]]},
            Document("", "", (), tokens=[[5, 6]], queries=[[7], [8, 9]], continuations=[[3]]),
        ),
        ({"text": [1], "next": None}, Document("", "", (), tokens=[[1]])),
        ({"text": []}, Document("", "", (), tokens=[[]])),
        ({"spans": [[5, 6], [7]]}, Document("", "", (), has_spans=True, tokens=[[5, 6], [7]])),
    ],
)
def test_records_are_passages_spans_or_token_ids(tmp_path, record, document):
    source = jsonl(tmp_path / "c.jsonl", [record])
    (read_document,) = read_documents(source, fields=("text", "url"))
    assert read_document._replace(path="", line=None) == document


def test_a_document_of_token_ids_knows_its_line(tmp_path):
    source = jsonl(tmp_path / "c.jsonl", [{"text": [1]}, {"text": [2]}])
    first, second = read_documents(source)
    assert (first.path, first.line) == (source, 1)
    assert (second.path, second.line) == (source, 2)


@pytest.mark.parametrize(
    "record", [{"text": "words"}, {"text": [1.5]}, {"text": [True]}, {"text": [1], "next": [1]}, {}]
)
def test_what_are_no_token_ids_is_reported_with_its_line(tmp_path, record):
    source = jsonl(tmp_path / "c.jsonl", [{"text": [1]}, record])
    with pytest.raises(InputError, match=r"c.jsonl, line 2: "):
        list(read_documents(source))


def test_a_folder_is_its_files_by_name(tmp_path):
    (tmp_path / "b.tsv.gz").write_bytes(gzip.compress(b"d10\tone.\nd2\ttwo.\n"))
    jsonl(tmp_path / "a.jsonl", [{"_id": "1", "text": "one."}])
    for name in (".hidden.tsv", "manifest.json", "notes.md"):
        (tmp_path / name).write_text("{}")
    assert [passage.docid for passage in read_passages(str(tmp_path))] == ["1", "d10", "d2"]

    (tmp_path / "c.txt").write_text("a line.\n")
    documents = read_documents(str(tmp_path))
    assert [document.texts for document in documents] == [
        ("one.",),
        ("one.",),
        ("two.",),
        ("a line.",),
    ]


def test_a_folder_of_documents(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.txt").write_text("one.\n\ntwo.\n")
    (tmp_path / "b.md").write_text("# Head\n\none.\n")
    markdown, text = read_documents(str(tmp_path))
    assert (markdown.docid, markdown.texts) == ("b.md", ("Head", "one."))
    assert (text.docid, text.texts) == ("sub/a.txt", ("one.\n\ntwo.",))


@pytest.mark.parametrize(
    "line", ['{"queries": ["a"]}', '{"docid": "a b"}', '{"docid": "1", "next": [3]}', "[1]"]
)
def test_broken_expansions_are_named(tmp_path, line):
    (tmp_path / "x.jsonl").write_text('{"docid": "0"}\n' + line + "\n")
    with pytest.raises(InputError, match="line 2: "):
        list(read_expansions(tmp_path / "x.jsonl"))


@pytest.mark.parametrize(("docids", "foreign_docid"), [(["d1", "d9"], "d9"), (["d2", "d1"], "d1")])
def test_expansions_of_another_corpus_are_rejected(tmp_path, docids, foreign_docid):
    passages = [Passage("d1", "a"), Passage("d2", "b")]
    write_expansions(tmp_path / "x", [Expansion(docid, ("who?",), ()) for docid in docids])
    with pytest.raises(InputError, match=f"an expansion of {foreign_docid}, which the corpus"):
        list(append_queries(passages, tmp_path / "x"))
