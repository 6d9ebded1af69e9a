import gzip
import io
import json
import sys
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from denserk.config.formats import CorpusFormat, CorpusSettings
from denserk.errors import InputError, UsageError
from denserk.io.corpus import WRITTEN, read_corpus_file, read_tsv, split_contents, write_passages
from denserk.records import Passage
from tests.reporters import Heard

BEIR = '{"_id": "d1", "title": "h", "text": "one"}\n{"_id": "d2", "text": "two"}\n'
RECORDS = [Passage("d1", "one", "h"), Passage("d2", "two")]


@pytest.mark.parametrize(
    ("text", "told", "read"),
    [
        (BEIR, "beir corpus (_id, text, title)", RECORDS),
        ("\ufeff" + BEIR.replace("\n", "\r\n"), "beir corpus (_id, text, title)", RECORDS),
        (
            json.dumps([json.loads(line) for line in BEIR.splitlines()], indent=1),
            "beir corpus (_id, text, title)",
            RECORDS,
        ),
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
        (
            '007\t"half\n\n8\t',
            "marco corpus (id, text,",
            [Passage("007", '"half'), Passage("8", "")],
        ),
        ("1\th\tt", "marco-titles corpus (id, title, text,", [Passage("1", "t", "h")]),
        (
            'id\ttext\ttitle\n1\t"a ""b"" c"\th\n2\t"two\nlines"\t""',
            "dpr corpus (id, text, title",
            [Passage("1", 'a "b" c', "h"), Passage("2", "two\nlines")],
        ),
        ("id\ttitle\ttext\n1\th\tt", "dpr corpus (id, text, title", [Passage("1", "t", "h")]),
        ("\n \n", None, []),
    ],
)
@pytest.mark.parametrize("how", ["gzip", "stream"])
def test_a_corpus_is_told_by_its_first_line(tmp_path, monkeypatch, text, told, read, how):
    path, data, notes = tmp_path / "c.gz", text.encode(), Heard()
    path.write_bytes(gzip.compress(data))
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data)))
    assert list(read_corpus_file("-" if how == "stream" else str(path))) == read
    name = "standard input" if how == "stream" else "c.gz"
    assert [note.startswith(f"{name}: {told}") for note in notes.notes] == [True] * bool(told)


def test_a_forced_format_is_not_reported(tmp_path):
    path = tmp_path / "c.jsonl"
    path.write_text('{"_id": "b", "docid": "t", "text": "x"}')
    notes = Heard()
    forced = CorpusSettings(corpus_format=CorpusFormat.TEVATRON)
    assert next(iter(read_corpus_file(path, forced))).docid == "t"
    assert not notes.notes
    with pytest.raises(
        InputError, match=r"found the keys _id, docid, text; expected id._id.docid with"
    ):
        list(read_corpus_file(path, CorpusSettings(corpus_format=CorpusFormat.ANSERINI)))
    with pytest.raises(InputError, match=r"c.jsonl, line 1: found 1 column between tabs"):
        list(read_corpus_file(path, CorpusSettings(corpus_format=CorpusFormat.MARCO)))
    path.write_text("1\tt\th")
    assert list(read_corpus_file(path, CorpusSettings(corpus_format=CorpusFormat.DPR))) == [
        Passage("1", "t", "h")
    ]
    with pytest.raises(InputError, match=r"line 1: found a line that is not JSON"):
        list(read_corpus_file(path, CorpusSettings(corpus_format=CorpusFormat.BEIR)))
    path.write_text("a\tb\tc\td")
    with pytest.raises(InputError, match=r"line 1: found .*expected JSON lines, or 2 columns"):
        list(read_corpus_file(path))


def test_the_id_from_a_key_that_was_named(tmp_path):
    path = tmp_path / "c.jsonl"
    path.write_text('{"url": "u1", "contents": "x"}')
    named = CorpusSettings(docid_field="url")
    assert list(read_corpus_file(path, named)) == [Passage("u1", "x")]
    with pytest.raises(InputError, match=r"line 1: found the keys url, contents; expected key"):
        list(read_corpus_file(path, CorpusSettings(docid_field="key")))
    path.write_text("1\tx")
    with pytest.raises(UsageError, match=r"--docid-field url names a key of JSON lines"):
        list(read_corpus_file(path, named))


def test_contents_are_cut_at_the_delimiter(tmp_path):
    path = tmp_path / "c.jsonl"
    path.write_text('{"id": "1", "contents": "h\\tt"}')
    read = read_corpus_file(path, CorpusSettings(delimiter="\\t"), fields=("title", "text"))
    assert list(read) == [Passage("1", "t", "h", {})]


ids = st.text(st.characters(exclude_categories=["Z", "C"]), min_size=1)
texts = st.text(st.characters(exclude_categories=["Cs"]))
TABS = (CorpusFormat.MARCO, CorpusFormat.MARCO_TITLES, CorpusFormat.DPR)


def as_written(passage, form):
    """What a format keeps of a passage."""

    def flat(text):
        return text.replace("\r\n", " ").translate(str.maketrans("\t\n\r", "   "))

    docid, text, title, extra = passage
    if form is CorpusFormat.ANSERINI:
        return Passage(docid, f"{title}\n{text}" if title else text, "", extra)
    if form is CorpusFormat.MARCO:
        return Passage(docid, flat(f"{title} {text}" if title else text))
    return Passage(docid, flat(text), flat(title)) if form in TABS else passage


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(
    st.lists(st.builds(Passage, ids, texts, texts, st.just({"url": [1]})), min_size=1, max_size=3)
)
@pytest.mark.parametrize("form", WRITTEN)
def test_a_written_corpus_reads_back(tmp_path, form, passages):
    path = tmp_path / "c"
    assert write_passages(path, passages, form) == len(passages)
    forced = CorpusSettings(corpus_format=form)
    assert list(read_corpus_file(path, forced)) == [as_written(p, form) for p in passages]


@pytest.mark.parametrize(
    ("record", "found"),
    [
        ({"text": "t"}, "no _id"),
        ({"_id": "2", "title": "h"}, "no text"),
        ({"_id": "a b", "text": "t"}, "the passage id 'a b'"),
        ({"_id": "2", "text": ["t"]}, "list as text"),
        ({"_id": "2", "text": "t", "title": 3}, "int as title"),
    ],
)
def test_a_broken_passage_is_told_with_its_line(tmp_path, record, found):
    lines = [json.dumps(each) for each in ({"_id": "1", "text": "t"}, record)]
    (tmp_path / "c.jsonl").write_text("\n".join(lines))
    with pytest.raises(InputError, match=f"c.jsonl, line 2: found {found}"):
        list(read_corpus_file(tmp_path / "c.jsonl"))


@pytest.mark.parametrize(
    ("passage", "fields", "split"),
    [
        (Passage("1", "h\nt"), ["title", "text"], Passage("1", "t", "h", {})),
        (Passage("1", "u\nh\nt"), ["url", "title", "text"], Passage("1", "t", "h", {"url": "u"})),
        (Passage("1", "h\nt\n"), ["title", "text"], Passage("1", "t", "h", {})),
        (Passage("1", "a\nb"), ["text"], Passage("1", "a\nb")),
        (
            Passage("1", "x\ny\nz", "", {"title": "h", "text": "t"}),
            ["title", "text"],
            Passage("1", "t", "h", {}),
        ),
    ],
)
def test_contents_split_into_named_fields(passage, fields, split):
    assert split_contents(passage, fields, "\n", "c", 1) == split


@pytest.mark.parametrize(
    ("form", "text", "told"),
    [
        (CorpusFormat.MARCO, "1\ta\n2\ta\tb", "line 2: found 3 columns between tabs; expected 2"),
        (CorpusFormat.MARCO, "1 a", "line 1: found 1 column between tabs; expected 2: id, text"),
        (CorpusFormat.MARCO, "a b\tt", "line 1: found the passage id 'a b'"),
        (CorpusFormat.MARCO, "\tt", "line 1: found an empty passage id"),
        (CorpusFormat.DPR, 'id\ttext\ttitle\n1\t"never closed\thead\n2\tx\ty', "line 2: found 2"),
        (CorpusFormat.DPR, '1\t"' + "x" * 200_000, "line 1: found a row that is not quoted as CSV"),
    ],
)
def test_broken_passages_are_told_with_their_line(form, text, told):
    with pytest.raises(InputError, match=f"c.tsv, {told}"):
        list(read_tsv(enumerate(text.split("\n"), start=1), form, "c.tsv"))
