import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from denserk.config.formats import TopicsFormat
from denserk.errors import InputError
from denserk.io.topics import WRITTEN, read_questions, read_topics_file, write_queries
from denserk.records import Query

QA_ARRAY = '[{"question": "who", "answers": ["a"]}, {"question": "u", "answers": []}]'
QA_BY_ID = '{"7": {"question": "who", "answers": ["a"]}}'
QA_BY_ID_ON_SEVERAL_LINES = '\ufeff{\n "7": {\n  "question": "who",\n  "answers": ["a"]\n }\n}'


@pytest.mark.parametrize(
    ("text", "detected", "queries"),
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
        (QA_ARRAY, "qa queries", [Query("0", "who", ("a",)), Query("1", "u")]),
        (QA_BY_ID, "qa queries (_id", [Query("7", "who", ("a",))]),
        (QA_BY_ID_ON_SEVERAL_LINES, "qa queries (_id", [Query("7", "who", ("a",))]),
    ],
)
def test_queries_are_detected_by_their_first_line(tmp_path, text, detected, queries, caplog):
    path = tmp_path / "q"
    path.write_text(text)
    assert list(read_topics_file(path)) == queries
    (message,) = caplog.messages
    assert message.startswith(f"q: {detected}")


@pytest.mark.parametrize("id_key", ["question_id", "queryId", "ID", "topic-id"])
@pytest.mark.parametrize("text_key", ["question", "text", "query"])
def test_ids_of_json_queries_under_any_known_name(id_key, text_key, tmp_path):
    path = tmp_path / "q.jsonl"
    path.write_text(json.dumps({id_key: "q7", text_key: "who", "answers": ["a"]}))
    assert list(read_topics_file(path)) == [Query("q7", "who", ("a",))]
    assert [query.qid for query in read_questions(str(path))] == ["q7"]


def test_a_topic_that_is_a_text_is_no_id(tmp_path):
    (tmp_path / "q.jsonl").write_text('{"topic": "the moon", "question": "who"}')
    [query] = read_topics_file(tmp_path / "q.jsonl")
    assert query.qid == "0"


@pytest.mark.parametrize(
    ("record", "text"),
    [
        ({"id": "1", "title": "Moon", "question": "who"}, "who"),
        ({"id": "1", "title": "Moon", "query": "who"}, "who"),
        ({"id": "1", "title": "Moon", "narrative": "who"}, "Moon"),
        ({"id": "1", "query": "moon", "question": "who"}, "moon"),
        ({"question_id": "1", "title": "Moon", "question": "who"}, "who"),
    ],
)
def test_a_question_comes_before_the_title_of_its_text(record, text, tmp_path):
    (tmp_path / "q.jsonl").write_text(json.dumps(record))
    [query] = read_topics_file(tmp_path / "q.jsonl")
    assert (query.qid, query.text) == ("1", text)


def test_answers_beside_their_positions(tmp_path):
    answers = {"text": ["the moon", "it"], "answer_start": [0, 7]}
    record = {"id": "1", "title": "Moon", "question": "who", "answers": answers}
    (tmp_path / "q.jsonl").write_text(json.dumps(record))
    [query] = read_topics_file(tmp_path / "q.jsonl")
    assert query.answers == ("the moon", "it")


def test_a_file_of_blank_lines_has_no_queries(tmp_path, caplog):
    path = tmp_path / "q"
    path.write_text("\n")
    assert list(read_topics_file(path)) == []
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("topics_format", "text", "found"),
    [
        (None, "no tab here", "line 1: found a line without a tab"),
        (None, '{"a": 1}', "line 1: found the keys a"),
        (None, '{"_id": "1", "text": "t"}\n{"_id": "2"}', "line 2: found no text"),
        (None, "{\n", "found a document that is not JSON"),
        (None, '{\n"7": 3}', "q: found a number for query 7"),
        (None, '{"7": {"answers": []}}', "q: found the keys _id, answers"),
        (None, "a\t['b']\nwho", "line 2: found 1 column between tabs"),
        (TopicsFormat.ENTITY_QUESTIONS, '[{"a": 1}]', "line 1: found the keys a; expected"),
        (None, '{"_id": "1", "text": "t", "answers": [1]}', "line 1: found answers .1"),
        (TopicsFormat.QA, '{"q1": "who"}', "found the keys _id, text; expected .* with question"),
    ],
)
def test_broken_queries_are_reported(tmp_path, topics_format, text, found):
    path = tmp_path / "q"
    path.write_text(text)
    with pytest.raises(InputError, match=found):
        list(read_topics_file(path, topics_format))


@pytest.mark.parametrize(
    "answers",
    ["me", "['a'", "[1]", "{'a': 1}", "[__import__('os').getcwd()]", "[" * 500, "\0"],
)
def test_answers_are_a_list_of_strings_and_never_run(tmp_path, answers):
    path = tmp_path / "q"
    path.write_text(f"who\t{answers}")
    with pytest.raises(InputError, match="line 1: found answers "):
        list(read_topics_file(path, TopicsFormat.DPR))


ids = st.text(st.characters(exclude_categories=["Z", "C"]), min_size=1)
texts = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]))
tuples_of_texts = st.lists(texts, max_size=2).map(tuple)
lists_of_queries = st.lists(
    st.builds(Query, ids, texts, tuples_of_texts, st.just({})), min_size=1, max_size=3
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(queries=lists_of_queries)
@pytest.mark.parametrize("topics_format", WRITTEN)
def test_written_queries_read_back(tmp_path, topics_format, queries):
    path = tmp_path / "q"
    assert write_queries(path, queries, topics_format) == len(queries)
    expected_queries = queries
    if topics_format is TopicsFormat.TSV:  # without answers
        expected_queries = [query._replace(answers=()) for query in queries]
    if topics_format is TopicsFormat.DPR:  # without ids
        expected_queries = [query._replace(qid=str(number)) for number, query in enumerate(queries)]
    assert list(read_topics_file(path, topics_format)) == expected_queries


@pytest.mark.parametrize(
    ("text", "answers"),
    [
        ('{"_id": "q1", "answers": ["a"]}\n{"_id": "q2", "answers": []}', {"q1": ("a",), "q2": ()}),
        ('{"0": {"question": "who", "answers": ["a"], "contexts": []}}', {"0": ("a",)}),
        ("who\t['a']", {"0": ("a",)}),
    ],
)
def test_answers_without_their_question(tmp_path, text, answers):
    path = tmp_path / "a"
    path.write_text(text)
    assert {query.qid: query.answers for query in read_questions(str(path))} == answers


def test_qrels_in_place_of_queries_are_recognised(tmp_path):
    path = tmp_path / "q"
    path.write_text("1 0 d184 3\n1 0 d29 3\n")
    with pytest.raises(InputError, match="without a tab") as error:
        list(read_topics_file(path))
    assert "qrels? exchange topics and qrels" in str(error.value.hint)
