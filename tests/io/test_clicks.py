"""Click logs: queries, judgments and training data of rows of query, passage and clicks."""

import pytest

from denserk.errors import InputError
from denserk.io.clicks import clicked_examples, clicked_qrels, clicked_queries, query_id
from denserk.io.qrels import read_qrels
from denserk.io.topics import read_queries
from denserk.io.training import read_training
from denserk.records import Candidate, Qrel, Query, TrainingExample

TEXTS = (
    "query\turl\tclicks\nwho runs\thttp://a/1\t2\nfacebook\tb\t1\nwho runs\tb\t9\nwho runs\ta\t0\n"
)
COMMAS = 'count,doc_id,Query\n2,http://a/1,who runs\n1,b,facebook\n9,b,"who runs"\n0,a,who runs\n'
SEMICOLONS = COMMAS.replace(",", ";")
WHO = query_id("who runs")
FACEBOOK = query_id("facebook")


def write(path, text):
    path.write_text(text, newline="")
    return str(path)


@pytest.mark.parametrize(
    "text", [TEXTS, COMMAS, TEXTS.replace("\n", "\r\n"), "\n" + TEXTS, SEMICOLONS]
)
def test_a_log_of_texts(text, tmp_path, caplog):
    log = write(tmp_path / "log", text)
    caplog.set_level("INFO")
    assert list(read_queries(log)) == [Query(WHO, "who runs"), Query(FACEBOOK, "facebook")]
    assert list(clicked_qrels(log, (2, 5))) == [Qrel(WHO, "http://a/1", 1), Qrel(WHO, "b", 2)]
    assert "log: left out, below 2 clicks: 2 passages of queries" in caplog.messages
    assert list(read_qrels(log)) == [
        Qrel(WHO, "http://a/1", 1),
        Qrel(WHO, "b", 1),
        Qrel(FACEBOOK, "b", 1),
    ]
    positives = (Candidate("http://a/1"), Candidate("b"))
    assert list(clicked_examples(log, (2, 5))) == [TrainingExample(WHO, "who runs", positives, ())]
    assert len(list(read_training(log))) == 2


def test_rows_of_a_pair_are_added_up(tmp_path):
    log = write(tmp_path / "log", "query\tdocid\tclicks\na b\td\t2\na c\td\t1\na b\td\t1\n")
    assert [qrel.relevance for qrel in clicked_qrels(log, (1, 3))] == [2, 1]


@pytest.mark.parametrize("name", ["qid", "query"])
def test_a_log_of_ids(name, tmp_path):
    log = write(tmp_path / "log", f"{name}\tdocid\tclicks\nq1\td1\t3\nq2\td1\t1.0\n")
    assert list(clicked_qrels(log)) == [Qrel("q1", "d1", 1), Qrel("q2", "d1", 1)]
    assert next(clicked_examples(log)) == TrainingExample("q1", "", (Candidate("d1"),), ())
    with pytest.raises(InputError, match="found query q1 without a text"):
        list(clicked_queries(log))


@pytest.mark.parametrize(
    "texts", [["moon", "sun"], ["月亮什么时候升起", "河流"], ["ps5", "moon", "sea"]]
)
def test_texts_of_one_word_are_no_ids(texts, tmp_path):
    rows = "".join(f"{text}\td1\t3\n" for text in texts)
    log = write(tmp_path / "log", f"query\tdocid\tclicks\n{rows}")
    assert list(clicked_queries(log)) == [Query(query_id(text), text) for text in texts]


def test_a_log_of_ids_and_texts(tmp_path):
    log = write(tmp_path / "log", "qid,query,url,clicks\n7,who runs,d1,3\n8,what,d1,1\n")
    assert list(clicked_queries(log)) == [Query("7", "who runs"), Query("8", "what")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("query\turl\tclicks\na b\td\tmany\n", "line 2: found the count 'many'; expected a whole"),
        ("query\turl\tclicks\na b\td\t-1\n", "line 2: found the count '-1'"),
        ("query\turl\tclicks\na b\td\t1.5\n", "line 2: found the count '1.5'"),
        ("query\turl\tclicks\na b\td\n", "line 2: found 2 columns; expected 3: query, url, clicks"),
        ("query\turl\tclicks\na b\td e\t1\n", "line 2: found the passage id 'd e'"),
        ("query\turl\tclicks\n\td\t1\n", "line 2: found an empty query"),
        ("qid\tdocid\tclicks\nq1\td\t1\nq 2\td\t1\n", "line 3: found the query id 'q 2'"),
        (
            "qid,query,url,clicks\n7,a,d,1\n7,b,d,1\n",
            "line 3: found query 7 with the text 'b', and",
        ),
        ('query,url,clicks\n"a b,d,1\n', "line 2: found 1 column"),
        ("query,url\na b,d\n", "line 1: found the columns 'query,url'"),
        ("", "found the columns ''"),
        ("query,url,clicks\n", "found no rows"),
    ],
)
def test_broken_logs(text, message, tmp_path):
    log = write(tmp_path / "log", text)
    for read in (clicked_qrels, clicked_examples):
        with pytest.raises(InputError, match=message):
            list(read(log))
