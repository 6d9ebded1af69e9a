import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from denserk.errors import InputError, UsageError
from denserk.formats.topics_file import WRITTEN, read_topics_file, write_queries
from denserk.records import Query
from denserk.settings.formats import TopicsFormat
from tests.reporters import Heard

QA = [{"question": "who", "answers": ["a"]}, {"question": "u", "answers": []}]
BY_ID = {"7": {"question": "who", "answers": ["a"]}}


@pytest.mark.parametrize(
    ("name", "text", "told", "read"),
    [
        ("q.tsv", "q1\tone\n", "tsv queries (id, text,", [Query("q1", "one")]),
        ("q.tsv", "q1\tone\t['x']\n", "tsv queries", [Query("q1", "one\t['x']")]),
        ("q.qa.csv", "who\t['a']", "dpr queries (question, answers;", [Query("0", "who", ("a",))]),
        ("q", '{"_id": "1", "text": "t"}', "beir queries (_id, text)", [Query("1", "t")]),
        ("q", '{"qid": "1", "title": "t"}', "anserini queries (qid, title)", [Query("1", "t")]),
        ("q", '{"query_id": 1, "query": "t"}', "tevatron queries (query_id, ", [Query("1", "t")]),
        (
            "q",
            '{"question": "t", "answer": "a"}',
            "qa queries (question; ids count from 0)",
            [Query("0", "t", ("a",))],
        ),
        ("q", json.dumps(QA), "qa queries", [Query("0", "who", ("a",)), Query("1", "u")]),
        ("q", json.dumps(BY_ID), "qa queries (an object of", [Query("7", "who", ("a",))]),
        ("q", json.dumps(BY_ID, indent=1), "qa queries (an object of", [Query("7", "who", ("a",))]),
        (
            "P17.test.json",
            json.dumps(QA[:1]),
            "entity-questions queries",
            [Query("P17-0", "who", ("a",), {"relation": "P17"})],
        ),
        ("q", "\n", None, []),
    ],
)
def test_queries_are_told_by_their_first_line(tmp_path, name, text, told, read):
    path = tmp_path / name
    path.write_text(text)
    notes = Heard()
    assert list(read_topics_file(path)) == read
    assert [note.startswith(f"{name}: {told}") for note in notes.notes] == [True] * bool(told)


@pytest.mark.parametrize(
    ("form", "text", "found"),
    [
        (None, "no tab here", "line 1: found a line without a tab"),
        (None, '{"a": 1}', "line 1: found the keys a"),
        (None, '{"_id": "1", "text": "t"}\n{"_id": "2"}', "line 2: found no text"),
        (None, '{"_id": "1",\n', "line 1: found a line that is not JSON"),
        (None, "{\n", "found a document that is not JSON"),
        (TopicsFormat.DPR, "who\tme", "line 1: found answers 'me'"),
        (TopicsFormat.TSV, '{"_id": "1"}', "line 1: found a line without a tab"),
        (TopicsFormat.ENTITY_QUESTIONS, '[{"a": 1}]', "line 1: found no question"),
    ],
)
def test_broken_queries_are_told(tmp_path, form, text, found):
    (tmp_path / "q").write_text(text)
    with pytest.raises(InputError, match=found):
        list(read_topics_file(tmp_path / "q", form))


ids = st.text(st.characters(exclude_categories=["Z", "C"]), min_size=1)
texts = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]))
queries = st.lists(
    st.builds(lambda q, t, a: Query(q, t, tuple(a)), ids, texts, st.lists(texts, max_size=2)),
    min_size=1,
    max_size=3,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(queries=queries)
@pytest.mark.parametrize("form", WRITTEN)
def test_written_queries_read_back(tmp_path, form, queries):
    assert write_queries(tmp_path / "q", queries, form) == len(queries)
    if form is TopicsFormat.TSV:
        queries = [query._replace(answers=()) for query in queries]
    if form is TopicsFormat.DPR:
        queries = [query._replace(qid=str(i)) for i, query in enumerate(queries)]
    assert list(read_topics_file(tmp_path / "q", form)) == queries


def test_other_keys_survive(tmp_path):
    query = Query("1", "t", (), {"title": "story"})
    write_queries(tmp_path / "q", [query], TopicsFormat.BEIR)
    assert list(read_topics_file(tmp_path / "q")) == [query]


def test_a_folder_shape_is_not_written(tmp_path):
    with pytest.raises(UsageError, match=r"entity-questions is a folder"):
        write_queries(tmp_path / "q", [], TopicsFormat.ENTITY_QUESTIONS)
