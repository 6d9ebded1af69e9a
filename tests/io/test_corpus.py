import gzip
import io
import json
import re
import sys
from contextlib import closing
from itertools import chain
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from denserk.config.formats import CorpusFormat, CorpusSettings
from denserk.errors import InputError
from denserk.io.corpus import COLUMNS, WRITTEN, PassageTexts, read_corpus_file, write_passages
from denserk.records import Passage

BEIR = '{"_id": "d1", "title": "h", "text": "one"}\n{"_id": "d2", "text": "two"}\n'
BEIR_WITH_MARK = "\ufeff" + BEIR.replace("\n", "\r\n")
BEIR_ARRAY = """[
 {"_id": "d1", "title": "h", "text": "one"},
 {"_id": "d2", "text": "two"}
]
"""
BEIR_PASSAGES = [Passage("d1", "one", "h"), Passage("d2", "two")]


@pytest.mark.parametrize(
    ("text", "detected", "passages"),
    [
        (BEIR, "beir corpus (_id, text, title)", BEIR_PASSAGES),
        (BEIR_WITH_MARK, "beir corpus (_id, text, title)", BEIR_PASSAGES),
        (BEIR_ARRAY, "beir corpus (_id, text, title)", BEIR_PASSAGES),
        (
            '{"docid": 7, "contents": "t", "title": "h", "text": "x"}',
            "anserini corpus (docid, contents)",
            [Passage("7", "t", "", {"title": "h", "text": "x"})],
        ),
        (
            '{"id": "1", "title": null, "text": "t", "metadata": {"a": [1]}}',
            "beir corpus (id, text, title)",
            [Passage("1", "t", "", {"metadata": {"a": [1]}})],
        ),
        ('{"docid": "1", "text": "t"}', "tevatron corpus (docid, text)", [Passage("1", "t")]),
        ('{"text": "t"}', "flag corpus (text; ids", [Passage("0", "t")]),
        ('7\t"half\n\n8\t', "marco corpus (id, text)", [Passage("7", '"half'), Passage("8", "")]),
        ("1\th\tt", "marco-titles corpus (id, text, title)", [Passage("1", "t", "h")]),
        (
            'id\ttext\ttitle\n1\t"a ""b"" c"\th\n2\t"two\nlines"\t""',
            "dpr corpus (id, text, title",
            [Passage("1", 'a "b" c', "h"), Passage("2", "two\nlines")],
        ),
        ("id\ttitle\ttext\n1\th\tt", "dpr corpus (id, text, title", [Passage("1", "t", "h")]),
    ],
)
@pytest.mark.parametrize("source", ["c.gz", "-"])
def test_a_corpus_is_detected_by_its_first_line(
    tmp_path, monkeypatch, text, detected, passages, source, caplog
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.gz").write_bytes(gzip.compress(text.encode()))
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(text.encode())))
    assert list(read_corpus_file(source)) == passages
    (message,) = caplog.messages
    name = "standard input" if source == "-" else source
    assert message.startswith(f"{name}: {detected}")


def test_a_file_of_blank_lines_has_no_passages(tmp_path, caplog):
    path = tmp_path / "c"
    path.write_text("\n \n")
    assert list(read_corpus_file(path)) == []
    assert caplog.messages == []


ids = st.text(st.characters(exclude_categories=["Z", "C"]), min_size=1)
texts = st.text(st.characters(exclude_categories=["Cs"]))
passages_with_url = st.builds(Passage, ids, texts, texts, st.just({"url": [1]}))


def passage_as_written(passage, corpus_format):
    """Return what a format keeps of a passage."""
    docid, text, title, extra = passage
    if corpus_format is CorpusFormat.ANSERINI:
        contents = f"{title}\n{text}" if title else text
        return Passage(docid, contents, "", extra)
    if corpus_format is CorpusFormat.MARCO:
        contents = f"{title} {text}" if title else text
        return Passage(docid, on_one_line(contents))
    if corpus_format in COLUMNS:
        return Passage(docid, on_one_line(text), on_one_line(title))
    return passage


def on_one_line(text):
    return re.sub("\r\n|[\t\n\r]", " ", text)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(passages=st.lists(passages_with_url, min_size=1, max_size=3))
@pytest.mark.parametrize("corpus_format", WRITTEN)
def test_a_written_corpus_reads_back(tmp_path, corpus_format, passages):
    path = tmp_path / "c"
    assert write_passages(path, passages, corpus_format) == len(passages)
    assert list(read_corpus_file(path, CorpusSettings(corpus_format))) == [
        passage_as_written(passage, corpus_format) for passage in passages
    ]


@pytest.mark.parametrize(
    ("record", "fields", "passage"),
    [
        ({"contents": "h\tt"}, ["title", "text"], Passage("1", "t", "h")),
        ({"contents": "u\th\tt"}, ["url", "title", "text"], Passage("1", "t", "h", {"url": "u"})),
        ({"contents": "h\tt\t"}, ["title", "text"], Passage("1", "t", "h")),
        ({"contents": "a\tb"}, ["text"], Passage("1", "a\tb")),
        (
            {"contents": "x", "title": "h", "text": "t"},
            ["title", "text"],
            Passage("1", "t", "h"),
        ),
    ],
)
def test_contents_split_into_named_fields(tmp_path, record, fields, passage):
    path = tmp_path / "c"
    path.write_text(json.dumps({"id": "1", **record}))
    settings = CorpusSettings(delimiter="\\t")
    assert list(read_corpus_file(path, settings, fields)) == [passage]


FIRST = '{"_id": "1", "text": "t"}\n'


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (FIRST + '{"_id": "2", "title": "h"}', "line 2: found no text"),
        (FIRST + '{"title": "h", "text": "t"}', "line 2: found no _id"),
        (FIRST + '{"_id": "a b", "text": "t"}', "line 2: found the passage id 'a b'"),
        (FIRST + '{"_id": null, "text": "t"}', "line 2: found a passage id that is null"),
        (FIRST + '{"_id": "2", "text": ["t"]}', "line 2: found a list as text"),
        (FIRST + '{"_id": "2", "text": "t", "title": 3}', "line 2: found a number as title"),
        ("a\tb\tc\td", "line 1: found .*expected JSON lines, or 2 columns"),
    ],
)
def test_broken_passages_are_reported_with_their_line(tmp_path, text, found):
    path = tmp_path / "c"
    path.write_text(text)
    with pytest.raises(InputError, match=found):
        list(read_corpus_file(path))


@pytest.mark.parametrize(
    ("corpus_format", "text", "found"),
    [
        ("marco", "1\ta\n2\ta\tb", "line 2: found 3 columns between tabs; expected 2"),
        ("marco", FIRST, "line 1: found 1 column between tabs; expected 2: id, text"),
        ("dpr", 'id\ttext\ttitle\n1\t"never closed\thead\n2\tx\ty', "line 2: found 2"),
        ("dpr", '1\t"' + "x" * 200_000, "line 1: found 2 columns between tabs"),
        ("anserini", FIRST, "line 1: found the keys _id, text; expected id._id.docid with"),
        ("beir", "1\tt\th", "line 1: found a line that is not JSON"),
    ],
)
def test_passages_that_are_not_of_the_named_format(tmp_path, corpus_format, text, found):
    path = tmp_path / "c"
    path.write_text(text)
    with pytest.raises(InputError, match=found):
        list(read_corpus_file(path, CorpusSettings(CorpusFormat(corpus_format))))


def test_passages_without_the_named_id(tmp_path):
    path = tmp_path / "c"
    path.write_text(FIRST)
    with pytest.raises(InputError, match="line 1: found the fields _id, text; expected url"):
        list(read_corpus_file(path, CorpusSettings(docid_field="url")))


@pytest.mark.parametrize(
    ("settings", "docid"),
    [
        (CorpusSettings(CorpusFormat.TEVATRON), "of-docid"),
        (CorpusSettings(docid_field="url"), "of-url"),
    ],
)
def test_a_format_or_an_id_key_that_is_named_decides_the_id(tmp_path, settings, docid):
    path = tmp_path / "c"
    path.write_text('{"_id": "of-_id", "url": "of-url", "docid": "of-docid", "text": "x"}')
    (passage,) = read_corpus_file(path, settings)
    assert passage.docid == docid


unique_docids = st.lists(st.text("abc", min_size=1, max_size=3), unique=True)


@given(docids=unique_docids, references=st.lists(unique_docids, max_size=4))
def test_noted_passages_are_returned(docids, references, tmp_path_factory):
    passages = {docid: Passage(docid, f"text of {docid}", "title") for docid in docids}
    noted_docids = list(chain.from_iterable(references))
    path = tmp_path_factory.mktemp("texts") / "texts"
    with closing(PassageTexts(path)) as texts:
        for reference in references:
            texts.refer(reference)
        texts.find(passages.values(), "corpus")
        assert texts.get(noted_docids) == [passages.get(docid) for docid in noted_docids]
        assert set(texts.missing) == set(noted_docids) - passages.keys()


def test_an_id_twice_is_rejected_where_it_is_needed(tmp_path):
    passages = [Passage(docid, docid) for docid in ("d1", "d2", "d3", "d2")]
    with closing(PassageTexts(tmp_path / "texts")) as texts:
        texts.refer(["d2"])
        with pytest.raises(InputError, match="corpus: found the id d2 twice"):
            texts.find(passages, "corpus")
