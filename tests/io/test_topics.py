import json
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from denserk.config.formats import TopicsFormat
from denserk.errors import InputError, UsageError
from denserk.io import topics
from denserk.io.topics import (
    KEYS,
    WRITTEN,
    Context,
    dpr_json,
    pyserini_json,
    read_topics_file,
    write_queries,
)
from denserk.records import Passage, Query
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


def test_other_keys_survive(tmp_path):
    query = Query("1", "t", (), {"title": "story"})
    write_queries(tmp_path / "q", [query], TopicsFormat.BEIR)
    assert list(read_topics_file(tmp_path / "q")) == [query]


def test_a_folder_shape_is_not_written(tmp_path):
    with pytest.raises(UsageError, match=r"entity-questions is a folder"):
        write_queries(tmp_path / "q", [], TopicsFormat.ENTITY_QUESTIONS)


def queries(folder, *records):
    path = folder / "q.jsonl"
    path.write_text("\n".join(map(json.dumps, records)))
    return list(read_topics_file(path))


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
def test_queries_are_known_by_their_keys(tmp_path, record, form):
    notes = Heard()
    assert queries(tmp_path, record)[0].text == "t"
    assert notes.notes[0].startswith(f"q.jsonl: {form} queries")


def test_queries_keep_answers_and_other_keys(tmp_path):
    assert queries(tmp_path, {"_id": "1", "text": "t", "title": "h", "answers": ["a", "b"]}) == [
        Query("1", "t", ("a", "b"), {"title": "h"})
    ]
    assert queries(tmp_path, {"question": "t", "answer": "a"}, {"question": "u"}) == [
        Query("0", "t", ("a",)),
        Query("1", "u"),
    ]
    assert queries(tmp_path, {"id": "9", "question": "t"}) == [Query("9", "t")]


@pytest.mark.parametrize("answers", [[1], {"a": 1}, 3, None])
def test_answers_are_strings(tmp_path, answers):
    with pytest.raises(InputError, match=r"line 1: found answers .*expected a list of strings"):
        queries(tmp_path, {"_id": "1", "text": "t", "answers": answers})


def test_every_format_of_json_lines_has_its_row():
    assert set(KEYS) == set(TopicsFormat) - {"tsv", "dpr", "entity-questions"}


def test_queries_keep_further_tabs():
    lines = [(1, "q1\ta\tb"), (2, " "), (3, "q2\t")]
    assert list(topics.read_tsv(lines, "q.tsv")) == [Query("q1", "a\tb"), Query("q2", "")]


def test_a_query_without_a_tab_is_told():
    with pytest.raises(InputError, match=r"q.tsv, line 1: found a line without a tab"):
        list(topics.read_tsv([(1, "q1 text")], "q.tsv"))


@pytest.mark.parametrize(
    ("column", "answers"),
    [
        ("['18 May', \"the king's\"]", ("18 May", "the king's")),
        ('"[\'Dry\', ""Martin\'s""]"', ("Dry", "Martin's")),
        ("[]", ()),
        ("('a', 'b')", ("a", "b")),
        (r"['20\s?,?\d']", (r"20\s?,?\d",)),
    ],
)
def test_answers_are_parsed_as_a_literal(column, answers):
    assert topics.parse_answers(column) == answers


@pytest.mark.parametrize(
    "column",
    [
        "",
        "['a'",
        "[1]",
        "'a'",
        "{'a': 1}",
        "[__import__('os').getcwd()]",
        "[" * 500,
        "['a' * 9]",
        "\0",
    ],
)
def test_what_is_no_list_of_strings_is_not_parsed(column):
    with pytest.raises(ValueError, match=f"^{re.escape(column)}$"):
        topics.parse_answers(column)


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]))))
def test_any_answers_survive_their_literal(answers):
    assert topics.parse_answers(repr(answers)) == tuple(answers)
    doubled = repr(answers).replace('"', '""')
    assert topics.parse_answers(f'"{doubled}"') == tuple(answers)


def test_dpr_rows_count_from_zero():
    lines = [(1, "who\t['a']"), (2, ""), (3, '"""What"" then"\t"[""b\'s""]"')]
    assert list(topics.read_dpr(lines, "f")) == [
        Query("0", "who", ("a",)),
        Query("1", '"What" then', ("b's",)),
    ]


@pytest.mark.parametrize(
    ("row", "found"), [("who", "1 column"), ("a\t['b']\tc", "3 columns"), ("who\tb", "answers 'b'")]
)
def test_broken_rows_are_told_with_their_line(row, found):
    with pytest.raises(InputError, match=f"f, line 2: found {found}"):
        list(topics.read_dpr([(1, "a\t['b']"), (2, row)], "f"))


def test_questions_by_id():
    data = b'{"7": {"question": "who", "answers": ["a"], "contexts": []}, "x": {"question": "u"}}'
    assert list(topics.read_keyed(data, "f")) == [
        Query("7", "who", ("a",), {"contexts": []}),
        Query("x", "u"),
    ]


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"{", "a document that is not JSON"),
        (b"[]", "JSON list"),
        (b'{"7": 3}', "JSON int for query 7"),
        (b'{"7": {"answers": []}}', "f, query 7: found the keys answers, _id"),
        (b'{"7": {"question": 1}}', "f, query 7: found question that is int"),
    ],
)
def test_broken_documents_are_told(data, told):
    with pytest.raises(InputError, match=told):
        list(topics.read_keyed(data, "f"))


def test_a_relation_names_its_questions():
    objects = [(1, {"question": "who", "answers": ["a"]}), (2, {"question": "u", "answers": []})]
    assert list(topics.read_relation(objects, "test/P17.test.json")) == [
        Query("P17-0", "who", ("a",), {"relation": "P17"}),
        Query("P17-1", "u", (), {"relation": "P17"}),
    ]


QUESTIONS = [
    (
        Query("0", 'who said "é"?', ("a", "b's")),
        [
            Context(Passage("d1", "a\ntext", "A Title"), 82.5, has_answer=True),
            Context(Passage("d2", "other"), 1 / 3, has_answer=False),
        ],
    ),
    (Query("1", "why", ()), []),
]


def written(path, opened, questions=QUESTIONS):
    with opened(path) as write:
        for query, contexts in questions:
            write(query, contexts)
    return json.loads(path.read_text("utf-8"))


def test_dpr(tmp_path):
    first, second = written(tmp_path / "d.json", dpr_json)
    assert first["question"] == 'who said "é"?'
    assert first["answers"] == ["a", "b's"]
    assert first["ctxs"] == [
        {"id": "d1", "title": "A Title", "text": "a\ntext", "score": "82.5", "has_answer": True},
        {"id": "d2", "title": "", "text": "other", "score": "0.333333333", "has_answer": False},
    ]
    assert second == {"question": "why", "answers": [], "ctxs": []}


def test_pyserini(tmp_path):
    found = written(tmp_path / "p.json", pyserini_json)
    assert list(found) == ["0", "1"]
    assert found["0"]["contexts"] == [
        {"docid": "d1", "score": "82.5", "text": "A Title\na text", "has_answer": True},
        {"docid": "d2", "score": "0.333333333", "text": "\nother", "has_answer": False},
    ]


@pytest.mark.parametrize("opened", [dpr_json, pyserini_json])
def test_the_questions_are_read_back(tmp_path, opened):
    written(tmp_path / "f.json", opened)
    back = [(q.qid, q.text, q.answers) for q in read_topics_file(tmp_path / "f.json")]
    assert back == [(query.qid, query.text, query.answers) for query, _ in QUESTIONS]


@pytest.mark.parametrize(("opened", "empty"), [(dpr_json, []), (pyserini_json, {})])
def test_no_question_is_a_whole_file_too(tmp_path, opened, empty):
    assert written(tmp_path / "f.json", opened, []) == empty


def test_a_file_that_is_not_finished_does_not_appear(tmp_path):
    broken = [QUESTIONS[0], (QUESTIONS[1][0], [None])]
    with pytest.raises(TypeError):
        written(tmp_path / "d.json", dpr_json, broken)
    assert list(tmp_path.iterdir()) == []
