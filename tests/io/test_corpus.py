import gzip
import io
import json
import sys
from contextlib import closing
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from denserk.config.formats import CorpusFormat, CorpusSettings
from denserk.errors import InputError, UsageError
from denserk.io.corpus import COLUMNS, WRITTEN, PassageTexts, read_corpus_file, write_passages
from denserk.records import Passage

BEIR = '{"_id": "d1", "title": "h", "text": "one"}\n{"_id": "d2", "text": "two"}\n'
AS: dict[str, CorpusSettings] = {form: CorpusSettings(corpus_format=form) for form in CorpusFormat}
IS_BEIR = "beir corpus (_id, text, title)"
RECORDS = [Passage("d1", "one", "h"), Passage("d2", "two")]


@pytest.mark.parametrize(
    ("text", "detected", "read"),
    [
        (BEIR, IS_BEIR, RECORDS),
        ("\ufeff" + BEIR.replace("\n", "\r\n"), IS_BEIR, RECORDS),
        (json.dumps([*map(json.loads, BEIR.splitlines())], indent=1), IS_BEIR, RECORDS),
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
        ("\n \n", None, []),
    ],
)
def test_a_corpus_is_detected_by_its_first_line(
    tmp_path, monkeypatch, text, detected, read, caplog
):
    path, data = tmp_path / "c.gz", text.encode()
    path.write_bytes(gzip.compress(data))
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data)))
    for source, name in ((str(path), "c.gz"), ("-", "standard input")):
        caplog.clear()
        assert list(read_corpus_file(source)) == read
        if detected is None:
            assert caplog.messages == []
        else:
            (message,) = caplog.messages
            assert message.startswith(f"{name}: {detected}")


ids = st.text(st.characters(exclude_categories=["Z", "C"]), min_size=1)
texts = st.text(st.characters(exclude_categories=["Cs"]))


def as_written(passage, form):
    """What a format keeps of a passage."""

    def flat(text):
        return text.replace("\r\n", " ").translate(str.maketrans("\t\n\r", "   "))

    docid, text, title, extra = passage
    if form is CorpusFormat.ANSERINI:
        return Passage(docid, f"{title}\n{text}" if title else text, "", extra)
    if form is CorpusFormat.MARCO:
        return Passage(docid, flat(f"{title} {text}" if title else text))
    return Passage(docid, flat(text), flat(title)) if form in COLUMNS else passage


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(
    st.lists(st.builds(Passage, ids, texts, texts, st.just({"url": [1]})), min_size=1, max_size=3)
)
@pytest.mark.parametrize("form", WRITTEN)
def test_a_written_corpus_reads_back(tmp_path, form, passages):
    path = tmp_path / "c"
    assert write_passages(path, passages, form) == len(passages)
    assert list(read_corpus_file(path, AS[form])) == [as_written(p, form) for p in passages]


@pytest.mark.parametrize(
    ("record", "fields", "split"),
    [
        ({"contents": "h\tt"}, ["title", "text"], ("t", "h", {})),
        ({"contents": "u\th\tt"}, ["url", "title", "text"], ("t", "h", {"url": "u"})),
        ({"contents": "h\tt\t"}, ["title", "text"], ("t", "h", {})),
        ({"contents": "a\tb"}, ["text"], ("a\tb", "", {})),
        ({"contents": "x", "title": "h", "text": "t"}, ["title", "text"], ("t", "h", {})),
    ],
)
def test_contents_split_into_named_fields(tmp_path, record, fields, split):
    (tmp_path / "c").write_text(json.dumps({"id": "1", **record}))
    read = read_corpus_file(tmp_path / "c", CorpusSettings(delimiter="\\t"), fields)
    assert list(read) == [Passage("1", *split)]


FIRST = '{"_id": "1", "text": "t"}\n'
URL = CorpusSettings(docid_field="url")


@pytest.mark.parametrize(
    ("given", "text", "found"),
    [
        (None, FIRST + '{"_id": "2", "title": "h"}', "line 2: found no text"),
        (None, FIRST + '{"title": "h", "text": "t"}', "line 2: found no _id"),
        (None, FIRST + '{"_id": "a b", "text": "t"}', "line 2: found the passage id 'a b'"),
        (None, FIRST + '{"_id": null, "text": "t"}', "line 2: found a passage id that is null"),
        (None, FIRST + '{"_id": "2", "text": ["t"]}', "line 2: found list as text"),
        (None, FIRST + '{"_id": "2", "text": "t", "title": 3}', "line 2: found int as title"),
        (None, "a\tb\tc\td", "line 1: found .*expected JSON lines, or 2 columns"),
        (AS["marco"], "1\ta\n2\ta\tb", "line 2: found 3 columns between tabs; expected 2"),
        (AS["marco"], FIRST, "line 1: found 1 column between tabs; expected 2: id, text"),
        (AS["dpr"], 'id\ttext\ttitle\n1\t"never closed\thead\n2\tx\ty', "line 2: found 2"),
        (AS["dpr"], '1\t"' + "x" * 200_000, "line 1: found 2 columns between tabs"),
        (AS["anserini"], FIRST, "line 1: found the keys _id, text; expected id._id.docid with"),
        (AS["beir"], "1\tt\th", "line 1: found a line that is not JSON"),
        (URL, FIRST, "line 1: found the fields _id, text; expected url"),
    ],
)
def test_broken_passages_are_reported_with_their_line(tmp_path, given, text, found):
    (tmp_path / "c").write_text(text)
    with pytest.raises((InputError, UsageError), match=found):
        list(read_corpus_file(tmp_path / "c", *([given] if given else [])))


@pytest.mark.parametrize(("given", "docid"), [(AS["tevatron"], "t"), (URL, "u")])
def test_a_format_and_an_id_key_that_are_named(tmp_path, given, docid):
    (tmp_path / "c").write_text('{"_id": "b", "url": "u", "docid": "t", "text": "x"}')
    assert [passage.docid for passage in read_corpus_file(tmp_path / "c", given)] == [docid]


DOCIDS = st.lists(st.text("abc", min_size=1, max_size=3), unique=True)


@given(docids=DOCIDS, referred=st.lists(DOCIDS, max_size=4))
def test_noted_passages_are_returned(docids, referred, tmp_path_factory):
    passages = {docid: Passage(docid, f"text of {docid}", "title") for docid in docids}
    wanted = [docid for docids in referred for docid in docids]
    path = tmp_path_factory.mktemp("texts") / "texts"
    with closing(PassageTexts(path)) as texts:
        for each in referred:
            texts.refer(each)
        texts.find(passages.values(), "corpus")
        assert texts.get(wanted) == [passages.get(docid) for docid in wanted]
        assert set(texts.missing) == set(wanted) - passages.keys()


def test_an_id_twice_is_rejected_where_it_is_needed(tmp_path):
    passages = [Passage(docid, docid) for docid in ("d1", "d2", "d3", "d2")]
    with closing(PassageTexts(tmp_path / "texts")) as texts:
        texts.refer(["d2"])
        with pytest.raises(InputError, match="corpus: found the id d2 twice"):
            texts.find(passages, "corpus")
