"""Runs that are read and written column by column, beside the same line by line."""

import gzip
import re
from contextlib import closing
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from denserk.config.formats import RunFormat
from denserk.errors import InputError, OutputError
from denserk.io import run_columns, run_text, runs
from denserk.io.run_columns import HitColumns, RankedWords
from denserk.io.run_text import SCORE_FORMAT, as_words, id_words, score_groups
from denserk.io.runs import RunLookup, read_run, read_run_hits, read_run_scores, write_run
from denserk.io.scratch_records import ScratchRecords

NEVER = 1 << 60
QUERIES = st.sampled_from(["q1", "q2", "10", "#3", "é"])
IDS = st.one_of(
    st.integers(0, 30).map(str),
    st.sampled_from(["d", "passage-1", "passage-10", "é", "語", "#", "0x1", "a" * 70, '"d"']),
)
NUMBERS = st.sampled_from(
    [
        "1",
        "2.5",
        "-0.0",
        "1e-5",
        "+1",
        "1_0",
        "inf",
        "nan",
        "1e400",
        "x",
        "0x1",
        "-3",
        "123456789012",
    ]
)
MANGLES = st.sampled_from(
    ["{}", "{}\r", "{} more text", " {}", "{}\n", "{}\n# comment", "{}\t", "{}\x0b", "{}\x00"]
)
SETTINGS = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


@st.composite
def files_of_runs(draw):
    """Draw the bytes of a run: clean lines for the most part, and now and then others."""
    separator = draw(st.sampled_from([" ", "\t", "  "]))
    has_six_columns = draw(st.booleans())
    lines = []
    for qid in draw(st.lists(QUERIES, min_size=1, max_size=4)):
        are_distinct = draw(st.booleans())
        docids = draw(st.lists(IDS, max_size=6, unique=are_distinct))
        for rank, docid in enumerate(docids, start=1):
            is_odd = draw(st.integers(0, 30)) == 0
            score = draw(NUMBERS) if is_odd else str(draw(st.integers(0, 8)) / 4)
            if has_six_columns:
                columns = [qid, "Q0", docid, str(rank), score, "t"]
            else:
                columns = [qid, docid, score]
            line = separator.join(columns)
            lines.append(draw(MANGLES).format(line) if is_odd else line)
    last_line_end = draw(st.sampled_from(["", "\n"]))
    text = "\n".join(lines) + last_line_end
    has_carriage_returns = draw(st.booleans())
    if has_carriage_returns:
        text = text.replace("\n", "\r\n")
    byte_order_mark = draw(st.sampled_from([b"", b"\xef\xbb\xbf"]))
    return byte_order_mark + text.encode()


def outcome(read, *arguments):
    """Return what a function returns, or the message of its error."""
    try:
        return read(*arguments)
    except InputError as error:
        return str(error)


def read_lists(path, run_format):
    """Read a run as lists, so that their texts can be compared."""
    return [
        (hits.qid, hits.docids, hits.scores, list(hits.lines))
        for hits in read_run(path, run_format)
    ]


@SETTINGS
@given(
    data=files_of_runs(),
    run_format=st.sampled_from([None, RunFormat.MSMARCO]),
    block_size=st.sampled_from([1, 60, 1 << 20]),
    many_hits=st.sampled_from([1, 3]),
    is_compressed=st.booleans(),
)
def test_columns_are_read_as_lines_are(
    tmp_path, data, run_format, block_size, many_hits, is_compressed
):
    path = tmp_path / ("run.gz" if is_compressed else "run")
    path.write_bytes(gzip.compress(data) if is_compressed else data)
    for read in (read_lists, read_run_scores):
        with patch.multiple(runs, BLOCK=block_size, SMALL_BLOCK=NEVER):
            by_line = outcome(read, path, run_format)
        with (
            patch.multiple(runs, BLOCK=block_size, SMALL_BLOCK=0),
            patch.object(run_columns, "MANY_HITS", many_hits),
        ):
            by_column = outcome(read, path, run_format)
        assert repr(by_column) == repr(by_line)  # -0.0 is not 0.0


@pytest.mark.parametrize("rank", ["-0", "0" * 18 + "1", "0x1", "-1", "+1", "1" + "0" * 18])
def test_a_number_that_is_no_rank_is_rejected_in_columns(tmp_path, rank):
    path = tmp_path / "run"
    path.write_text(f"q\tdoc-01\t1\nq\tdoc-02\t{rank}\n")
    with (
        patch.object(runs, "SMALL_BLOCK", 0),
        pytest.raises(InputError, match=re.escape(f"rank {rank!r}")),
    ):
        list(read_run(path, RunFormat.MSMARCO))


def test_ranks_from_zero_are_read_beside_ids_with_hyphens(tmp_path):
    path = tmp_path / "run"
    path.write_text("q\tdoc-01\t0\nq\tdoc-02\t000000000000000001\n")
    with patch.object(runs, "SMALL_BLOCK", 0):
        (hits,) = read_run(path, RunFormat.MSMARCO)
    assert hits.docids == ["doc-01", "doc-02"]
    assert hits.scores == [0, -1]
    assert list(hits.lines) == [1, 2]


def test_hits_across_blocks_are_columns(tmp_path):
    path = tmp_path / "run"
    docids = [f"passage-{number}" for number in range(300)]
    path.write_text("".join(f"q Q0 passage-{n} 1 {-n} t\n" for n in range(300)))
    with (
        patch.multiple(runs, BLOCK=1000, SMALL_BLOCK=0),
        patch.object(run_columns, "MANY_HITS", 1),
    ):
        (hits,) = read_run_hits(path)
    assert isinstance(hits, HitColumns)
    assert hits.as_lists() == ("q", docids, [-n for n in range(300)], range(1, 301))
    assert hits.docids_at([299, 9]) == ["passage-299", "passage-9"]
    judged = ["passage-12", "passage-1234567", "p", "é", "passage-299", "passage-300"]
    assert sorted(hits.rows_of(judged)) == [12, 299]
    assert hits.rows_of([]) == []


def test_lookup_of_columns(tmp_path):
    path = tmp_path / "run"
    path.write_text("".join(f"q{n // 100} Q0 passage-{n} 1 {n / 8} t\n" for n in range(200)))
    with (
        patch.object(runs, "SMALL_BLOCK", 0),
        closing(ScratchRecords(tmp_path / "hits")) as copy,
    ):
        run = RunLookup(path, copy)
        docids, scores = run.hits("q1")
        assert docids == [f"passage-{n}" for n in range(100, 200)]
        assert scores == [n / 8 for n in range(100, 200)]
        columns = run.columns("q1")
        assert columns is not None
        assert columns.as_list()[1] == ("passage-101", 101 / 8)
        assert run.hits("q2") == ([], [])


def formatted(scores):
    """Return the texts of the groups of scores."""
    return [groups.tobytes().replace(b"\0", b"").decode() for groups in score_groups(scores)]


@given(
    hnp.arrays(
        np.float64,
        st.integers(1, 20),
        elements=st.one_of(
            st.floats(allow_nan=False, allow_infinity=False),
            st.floats(-1000, 1000, width=32),
            st.integers(-99999, 99999).map(lambda number: number / 1000),
            st.integers(0, 10**11).map(lambda number: number / 2**10),
            st.sampled_from([0.0, -0.0, 0.1, 9.9999999995, 99.99999995, 0.000099999999951, 1e-4]),
        ),
    )
)
def test_scores_are_formatted_as_by_python(scores):
    assert formatted(scores) == [format(score, SCORE_FORMAT) for score in scores.tolist()]


def test_many_scores_are_formatted_as_by_python():
    generator = np.random.default_rng(1)
    for power in range(-6, 6):
        scores = generator.standard_normal(5000) * 10.0**power
        halves = np.round(scores, 8) + 5e-9  # near the middle of two numbers
        for values in (scores, halves, scores.astype(np.float32).astype(np.float64)):
            assert formatted(values) == [format(score, SCORE_FORMAT) for score in values.tolist()]


TEXTS = st.text(st.sampled_from("ab1#é\0-"), min_size=1, max_size=20)


@SETTINGS
@given(
    hits=st.lists(st.tuples(TEXTS, st.floats(-2000, 2000, width=32)), min_size=1, max_size=12),
    qid=st.sampled_from(["q", "é", "query-1", "q\0"]),
    tag=st.sampled_from(["tag", "", "é 語", "t\0"]),
)
@example(hits=[("d" * 80, 1.0)], qid="q", tag="tag")
@example(hits=[("d", 1.0)], qid="q\0", tag="tag")
@example(hits=[("d", 1.0)], qid="q", tag="t\0")
def test_columns_are_written_as_lines_are(tmp_path, hits, qid, tag):
    path = tmp_path / "run"
    assert write_run(path, [(qid, hits)], tag=tag) == len(hits)
    by_line = path.read_bytes()
    with patch.object(run_text, "MANY_HITS", 1):
        write_run(path, [(qid, hits)], tag=tag)
    assert path.read_bytes() == by_line


def test_columns_are_written_in_every_format(tmp_path):
    hits = [(f"passage-{number}", 10 - number / 7) for number in range(100)]
    columns = as_words(hits)
    assert columns is not None
    assert columns.as_list() == hits
    for run_format in RunFormat:
        write_run(tmp_path / "lists", [("q1", hits)], run_format)
        write_run(tmp_path / "columns", [("q1", columns)], run_format)
        assert (tmp_path / "columns").read_bytes() == (tmp_path / "lists").read_bytes()


def test_a_column_that_is_not_finite_is_not_written(tmp_path):
    words = id_words(["a", "b"])
    assert words is not None
    columns = RankedWords(words, np.array([1, np.inf]))
    with pytest.raises(OutputError, match="query q: the score of passage b is inf"):
        write_run(tmp_path / "run", [("q", columns)])
    assert not (tmp_path / "run").exists()
