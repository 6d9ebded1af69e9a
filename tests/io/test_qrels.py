import csv

import pytest

from denserk.config.formats import Kind, QrelsFormat
from denserk.errors import InputError
from denserk.io.detection import detect_run_or_qrels
from denserk.io.qrels import (
    grades_by_query,
    read_qrels,
    read_qrels_map,
    split_file,
    write_qrels,
)
from denserk.records import Qrel

QRELS = [Qrel("007", "d1", 2), Qrel("q2", "d1", 0), Qrel("007", "d2", -1)]
TREC = "007 0 d1 2\nq2 0 d1 0\n007 0 d2 -1\n"
BEIR = "query-id\tcorpus-id\tscore\n007\td1\t2\nq2\td1\t0\n007\td2\t-1\n"
WRITTEN = {
    QrelsFormat.TREC: TREC,
    QrelsFormat.BEIR: BEIR,
    QrelsFormat.JSON: '{"007":{"d1":2,"d2":-1},"q2":{"d1":0}}\n',
}


@pytest.mark.parametrize(
    ("text", "description"),
    [
        (TREC, "trec qrels (4 columns)"),
        (TREC.replace(" ", "\t").replace("\n", "\r\n"), "trec qrels (4 columns)"),
        ("\n" + TREC.replace(" 0 ", " Q0 "), "trec qrels (4 columns)"),
        (BEIR, "beir qrels (3 columns)"),
        ("007\td1\t2\nq2\td1\t0\n007\td2\t-1\nq2 d1 0\n", "beir qrels (3 columns)"),
    ],
)
def test_judgments(tmp_path, text, description, caplog):
    (tmp_path / "q").write_text(text)
    distinct_qrels = list(dict.fromkeys(read_qrels(tmp_path / "q", None)))
    assert distinct_qrels == QRELS
    assert caplog.messages == [f"q: {description}"]
    assert read_qrels_map(tmp_path / "q") == {"007": {"d1": 2, "d2": -1}, "q2": {"d1": 0}}


@pytest.mark.parametrize("qrels_format", WRITTEN)
def test_written_judgments_read_back(tmp_path, qrels_format):
    assert write_qrels(tmp_path / "q.gz", QRELS, qrels_format) == 3
    assert sorted(read_qrels(tmp_path / "q.gz", qrels_format)) == sorted(QRELS)
    write_qrels(tmp_path / "q", QRELS, qrels_format)
    assert (tmp_path / "q").read_text() == WRITTEN[qrels_format]


@pytest.mark.parametrize("qrels_format", [QrelsFormat.BEIR, QrelsFormat.JSON])
def test_a_passage_judged_for_several_subtopics_is_written_once(tmp_path, qrels_format):
    qrels = [Qrel("q", "d1", 1, "1"), Qrel("q", "d1", 2, "2"), Qrel("q", "d2", 0, "2")]
    assert write_qrels(tmp_path / "q", qrels, qrels_format) == 2
    assert read_qrels_map(tmp_path / "q") == grades_by_query(qrels)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("q1 0 d1 1\nq1 0 d\x00 1\n", "q, line 2: found a zero byte; expected text"),
        ("q 0 d 1\nq d 1", "q, line 2: found 3 columns; expected 4 columns"),
        ("q 0 a b 1", "q, line 1: found 5 columns; expected 4 columns: .* or 3"),
        ("q Q0 d 1 2.5 tag", "q, line 1: found 6 columns"),
        ("q 0 d 0.5", "q, line 1: found relevance '0.5'; expected an integer"),
        ("q 0 d " + "9" * 5000, "q, line 1: found relevance '999"),
        ("q 0 d 1\n\nq 0 d 2", "q, line 3: found relevance 2 for query q, passage d, and 1 above"),
        ("", "q: found no judgments"),
    ],
)
def test_broken_judgments_are_reported(tmp_path, text, message):
    (tmp_path / "q").write_text(text)
    with pytest.raises(InputError, match=message):
        read_qrels_map(tmp_path / "q")


@pytest.mark.parametrize("qrels_format", QrelsFormat)
def test_a_query_named_as_comments_begin_is_read_again(tmp_path, qrels_format):
    qrels = [Qrel("q1", "d1", 1), Qrel("#", "d2", 1)]
    write_qrels(tmp_path / "q", qrels, qrels_format)
    judged_pairs = [(qrel.qid, qrel.docid) for qrel in read_qrels(tmp_path / "q")]
    assert judged_pairs == [("q1", "d1"), ("#", "d2")]


def test_a_copy_beside_the_judgments_of_a_split_is_not_read(tmp_path):
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels" / "test.tsv").write_text(BEIR)
    (tmp_path / "qrels" / "test.tsv.bak").write_text(BEIR.replace("d1", "d9"))
    assert split_file(tmp_path, "test") == tmp_path / "qrels" / "test.tsv"
    assert split_file(tmp_path, None) == tmp_path / "qrels" / "test.tsv"


@pytest.mark.parametrize("lines", ["", "q0 0 cat.txt 1\n"])
@pytest.mark.parametrize("name", ["my notes.txt", "my long notes.txt"])
def test_a_name_of_a_file_with_white_space(lines, name, tmp_path):
    (tmp_path / "qrels.txt").write_text(f"{lines}q1 0 {name} 1\n")
    with pytest.raises(InputError) as caught:
        list(read_qrels(str(tmp_path / "qrels.txt")))
    assert name.replace(" ", "%20") in str(caught.value.hint)


@pytest.mark.parametrize("text", ["a boat", "cat in house", "what is a red boat", "a b c d e f g"])
def test_queries_are_said_to_be_queries(tmp_path, text):
    """However many words they have, also as many as a judgment or a run has columns."""
    path = tmp_path / "queries.tsv"
    path.write_text(f"q1\t{text}\n")
    with pytest.raises(InputError, match="found 2 columns") as error:
        list(read_qrels(path))
    assert "exchange topics and qrels" in str(error.value.hint)


@pytest.mark.parametrize("line", ["q1\td1 1", "q1\t0 d1 1", "q1 0 d1\t1"])
def test_judgments_may_mix_tabs_and_blanks(tmp_path, line):
    path = tmp_path / "qrels.txt"
    path.write_text(f"{line}\n")
    [qrel] = read_qrels(path)
    assert (qrel.qid, qrel.docid, qrel.relevance) == ("q1", "d1", 1)


@pytest.mark.parametrize("delimiter", [",", ";"])
def test_a_pool_that_a_spreadsheet_saved_as_csv(tmp_path, delimiter):
    rows = [
        ["query-id", "corpus-id", "score", "query", "text"],
        ["q1", "d1", "2", "who, or what", 'a "quoted" text; with signs'],
        ["q1", "d2", "", "who, or what", "not judged"],
        ["q2", "d,3", "0", "where", "two\nlines"],
    ]
    with (tmp_path / "pool.csv").open("w", newline="", encoding="utf-8-sig") as out:
        csv.writer(out, delimiter=delimiter).writerows(rows)
    qrels = list(read_qrels(tmp_path / "pool.csv"))
    assert qrels == [Qrel("q1", "d1", 2), Qrel("q2", "d,3", 0)]
    assert detect_run_or_qrels(str(tmp_path / "pool.csv")) is Kind.QRELS
