import pytest

from denserk.errors import InputError
from denserk.formats import text_jsonl
from denserk.formats.text_jsonl import PASSAGES, QUERIES, match, recognise, split_contents
from denserk.records import Passage, Query
from denserk.settings.formats import CorpusFormat, TopicsFormat


def passages(*records, form=None, fields=None):
    _, keys = recognise(records[0], PASSAGES, form, "c.jsonl", 1)
    objects = ((line, dict(record)) for line, record in enumerate(records, start=1))
    return list(text_jsonl.read_passages(objects, keys, "c.jsonl", fields))


def queries(*records, form=None):
    _, keys = recognise(records[0], QUERIES, form, "q.jsonl", 1)
    objects = ((line, dict(record)) for line, record in enumerate(records, start=1))
    return list(text_jsonl.read_queries(objects, keys, "q.jsonl"))


@pytest.mark.parametrize(
    ("record", "form"),
    [
        ({"id": "1", "contents": "t"}, CorpusFormat.ANSERINI),
        ({"docid": "1", "contents": "t", "title": "h", "text": "x"}, CorpusFormat.ANSERINI),
        ({"_id": "1", "title": "h", "text": "t"}, CorpusFormat.BEIR),
        ({"id": "1", "text": "t"}, CorpusFormat.BEIR),
        ({"docid": "1", "text": "t"}, CorpusFormat.TEVATRON),
        ({"text": "t"}, CorpusFormat.FLAG),
    ],
)
def test_a_corpus_is_known_by_its_keys(record, form):
    assert recognise(record, PASSAGES, None, "c", 1)[0] is form


@pytest.mark.parametrize(
    ("record", "form"),
    [
        ({"_id": "1", "text": "t"}, TopicsFormat.BEIR),
        ({"_id": "1", "text": "t", "title": "h"}, TopicsFormat.BEIR),
        ({"query_id": "1", "query": "t"}, TopicsFormat.TEVATRON),
        ({"query_id": "1", "query_text": "t"}, TopicsFormat.TEVATRON),
        ({"id": "1", "title": "t"}, TopicsFormat.ANSERINI),
        ({"qid": "1", "title": "t"}, TopicsFormat.ANSERINI),
        ({"question": "t", "answer": ["a"]}, TopicsFormat.QA),
    ],
)
def test_queries_are_known_by_their_keys(record, form):
    assert recognise(record, QUERIES, None, "q", 1)[0] is form
    assert queries(record)[0].text == "t"


def test_every_shape_of_json_lines_has_its_row():
    assert set(PASSAGES) == set(CorpusFormat) - {"marco", "marco-titles", "dpr"}
    assert set(QUERIES) == set(TopicsFormat) - {"tsv", "dpr", "entity-questions"}


def test_passages_keep_what_the_shape_does_not_use():
    metadata = {"url": "u"}
    assert passages({"_id": 7, "title": None, "text": "t", "metadata": metadata}) == [
        Passage("7", "t", "", {"metadata": metadata})
    ]
    assert passages({"id": "1", "contents": "h\nt", "title": "h"}) == [
        Passage("1", "h\nt", "", {"title": "h"})
    ]
    assert passages({"text": "a"}, {"text": "b"}) == [Passage("0", "a"), Passage("1", "b")]


def test_queries_keep_answers_and_other_keys():
    assert queries({"_id": "1", "text": "t", "title": "h", "answers": ["a", "b"]}) == [
        Query("1", "t", ("a", "b"), {"title": "h"})
    ]
    assert queries({"question": "t", "answer": "a"}, {"question": "u"}) == [
        Query("0", "t", ("a",)),
        Query("1", "u"),
    ]
    assert queries({"id": "9", "question": "t"}) == [Query("9", "t")]


@pytest.mark.parametrize(
    ("record", "found"),
    [
        ({"text": "t"}, "no _id"),
        ({"_id": "2", "title": "h"}, "no text"),
        ({"_id": "a b", "text": "t"}, "the passage id 'a b'"),
        ({"_id": "2", "text": ["t"]}, "text that is list"),
        ({"_id": "2", "text": "t", "title": 3}, "title that is int"),
    ],
)
def test_a_broken_passage_is_told_with_its_line(record, found):
    with pytest.raises(InputError, match=f"c.jsonl, line 2: found {found}"):
        passages({"_id": "1", "text": "t"}, record)


@pytest.mark.parametrize("answers", [[1], {"a": 1}, 3, None])
def test_answers_are_strings(answers):
    with pytest.raises(InputError, match=r"line 1: found answers .*expected a list of strings"):
        queries({"_id": "1", "text": "t", "answers": answers})


def test_unknown_keys_are_told():
    with pytest.raises(InputError, match=r"found the keys qid, body; expected _id.id with text"):
        recognise({"qid": 1, "body": 2}, PASSAGES, CorpusFormat.BEIR, "c", 1)
    with pytest.raises(InputError, match=r"the keys of an empty object") as refusal:
        recognise({}, PASSAGES, None, "c", 1)
    assert refusal.value.hint == "force a shape: anserini, beir, tevatron, flag"


@pytest.mark.parametrize(
    ("passage", "fields", "split"),
    [
        (Passage("1", "h\nt"), ["title", "text"], Passage("1", "t", "h", {})),
        (Passage("1", "u\nh\nt"), ["url", "title", "text"], Passage("1", "t", "h", {"url": "u"})),
        (Passage("1", "h\nt\n"), ["title", "text"], Passage("1", "t", "h", {})),
        (Passage("1", "h\n"), ["title", "text"], Passage("1", "", "h", {})),
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


def test_contents_of_other_parts_than_fields_are_told():
    with pytest.raises(InputError, match=r"line 1: found contents of 1 parts .* expected 2: title"):
        passages({"id": "1", "contents": "t"}, fields=["title", "text"])


@pytest.mark.parametrize("record", [{"a": 1}, {"id": 1}, {"contents": "t"}])
def test_half_a_shape_is_none(record):
    assert match(record, PASSAGES[CorpusFormat.ANSERINI]) is None
