import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from denserk.errors import InputError
from denserk.formats import question_answers as qa
from denserk.formats.question_answers import Context, dpr_json, pyserini_json
from denserk.formats.topics_file import read_topics_file
from denserk.records import Passage, Query


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
    assert qa.parse_answers(column) == answers


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
        qa.parse_answers(column)


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]))))
def test_any_answers_survive_their_literal(answers):
    assert qa.parse_answers(repr(answers)) == tuple(answers)
    doubled = repr(answers).replace('"', '""')
    assert qa.parse_answers(f'"{doubled}"') == tuple(answers)


def test_dpr_rows_count_from_zero():
    lines = [(1, "who\t['a']"), (2, ""), (3, '"""What"" then"\t"[""b\'s""]"')]
    assert list(qa.read_dpr(lines, "f")) == [
        Query("0", "who", ("a",)),
        Query("1", '"What" then', ("b's",)),
    ]


@pytest.mark.parametrize(
    ("row", "found"), [("who", "1 column"), ("a\t['b']\tc", "3 columns"), ("who\tb", "answers 'b'")]
)
def test_broken_rows_are_told_with_their_line(row, found):
    with pytest.raises(InputError, match=f"f, line 2: found {found}"):
        list(qa.read_dpr([(1, "a\t['b']"), (2, row)], "f"))


def test_questions_by_id():
    data = b'{"7": {"question": "who", "answers": ["a"], "contexts": []}, "x": {"question": "u"}}'
    assert list(qa.read_keyed(data, "f")) == [
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
        list(qa.read_keyed(data, "f"))


def test_a_relation_names_its_questions():
    objects = [(1, {"question": "who", "answers": ["a"]}), (2, {"question": "u", "answers": []})]
    assert list(qa.read_relation(objects, "test/P17.test.json")) == [
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
