import json

import pytest

from denserk.formats.retrieved_contexts import Context, dpr_json, pyserini_json
from denserk.formats.topics_file import read_topics_file
from denserk.records import Passage, Query

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
