import json

import pytest

from denserk.io.contexts import Context, contexts_writer
from denserk.io.topics import read_topics_file
from denserk.records import Passage, Query

QUESTIONS = [Query("0", 'who said "é"?', ("a", "b's")), Query("1", "why")]
CONTEXT = Context(Passage("d1", "a\ntext", "A Title"), score=1 / 3, has_answer=True)


def write_contexts(path, *, pyserini):
    """Write two questions, of which the first has a context; return the JSON of the file."""
    with contexts_writer(path, pyserini=pyserini) as write:
        write(QUESTIONS[0], [CONTEXT])
        write(QUESTIONS[1], [])
    return json.loads(path.read_text("utf-8"))


def test_contexts_in_the_format_of_dpr(tmp_path):
    first, second = write_contexts(tmp_path / "c", pyserini=False)
    assert first["ctxs"] == [
        {
            "id": "d1",
            "title": "A Title",
            "text": "a\ntext",
            "score": "0.333333333",
            "has_answer": True,
        }
    ]
    assert second == {"question": "why", "answers": [], "ctxs": []}


def test_contexts_in_the_format_of_pyserini(tmp_path):
    questions = write_contexts(tmp_path / "c", pyserini=True)
    assert questions["0"]["contexts"] == [
        {
            "docid": "d1",
            "text": "A Title\na text",
            "score": "0.333333333",
            "has_answer": True,
        }
    ]


@pytest.mark.parametrize("pyserini", [False, True])
def test_questions_with_contexts_read_back(tmp_path, pyserini):
    write_contexts(tmp_path / "c", pyserini=pyserini)
    queries = read_topics_file(tmp_path / "c")
    assert [query._replace(extra={}) for query in queries] == [
        query._replace(extra={}) for query in QUESTIONS
    ]
