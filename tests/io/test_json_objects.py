"""Runs, qrels, queries, passages and training data as one JSON object."""

import gzip
import json
from contextlib import closing

import pytest

from denserk.config.formats import CorpusFormat, CorpusSettings, Kind, TopicsFormat
from denserk.errors import InputError
from denserk.io.corpus import read_passages
from denserk.io.detection import detect_kind, detect_run_or_qrels
from denserk.io.qrels import read_qrels, read_qrels_map
from denserk.io.runs import RunLookup, read_run, read_run_scores, read_run_tag
from denserk.io.scratch_records import ScratchRecords
from denserk.io.topics import read_queries
from denserk.io.training import read_training
from denserk.records import Candidate, Passage, Qrel, Query, TrainingExample

RUN = {"q2": {"d9": 0.25, "d1": 7.5}, "q1": {"d1": 3, "d2": -1.0}}
GRADES = {"q2": {"d9": 1, "d1": 0}, "q1": {"d3": 2}}
EMBEDDING_DATA = {
    "queries": {"0a-1": "who runs", "0a-2": "what"},
    "corpus": {"n1": "one", "n2": "two"},
    "relevant_docs": {"0a-1": ["n2", "n1", "n2"], "0a-2": ["n1"]},
}


def write(path, value, indent=None):
    """Write an object, compressed under a name in .gz; return the path as a source."""
    data = json.dumps(value, indent=indent).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return str(path)


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("name", ["file", "file.json.gz"])
def test_runs(name, indent, tmp_path):
    path = write(tmp_path / name, RUN, indent)
    assert read_run_scores(path) == RUN
    assert [hits.qid for hits in read_run(path)] == ["q2", "q1"]
    assert read_run_tag(path) is None


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("name", ["file", "file.json.gz"])
def test_qrels(name, indent, tmp_path):
    assert read_qrels_map(write(tmp_path / name, GRADES, indent)) == GRADES


@pytest.mark.parametrize("indent", [None, 1])
def test_a_run_that_is_longer_than_a_block(indent, tmp_path):
    scores = {f"passage-{number}": number / 2 for number in range(1000)}
    run = {f"q{number}": scores for number in range(120)}
    path = write(tmp_path / "file", run, indent)
    assert (tmp_path / "file").stat().st_size > 2 << 20
    assert read_run_scores(path) == run
    assert detect_run_or_qrels(path) is Kind.RUN
    with closing(ScratchRecords(tmp_path / "hits")) as copy:
        hits = RunLookup(path, copy).hits("q119")
    assert hits == (list(scores), list(scores.values()))


def test_grades_may_have_a_point(tmp_path):
    assert read_qrels_map(write(tmp_path / "file", {"q": {"d": 2.0}})) == {"q": {"d": 2}}


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("file", GRADES, Kind.QRELS),
        ("file", RUN, Kind.RUN),
        ("run.json", GRADES, Kind.RUN),
        ("qrels.json", {"q": {"d": 1.0}}, Kind.QRELS),
    ],
)
def test_name_or_numbers_decide_what_an_object_is(name, value, kind, tmp_path):
    path = write(tmp_path / name, value)
    assert detect_run_or_qrels(path) is kind
    assert detect_kind(path, "target") is kind


BROKEN = [
    ('{"q1": {"d1": 1}, "q2": {"d1": NaN}}', "found NaN under q2, d1"),
    ('{"q1": {"d1": 1, "d2": 1, "d1": 2}}', "found a key twice under q1, d1"),
    ('{"q1": {"d1": 1}, "q2": {}, "q1": {"d2": 2}}', "found a key twice under q1"),
    ('{"q1": {"d1": 1}, "q2": ["d1"]}', "found a list for query q2"),
    ('{"q1": {"d1": "1.5"}}', "found '1.5' for query q1, passage d1"),
    ('{"q1": {"d1": true}}', "found true or false for query q1, passage d1"),
    ('{"q1": {"d1": null}}', "found null for query q1, passage d1"),
    ('{"q1": {"d 1": 1}}', "found the passage id 'd 1'"),
    ('{"": {"d1": 1}}', "found an empty query id"),
    ('{"q1": {"d1": 1}, "q2": {"d', "found a document that is not JSON"),
    ('{"q1": {"d1": 1}}\n{"q2": {"d1": 1}}', "found a document that is not JSON"),
]


@pytest.mark.parametrize("read", [read_run_scores, read_qrels_map])
@pytest.mark.parametrize(("text", "message"), BROKEN)
def test_broken_runs_and_qrels_name_the_query(text, message, read, tmp_path):
    (tmp_path / "file").write_text(text)
    with pytest.raises(InputError, match=message):
        read(str(tmp_path / "file"))


def test_lists_of_relevant_passages_are_qrels(tmp_path):
    path = write(tmp_path / "relevant", {"q1": ["d2", "d1", "d2"], "q2": [], "q3": [7]})
    assert list(read_qrels(path)) == [Qrel("q1", "d2", 1), Qrel("q1", "d1", 1), Qrel("q3", "7", 1)]
    assert detect_run_or_qrels(path) is Kind.QRELS
    with pytest.raises(InputError, match="found a list for query q1"):
        list(read_run(path))


def test_scores_are_no_grades(tmp_path):
    with pytest.raises(InputError, match=r"the grade 0.25 for query q2, passage d9") as error:
        read_qrels_map(write(tmp_path / "file", RUN))
    assert "scores of a run" in str(error.value.hint)


def test_an_object_has_no_ranks(tmp_path):
    with pytest.raises(InputError, match="found scores without ranks"):
        read_run_scores(write(tmp_path / "file", RUN), by_rank=True)


@pytest.mark.parametrize("indent", [None, 1])
def test_texts_by_id(indent, tmp_path):
    path = write(tmp_path / "texts", {"1": "who\tis", "2": ""}, indent)
    assert list(read_queries(path)) == [Query("1", "who\tis"), Query("2", "")]
    assert list(read_passages(path)) == [Passage("1", "who\tis"), Passage("2", "")]


@pytest.mark.parametrize("indent", [None, 1])
def test_records_by_id(indent, tmp_path):
    records = {"d1": {"title": "Head", "text": "one", "year": 7}, "d2": {"text": "two"}}
    path = write(tmp_path / "corpus.json.gz", records, indent)
    assert list(read_passages(path)) == [
        Passage("d1", "one", "Head", {"year": 7}),
        Passage("d2", "two"),
    ]
    assert [(query.qid, query.text) for query in read_queries(path)] == [
        ("d1", "one"),
        ("d2", "two"),
    ]


def test_a_corpus_that_is_longer_than_the_head(tmp_path):
    text = "word " * 200
    records = {f"d{number}": {"title": "", "text": text} for number in range(2000)}
    path = write(tmp_path / "corpus.json", records)
    assert detect_kind(path, "target") is Kind.CORPUS
    assert len(list(read_passages(path))) == 2000

    texts = {f"d{number}": text for number in range(2000)}
    path = write(tmp_path / "corpus.json", texts)
    assert len(list(read_passages(path))) == 2000


def test_the_format_names_an_object_whose_ids_have_no_digit(tmp_path):
    path = write(tmp_path / "file", {"first": "who", "second": "what"})
    with pytest.raises(InputError, match="found the keys first, second"):
        list(read_queries(path))
    with pytest.raises(InputError, match=r"first .*, second") as error:
        list(read_passages(path))
    assert "--corpus-format json" in str(error.value.hint)
    assert len(list(read_queries(path, TopicsFormat.JSON))) == 2
    assert len(list(read_passages(path, CorpusSettings(CorpusFormat.JSON)))) == 2


@pytest.mark.parametrize("read", [read_queries, read_passages])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"q1": "who", "q1": "what"}', "a key twice under q1"),
        ('{\n"q1": "who", "q2": ["what"]}', "a list for"),
        ('{\n"q1": "who", "q2": null}', "null for"),
        ('{\n"q1": "who", "q2": "wh', "not JSON"),
        ('{\n"q1": {"text": "who"}, "q2": {"text": 3}}', "found a number as text"),
        ('{"q1": {"text": "who"}, "q2": {"title": "a"}}', "found no text"),
        ('{"q 1": {"text": "who"}}', "id 'q 1'"),
    ],
)
def test_broken_texts_by_id(text, message, read, tmp_path):
    (tmp_path / "file").write_text(text)
    with pytest.raises(InputError, match=message):
        list(read(str(tmp_path / "file")))


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("with_mode", [True, False])
def test_data_sets_of_llama_index(with_mode, indent, tmp_path):
    parts = EMBEDDING_DATA | {"mode": "text"} if with_mode else EMBEDDING_DATA
    path = write(tmp_path / "file.json", parts, indent)
    assert list(read_queries(path)) == [Query("0a-1", "who runs"), Query("0a-2", "what")]
    assert list(read_passages(path)) == [Passage("n1", "one"), Passage("n2", "two")]
    assert read_qrels_map(path) == {"0a-1": {"n2": 1, "n1": 1}, "0a-2": {"n1": 1}}
    assert detect_run_or_qrels(path) is Kind.QRELS
    assert list(read_training(path)) == [
        TrainingExample("0a-1", "who runs", (Candidate("n2", "two"), Candidate("n1", "one")), ()),
        TrainingExample("0a-2", "what", (Candidate("n1", "one"),), ()),
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"relevant_docs": {"0a-1": "n1"}}, "found a string as the passages of query 0a-1"),
        ({"relevant_docs": {"0a-9": ["n1"]}}, "found no query 0a-9"),
        ({"relevant_docs": {"0a-1": ["n9"]}}, "found no passage n9, which .* for query 0a-1"),
        ({"corpus": {"n1": ["one"], "n2": "two"}}, "found a list as n1"),
        ({"corpus": {}}, "found no passage n2"),
        ({"queries": ["who"]}, "found a list as queries"),
    ],
)
def test_broken_data_sets_of_llama_index(change, message, tmp_path):
    path = write(tmp_path / "file.json", EMBEDDING_DATA | change)
    with pytest.raises(InputError, match=message):
        list(read_training(path))
