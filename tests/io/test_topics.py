import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from denserk.config.formats import TopicsFormat
from denserk.errors import InputError
from denserk.io.topics import (
    WRITTEN,
    contexts_writer,
    read_questions,
    read_topics_file,
    write_queries,
)
from denserk.records import Passage, Query

QA = [{"question": "who", "answers": ["a"]}, {"question": "u", "answers": []}]
BY_ID = {"7": {"question": "who", "answers": ["a"]}}


@pytest.mark.parametrize(
    ("text", "detected", "read"),
    [
        (
            "1\tone\t['x']\n \n2\t",
            "tsv queries (id, text)",
            [Query("1", "one\t['x']"), Query("2", "")],
        ),
        (
            'who\t[\'a\']\n\n"""What"" then"\t"[""b\'s""]"',
            "dpr queries (question;",
            [Query("0", "who", ("a",)), Query("1", '"What" then', ("b's",))],
        ),
        (
            "who\t['20\\s?,?\\d', ]\nwhy\t('a', 'b')\nhow\t[]",
            "dpr queries",
            [Query("0", "who", (r"20\s?,?\d",)), Query("1", "why", ("a", "b")), Query("2", "how")],
        ),
        ('{"_id": "1", "text": "t"}', "beir queries (_id, text)", [Query("1", "t")]),
        ('{"qid": "1", "title": "t"}', "anserini queries (qid, title)", [Query("1", "t")]),
        (
            '{"query_id": "1", "query_text": "t", "title": "h", "answers": ["a", "b"]}',
            "tevatron queries (query_id, query_text)",
            [Query("1", "t", ("a", "b"), {"title": "h"})],
        ),
        (
            '{"question": "t", "answer": "a"}',
            "qa queries (question; ids count from 0)",
            [Query("0", "t", ("a",))],
        ),
        (json.dumps(QA), "qa queries", [Query("0", "who", ("a",)), Query("1", "u")]),
        (json.dumps(BY_ID), "qa queries (_id", [Query("7", "who", ("a",))]),
        ("\ufeff" + json.dumps(BY_ID, indent=1), "qa queries (_id", [Query("7", "who", ("a",))]),
        ("\n", None, []),
    ],
)
def test_queries_are_detected_by_their_first_line(tmp_path, text, detected, read, caplog):
    (tmp_path / "q").write_text(text)
    assert list(read_topics_file(tmp_path / "q")) == read
    if detected is None:
        assert caplog.messages == []
    else:
        (message,) = caplog.messages
        assert message.startswith(f"q: {detected}")


NO_ANSWERS = ["me", "['a'", "[1]", "{'a': 1}", "[__import__('os').getcwd()]", "[" * 500, "\0"]


@pytest.mark.parametrize(
    ("form", "text", "found"),
    [
        (None, "no tab here", "line 1: found a line without a tab"),
        (None, '{"a": 1}', "line 1: found the keys a"),
        (None, '{"_id": "1", "text": "t"}\n{"_id": "2"}', "line 2: found no text"),
        (None, "{\n", "found a document that is not JSON"),
        (None, '{\n"7": 3}', "q: found a number for query 7"),
        (None, '{"7": {"answers": []}}', "q: found the keys _id, answers"),
        (None, "a\t['b']\nwho", "line 2: found 1 column between tabs"),
        *((TopicsFormat.DPR, f"who\t{bad}", "line 1: found answers ") for bad in NO_ANSWERS),
        (TopicsFormat.ENTITY_QUESTIONS, '[{"a": 1}]', "line 1: found the keys a; expected"),
        (None, '{"_id": "1", "text": "t", "answers": [1]}', "line 1: found answers .1"),
        (TopicsFormat.QA, '{"q1": "who"}', "found the keys _id, text; expected .* with question"),
    ],
)
def test_broken_queries_are_reported(tmp_path, form, text, found):
    (tmp_path / "q").write_text(text)
    with pytest.raises(InputError, match=found):
        list(read_topics_file(tmp_path / "q", form))


ids = st.text(st.characters(exclude_categories=["Z", "C"]), min_size=1)
texts = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]))
lists_of_queries = st.lists(
    st.builds(lambda q, t, a: Query(q, t, tuple(a)), ids, texts, st.lists(texts, max_size=2)),
    min_size=1,
    max_size=3,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(queries=lists_of_queries)
@pytest.mark.parametrize("form", WRITTEN)
def test_written_queries_read_back(tmp_path, form, queries):
    assert write_queries(tmp_path / "q", queries, form) == len(queries)
    if form is TopicsFormat.TSV:
        queries = [query._replace(answers=()) for query in queries]
    if form is TopicsFormat.DPR:
        queries = [query._replace(qid=str(i)) for i, query in enumerate(queries)]
    assert list(read_topics_file(tmp_path / "q", form)) == queries


@pytest.mark.parametrize(
    ("text", "answers"),
    [
        ('{"_id": "q1", "answers": ["a"]}\n{"_id": "q2", "answers": []}', {"q1": ("a",), "q2": ()}),
        ('{"0": {"question": "who", "answers": ["a"], "contexts": []}}', {"0": ("a",)}),
        ("who\t['a']", {"0": ("a",)}),
    ],
)
def test_answers_without_their_question(tmp_path, text, answers):
    (tmp_path / "a").write_text(text)
    assert {q.qid: q.answers for q in read_questions(str(tmp_path / "a"))} == answers


def test_questions_with_contexts(tmp_path):
    questions = [Query("0", 'who said "é"?', ("a", "b's")), Query("1", "why")]
    context = (Passage("d1", "a\ntext", "A Title"), 1 / 3, True)
    found = []
    for pyserini in (False, True):
        with contexts_writer(tmp_path / "c", pyserini=pyserini) as write:
            write(questions[0], [context])
            write(questions[1], [])
        assert [query[:3] for query in read_topics_file(tmp_path / "c")] == [
            query[:3] for query in questions
        ]
        found.append(json.loads((tmp_path / "c").read_text("utf-8")))
    entry = {"title": "A Title", "text": "a\ntext", "score": "0.333333333", "has_answer": True}
    assert found[0][0]["ctxs"] == [{"id": "d1", **entry}]
    assert found[0][1] == {"question": "why", "answers": [], "ctxs": []}
    del entry["title"]
    assert found[1]["0"]["contexts"] == [{"docid": "d1", **entry, "text": "A Title\na text"}]
