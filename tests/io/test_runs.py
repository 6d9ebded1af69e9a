import gzip
import logging
from contextlib import closing

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from denserk.config.formats import RunFormat
from denserk.errors import InputError, OutputError
from denserk.io.runs import BLOCK, RunLookup, read_run, read_run_scores, write_run
from denserk.io.scratch_records import ScratchRecords
from denserk.records import best_first

LINE = "q1 Q0 d1 1 2.5 tag\n"
MTEB = '{"mteb_model_meta": {}, "default": {"test": {%s}}}'


def hits_by_query(path, run_format=None):
    """Read a run query by query, as pairs of the query and the scores of its passages."""
    return [
        (hits.qid, dict(zip(hits.docids, hits.scores, strict=True)))
        for hits in read_run(path, run_format)
    ]


@pytest.mark.parametrize(
    ("text", "run_format", "expected"),
    [
        (
            "\n007\tQ0\td1 1 2.5 x\r\n007 Q0 d2 2 1.5 x\r\nq2 Q0 d1 1 -3e-2 x\r\n",
            RunFormat.TREC,
            {"007": {"d1": 2.5, "d2": 1.5}, "q2": {"d1": -0.03}},
        ),
        ("q\ta\t1\nq\tb\t2\nr\ta\t1", RunFormat.MSMARCO, {"q": {"a": -1, "b": -2}, "r": {"a": -1}}),
        ("q\ta\t2\nq\tb\t1\n", RunFormat.TEVATRON, {"q": {"a": 2, "b": 1}}),
        ("q\ta\t1\nq\tb\t1\n", RunFormat.TEVATRON, {"q": {"a": 1, "b": 1}}),
        (
            '{"qid": "q", "docid": 7, "rank": 1, "score": 2}\n{"qid":"q","docid":"b","score":1.5}',
            RunFormat.JSONL,
            {"q": {"7": 2, "b": 1.5}},
        ),
        ("q Q0 a 0 1 t\nq Q0 b - 2 t", RunFormat.TREC, {"q": {"a": 1, "b": 2}}),
        (
            "# of 2024 3 5 columns\n#1 Q0 a 1 2 t\n # half way\n#1 Q0 b 2 1 t and more\n# end",
            RunFormat.TREC,
            {"#1": {"a": 2, "b": 1}},
        ),
        ('{"q": {"a": 1, "b": 2.5}, "r": {}}', RunFormat.JSON, {"q": {"a": 1, "b": 2.5}}),
        (
            '{ "mteb_model_meta": 0,\n"en": {"a": {"q": {"b": 1}, "r": {}}, "b": {"s": {"a": 2}}}}',
            RunFormat.MTEB,
            {"q": {"b": 1}, "s": {"a": 2}},
        ),
    ],
)
def test_formats(tmp_path, caplog, text, run_format, expected):
    caplog.set_level(logging.INFO)
    (tmp_path / "r").write_text(text)
    assert read_run_scores(tmp_path / "r") == expected
    assert caplog.messages[0].startswith(f"r: {run_format} run")
    assert read_run_scores(tmp_path / "r", run_format) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("q Q0 d 1 2 t\nq Q0 d 1 2\n", "r, line 2: found 5 columns; expected 6 columns"),
        ("q Q0 d 1 nan t\n", "r, line 1: found score 'nan'; expected a finite number"),
        ("q Q0 d 1 2 t\n\nq Q0 d 2 1 t", "r, line 3: found passage d twice for query q"),
        (MTEB % '"": {"d": 1}', "r, line 1: found an empty query id"),
        (MTEB % '"q 1": {"d": 1}', "r, line 1: found the query id 'q 1'"),
        ('{"qid": "q", "docid": "d"}\n', "r, line 1: found the keys qid, docid; expected JSON"),
        ('{"qid": "q", "docid": "d e", "score": 1}\n', "r, line 1: found the passage id 'd e'"),
        ('{"qid": "q", "docid": "d", "score": 1}\n[]\n', "line 2: found JSON that is no object"),
        (LINE + "q1 Q0 d\x001 2 1.5 tag\n", "r, line 2: found a zero byte; expected text"),
        ("q Q0 d 1 2 t\nq Q0 \udcff 1 2 t\n", r"r, line 2: found a byte that is not UTF-8"),
        ("".join(f"q{i} d 1\n" for i in range(2000)) + "q d x\n", "line 2001: found rank 'x'"),
        (MTEB % '"q": {"d": 1}}, "dev": {"q": {"d": 1}', "r: found a query in two splits"),
        (MTEB % '"q": {"d": "x"}', "r, line 1: found score 'x'"),
        (MTEB % '"q": [1, 0]', "r: found no predictions of retrieval"),
    ],
)
def test_errors_name_the_line(tmp_path, text, message):
    (tmp_path / "r").write_text(text, errors="surrogateescape")
    for read in (hits_by_query, read_run_scores):
        with pytest.raises(InputError, match=message):
            read(tmp_path / "r")


def test_interleaved_queries_are_read_whole_and_not_streamed(tmp_path):
    (tmp_path / "r").write_text("q Q0 a 1 2 t\nr Q0 a 1 2 t\nq Q0 b 2 1 t\n")
    assert read_run_scores(tmp_path / "r") == {"q": {"a": 2.0, "b": 1.0}, "r": {"a": 2.0}}
    with pytest.raises(InputError, match=r"r, line 3: found query q again after query r"):
        hits_by_query(tmp_path / "r")


def test_a_passage_twice_in_an_interleaved_query_is_rejected(tmp_path):
    (tmp_path / "r").write_text("q Q0 a 1 2 t\nr Q0 a 1 2 t\nq Q0 a 2 1 t\n")
    with pytest.raises(InputError, match=r"r, line 3: found passage a twice for query q"):
        read_run_scores(tmp_path / "r")


def draw_long_run():
    """Draw a run of more than one block, which is read column by column."""
    scores = np.random.default_rng(0).normal(size=(400, 400)).tolist()
    run = {}
    for number, scores_of_query in enumerate(scores):
        qid = f"query-{number % 7 * 1000 + number}"
        docids = [f"passage-{number + 8 * n}" for n in range(400)]
        run[qid] = dict(zip(docids, scores_of_query, strict=True))
    return run


def trec_lines(run):
    lines = []
    for qid, hits in run.items():
        for rank, (docid, score) in enumerate(hits.items(), start=1):
            lines.append(f"{qid} Q0 {docid} {rank} {score!r} a-tag\n")
    return lines


LONG_RUN = draw_long_run()
LONG_LINES = trec_lines(LONG_RUN)
LONG_TEXT = "".join(LONG_LINES)
assert len(LONG_TEXT) > 1.5 * BLOCK


@pytest.mark.parametrize(
    "text",
    [
        LONG_TEXT,
        LONG_TEXT.replace(" ", "\t"),
        LONG_TEXT.replace("\n", "\r\n"),
        LONG_TEXT.removesuffix("\n"),
    ],
    ids=["blanks", "tabs", "carriage returns", "no last line end"],
)
def test_a_long_run(tmp_path, text):
    path = tmp_path / "run"
    path.write_bytes(text.encode())
    assert hits_by_query(path) == list(LONG_RUN.items())
    assert read_run_scores(path) == LONG_RUN


def test_a_long_run_that_is_compressed(tmp_path):
    path = tmp_path / "run.gz"
    path.write_bytes(gzip.compress(LONG_TEXT.encode(), 1))
    assert hits_by_query(path) == list(LONG_RUN.items())
    assert read_run_scores(path) == LONG_RUN


@pytest.mark.parametrize(
    ("docid", "score"),
    [
        ("é", "-1.5"),
        ("the-last", "+1_5.0"),  # Python reads this number, pyarrow does not
    ],
)
def test_a_long_run_with_a_line_that_needs_the_line_loop(tmp_path, docid, score):
    path = tmp_path / "run"
    *first_queries, (last_qid, last_hits) = LONG_RUN.items()
    path.write_text(f"{LONG_TEXT}{last_qid} Q0 {docid} 401 {score} a-tag\n")
    expected = [*first_queries, (last_qid, {**last_hits, docid: float(score)})]
    assert hits_by_query(path) == expected
    assert read_run_scores(path) == dict(expected)


FIRST_QUERY = next(iter(LONG_RUN))
LAST_QUERY = next(reversed(LONG_RUN))
LAST_PASSAGE = next(reversed(LONG_RUN[LAST_QUERY]))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("x Q0 d 1 2\n", "found 5 columns"),
        ("x  d 1 2 t\n", "found 5 columns"),
        ("x Q0 d 1 nan t\n", "found score 'nan'"),
        ("x Q0 d 1 NA t\n", "found score 'NA'"),
        (LONG_LINES[-1], f"found passage {LAST_PASSAGE} twice for query {LAST_QUERY}"),
        (LONG_LINES[0], f"found query {FIRST_QUERY} again after query {LAST_QUERY}"),
    ],
)
def test_errors_of_a_long_run_name_the_line(tmp_path, line, message):
    (tmp_path / "run").write_text(LONG_TEXT + line)
    with pytest.raises(InputError, match=f"line {len(LONG_LINES) + 1}: {message}"):
        hits_by_query(tmp_path / "run")


def ranked_long_run():
    return [(qid, best_first(hits.items())) for qid, hits in LONG_RUN.items()]


def test_a_long_run_of_ranks(tmp_path):
    ranked = ranked_long_run()
    write_run(tmp_path / "run", ranked, RunFormat.MSMARCO)
    for (qid, hits), (read_qid, scores) in zip(
        ranked, hits_by_query(tmp_path / "run"), strict=True
    ):
        assert read_qid == qid
        assert list(scores) == [docid for docid, _ in hits]
        assert list(scores.values()) == [-rank for rank in range(1, 401)]


def test_a_long_run_of_scores(tmp_path):
    ranked = ranked_long_run()
    write_run(tmp_path / "run", ranked, RunFormat.TEVATRON)
    for (qid, hits), (read_qid, scores) in zip(
        ranked, hits_by_query(tmp_path / "run"), strict=True
    ):
        assert read_qid == qid
        assert scores == {docid: float(f"{score:.9g}") for docid, score in hits}


def test_an_object_after_a_block_of_blank_lines_is_read(tmp_path):
    path = tmp_path / "run.json"
    path.write_text("\n" * (BLOCK + 1) + '{"q": {"d": 1.5}}')
    assert read_run_scores(path) == {"q": {"d": 1.5}}
    assert read_run_scores(path, RunFormat.JSON) == {"q": {"d": 1.5}}


def test_lookup_in_any_order(tmp_path):
    (tmp_path / "r").write_text("q2 Q0 d1 1 2.5 t\nq2 Q0 é 2 2 t\nq1 Q0 d1 1 3 t\n")
    (tmp_path / "empty").touch()
    with closing(ScratchRecords(tmp_path / "copy")) as copy:
        run = RunLookup(tmp_path / "r", copy)
        assert run.queries == ["q2", "q1"]
        assert run.format is RunFormat.TREC
        assert run.hits("q1") == (["d1"], [3])
        assert run.hits("q2") == (["d1", "é"], [2.5, 2])
        assert run.hits("nowhere") == ([], [])
        empty_run = RunLookup(tmp_path / "empty", copy)
        assert empty_run.queries == []
        assert empty_run.format is None


WRITTEN = {
    RunFormat.TREC: 'q%d Q0 a"%s 1 100 t%\nq%d Q0 b 2 0.123456789 t%\nr Q0 a 1 -2 t%\n',
    RunFormat.MSMARCO: 'q%d\ta"%s\t1\nq%d\tb\t2\nr\ta\t1\n',
    RunFormat.TEVATRON: 'q%d\ta"%s\t100\nq%d\tb\t0.123456789\nr\ta\t-2\n',
    RunFormat.JSONL: '{"qid":"q%d","docid":"a\\"%s","rank":1,"score":100}\n'
    '{"qid":"q%d","docid":"b","rank":2,"score":0.123456789}\n'
    '{"qid":"r","docid":"a","rank":1,"score":-2}\n',
    RunFormat.JSON: '{"q%d":{"a\\"%s":100.0,"b":0.123456789},"none":{},"r":{"a":-2.0}}\n',
    RunFormat.MTEB: '{"mteb_model_meta":{"model_name":"t%","revision":null},"default":{"test":'
    '{"q%d":{"a\\"%s":100.0,"b":0.123456789},"none":{},"r":{"a":-2.0}}}}\n',
}


@pytest.mark.parametrize("run_format", RunFormat)
def test_written_lines(tmp_path, run_format):
    results = [("q%d", [('a"%s', 100.0), ("b", 0.1234567891)]), ("none", []), ("r", [("a", -2.0)])]
    assert write_run(tmp_path / "r", results, run_format, "t%") == 3
    assert (tmp_path / "r").read_text() == WRITTEN[run_format]
    assert write_run(tmp_path / "r.gz", results, run_format, "t%") == 3
    assert gzip.decompress((tmp_path / "r.gz").read_bytes()).decode() == WRITTEN[run_format]


@pytest.mark.parametrize("run_format", RunFormat)
def test_the_format_of_ms_marco_alone_is_cut_at_rank_1000(tmp_path, run_format):
    results = [("q", [(f"d{n}", -float(n)) for n in range(1500)])]
    depth = 1000 if run_format is RunFormat.MSMARCO else 1500
    assert write_run(tmp_path / "run", results, run_format) == depth


def test_a_score_that_is_not_finite_is_not_written(tmp_path):
    with pytest.raises(OutputError, match=r"query q: the score of passage b is"):
        write_run(tmp_path / "r", [("q", [("a", 1.0), ("b", -float("inf"))])])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("run_format", RunFormat)
def test_a_query_named_as_comments_begin_is_read_again(tmp_path, run_format):
    write_run(tmp_path / "r", [("0", [("d1", 2.0)]), ("#", [("d2", 1.0)])], run_format)
    run = read_run_scores(tmp_path / "r", run_format)
    assert list(run) == ["0", "#"]
    assert list(run["0"]) == ["d1"]
    assert list(run["#"]) == ["d2"]


ids = st.text(st.characters(exclude_categories=["Z", "C"]), min_size=1)
scores = st.floats(width=32, allow_nan=False, allow_infinity=False)
runs = st.dictionaries(ids, st.dictionaries(ids, scores, min_size=1, max_size=4), max_size=3)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(run=runs)
@pytest.mark.parametrize("run_format", RunFormat)
def test_a_written_run_keeps_order_and_float32_scores(tmp_path, run_format, run):
    ranked = {qid: best_first(hits.items()) for qid, hits in run.items()}
    write_run(tmp_path / "r", ranked.items(), run_format)
    run_read = read_run_scores(tmp_path / "r", run_format)
    assert list(run_read) == list(ranked)
    for qid, hits in ranked.items():
        assert list(run_read[qid]) == [docid for docid, _ in hits]
        if run_format is not RunFormat.MSMARCO:
            scores = [np.float32(score) for score in run_read[qid].values()]
            assert scores == [score for _, score in hits]
