import gzip
import logging
from contextlib import closing

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from denserk.config.formats import RunFormat
from denserk.errors import InputError, OutputError
from denserk.io.files import ScratchRecords
from denserk.io.runs import BLOCK, RunLookup, read_run, read_run_scores, write_run
from denserk.records import best_first

LINE = "q1 Q0 d1 1 2.5 tag\n"
MTEB = '{"mteb_model_meta": {}, "default": {"test": {%s}}}'


def queries(path, *given):
    return [
        (hits.qid, dict(zip(hits.docids, hits.scores, strict=True)))
        for hits in read_run(path, *given)
    ]


@pytest.mark.parametrize(
    ("text", "format", "expected"),
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
def test_formats(tmp_path, caplog, text, format, expected):
    caplog.set_level(logging.INFO)
    (tmp_path / "r").write_text(text)
    assert read_run_scores(tmp_path / "r") == expected
    assert caplog.messages[0].startswith(f"r: {format} run")
    assert read_run_scores(tmp_path / "r", format) == expected


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
        (LINE + "q1 Q0 d\x001 2 1.5 tag\nq1 d2\n", "line 3: found 2 columns; expected 6 columns"),
        ("q Q0 d 1 2 t\nq Q0 \udcff 1 2 t\n", r"r, line 2: found a byte that is not UTF-8"),
        ("".join(f"q{i} d 1\n" for i in range(2000)) + "q d x\n", "line 2001: found rank 'x'"),
        (MTEB % '"q": {"d": 1}}, "dev": {"q": {"d": 1}', "r: found a query in two splits"),
        (MTEB % '"q": {"d": "x"}', "r, line 1: found score 'x'"),
        (MTEB % '"q": [1, 0]', "r: found no predictions of retrieval"),
    ],
)
def test_errors_name_the_line(tmp_path, text, message):
    (tmp_path / "r").write_text(text, errors="surrogateescape")
    for read in (queries, read_run_scores):
        with pytest.raises(InputError, match=message):
            read(tmp_path / "r")


def test_interleaved_queries_are_read_whole_and_not_streamed(tmp_path):
    (tmp_path / "r").write_text("q Q0 a 1 2 t\nr Q0 a 1 2 t\nq Q0 b 2 1 t\n")
    assert read_run_scores(tmp_path / "r") == {"q": {"a": 2.0, "b": 1.0}, "r": {"a": 2.0}}
    with pytest.raises(InputError, match=r"r, line 3: found query q again after query r"):
        queries(tmp_path / "r")
    (tmp_path / "r").write_text("q Q0 a 1 2 t\nr Q0 a 1 2 t\nq Q0 a 2 1 t\n")
    with pytest.raises(InputError, match=r"r, line 3: found passage a twice for query q"):
        read_run_scores(tmp_path / "r")


DRAWN = np.random.default_rng(0).normal(size=(400, 400)).tolist()
LONG_RUN = {
    f"query-{q % 7 * 1000 + q}": {f"passage-{q + 8 * n}": score for n, score in enumerate(row)}
    for q, row in enumerate(DRAWN)
}
LONG_LINES = [
    f"{qid} Q0 {docid} {rank} {score!r} a-tag\n"
    for qid, hits in LONG_RUN.items()
    for rank, (docid, score) in enumerate(hits.items(), 1)
]
assert sum(map(len, LONG_LINES)) > 1.5 * BLOCK


@pytest.mark.parametrize("change", [None, ".gz", "\t", "\r\n", "é", "+1", "no end"])
def test_a_long_run(tmp_path, change):
    """Blocks of it are split by pyarrow; in the others a few lines need the line loop."""
    docid = "é" if change == "é" else "the-last"
    number = "+1_5.0" if change == "+1" else "-1.5"  # float reads the former, pyarrow does not
    lines = [*LONG_LINES, f"{list(LONG_RUN)[-1]} Q0 {docid} 401 {number} a-tag\n"]
    expected = {qid: hits.copy() for qid, hits in LONG_RUN.items()}
    list(expected.values())[-1][docid] = float(number)
    data = "".join(lines)
    if change in ("\t", "\r\n"):
        data = data.replace(" " if change == "\t" else "\n", change)
    data = data.rstrip() if change == "no end" else data
    path = tmp_path / ("run.gz" if change == ".gz" else "run")
    path.write_bytes(gzip.compress(data.encode(), 1) if change == ".gz" else data.encode())
    assert queries(path) == list(expected.items())
    assert read_run_scores(path) == expected


def test_errors_of_a_long_run_name_the_line(tmp_path):
    first, last = LONG_LINES[0].split(), LONG_LINES[-1].split()
    for line, message in (
        ("x Q0 d 1 2", "found 5 columns"),
        ("x  d 1 2 t", "found 5 columns"),
        ("x Q0 d 1 nan t", "found score 'nan'"),
        ("x Q0 d 1 NA t", "found score 'NA'"),
        (" ".join(last), f"found passage {last[2]} twice for query {last[0]}"),
        (" ".join(first), f"found query {first[0]} again after query {last[0]}"),
    ):
        (tmp_path / "run").write_text("".join([*LONG_LINES, line, "\n"]))
        with pytest.raises(InputError, match=f"line {len(LONG_LINES) + 1}: {message}"):
            queries(tmp_path / "run")


@pytest.mark.parametrize("form", [RunFormat.MSMARCO, RunFormat.TEVATRON])
def test_a_long_run_of_three_columns(tmp_path, form):
    ranked = {q: sorted(hits.items(), key=lambda hit: -hit[1]) for q, hits in LONG_RUN.items()}
    write_run(tmp_path / "run", ranked.items(), form)
    ranks = form is RunFormat.MSMARCO
    assert queries(tmp_path / "run") == [
        (q, {d: -rank if ranks else float(f"{s:.9g}") for rank, (d, s) in enumerate(hits, 1)})
        for q, hits in ranked.items()
    ]


def test_lookup_in_any_order(tmp_path):
    (tmp_path / "r").write_text("q2 Q0 d1 1 2.5 t\nq2 Q0 é 2 2 t\nq1 Q0 d1 1 3 t\n")
    (tmp_path / "empty").touch()
    with closing(ScratchRecords(tmp_path / "copy")) as copy:
        run = RunLookup(tmp_path / "r", copy)
        assert (run.queries, run.format) == (["q2", "q1"], RunFormat.TREC)
        assert [run.hits(qid) for qid in ("q1", "q2", "nowhere")] == [
            (["d1"], [3]),
            (["d1", "é"], [2.5, 2]),
            ([], []),
        ]
        empty = RunLookup(tmp_path / "empty", copy)
        assert (empty.format, empty.queries) == (None, [])


def test_written_lines(tmp_path):
    results = [("q%d", [('a"%s', 100.0), ("b", 0.1234567891)]), ("none", []), ("r", [("a", -2.0)])]
    expected = {
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
    for form in RunFormat:
        for name in ("r", "r.gz"):
            assert write_run(tmp_path / name, results, form, "t%") == 3
        assert (tmp_path / "r").read_text() == expected[form]
        long = [("q", [(f"d{n}", -float(n)) for n in range(1500)])]
        depth = 1000 if form is RunFormat.MSMARCO else 1500
        assert write_run(tmp_path / "long", long, form) == depth
        assert gzip.decompress((tmp_path / "r.gz").read_bytes()).decode() == expected[form]


def test_a_score_that_is_not_finite_is_not_written(tmp_path):
    with pytest.raises(OutputError, match=r"query q: the score of passage b is"):
        write_run(tmp_path / "r", [("q", [("a", 1.0), ("b", -float("inf"))])])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("form", RunFormat)
def test_a_query_named_as_comments_begin_is_read_again(tmp_path, form):
    write_run(tmp_path / "r", [("0", [("d1", 2.0)]), ("#", [("d2", 1.0)])], form)
    assert [(qid, list(hits)) for qid, hits in read_run_scores(tmp_path / "r", form).items()] == [
        ("0", ["d1"]),
        ("#", ["d2"]),
    ]


ids = st.text(st.characters(exclude_categories=["Z", "C"]), min_size=1)
scores = st.floats(width=32, allow_nan=False, allow_infinity=False)
runs = st.dictionaries(ids, st.dictionaries(ids, scores, min_size=1, max_size=4), max_size=3)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(run=runs)
@pytest.mark.parametrize("form", RunFormat)
def test_a_written_run_keeps_order_and_float32_scores(tmp_path, form, run):
    ordered = [(qid, best_first(hits.items())) for qid, hits in run.items()]
    write_run(tmp_path / "r", ordered, form)
    read = read_run_scores(tmp_path / "r", form)
    assert [(q, list(hits)) for q, hits in read.items()] == [
        (q, [docid for docid, _ in hits]) for q, hits in ordered
    ]
    if form is not RunFormat.MSMARCO:
        assert {q: {d: np.float32(s) for d, s in hits.items()} for q, hits in read.items()} == run
