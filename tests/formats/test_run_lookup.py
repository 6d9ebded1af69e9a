"""Hits by query, in any order, from any shape of a run."""

import gzip
import io
import os
import sys
from itertools import groupby
from threading import Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

from denserk.errors import InputError, UsageError
from denserk.formats.run_lookup import RunLookup
from denserk.formats.trec_run import read_run, write_run
from denserk.settings.formats import RunFormat

RESULTS = [
    ("q10", [("d2", 3.5), ("d1", 1.25)]),
    ("q2", [("d1", 9.0)]),
    ("é", [("d3", 2.0), ("d30", 1.0), ("d1", -1.0)]),
]


def as_written(path, qid):
    by_query = {q: list(hits) for q, hits in groupby(read_run(path), lambda hit: hit.qid)}
    return by_query.get(qid, [])


@pytest.mark.parametrize("form", RunFormat)
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_any_order_any_shape(tmp_path, form, suffix):
    path = tmp_path / f"run{suffix}"
    write_run(path, RESULTS, form)
    run = RunLookup(path, tmp_path)
    assert (run.queries, run.form) == (["q10", "q2", "é"], form)
    for qid in ("é", "q10", "nowhere", "q2", "é"):
        assert run.hits(qid) == as_written(path, qid)


@given(
    st.dictionaries(
        st.text("abé0", min_size=1, max_size=3),
        st.lists(st.integers(0, 99), min_size=1, max_size=4, unique=True),
        max_size=6,
    ),
    st.sampled_from(["\n", "\r\n", "\n\n"]),
    st.booleans(),
    st.booleans(),
)
def test_lines_are_those_of_the_file(tmp_path_factory, run, end, bom, ends):
    path = tmp_path_factory.mktemp("run") / "run.trec"
    lines = [f"{q} Q0 d{d} {n} {-n} t" for q, hits in run.items() for n, d in enumerate(hits, 1)]
    text = end.join(lines) + end * ends
    path.write_bytes(text.encode("utf-8-sig" if bom and lines else "utf-8"))
    looked = RunLookup(path, path.parent)
    assert looked.queries == list(run)
    for qid in reversed(run):
        assert looked.hits(qid) == as_written(path, qid)


def test_standard_input_and_pipes_are_read_once(tmp_path, monkeypatch):
    text = b"q1 Q0 d1 1 2 t\nq2 Q0 d1 1 2 t\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    run = RunLookup("-", tmp_path)
    assert [hit.qid for qid in ("q2", "q1") for hit in run.hits(qid)] == ["q2", "q1"]
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = Thread(target=pipe.write_bytes, args=(text,))
    writer.start()
    assert RunLookup(pipe, tmp_path).queries == ["q1", "q2"]
    writer.join()


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["q1 Q0 d1 1 2 t", "q2 Q0 d1 1 2 t", "q1 Q0 d2 2 1 t"], "line 3: found query q1 again"),
        (["q1 Q0 d1 1 2 t", "q1 Q0 d1 2 1 t"], "line 2: found passage d1 twice for query q1"),
        (["q1 Q0 d1 1 2 t", "", "q1 Q0 d2 2 nan t"], "line 3: found score 'nan'"),
        (["q1 Q0 d1 1 2 t", "q2 Q0 d1"], "line 2: found 3 columns"),
        (['{"qid": "q1", "docid": "d1", "score": 1}', "[]"], "line 2: found JSON list"),
        (['{"qid": "q1", "docid": "d1", "score": 1}', '{"qid": "q1"}'], "line 2: found the keys"),
        (["q1 0 d1 1"], "line 1: found 4 columns"),
    ],
)
def test_broken_runs(tmp_path, lines, message):
    path = tmp_path / "run"
    path.write_text("\n".join(lines))
    with pytest.raises(InputError, match=message):
        [run := RunLookup(path, tmp_path), *map(run.hits, run.queries)]


def test_what_cannot_be_read(tmp_path):
    with pytest.raises(UsageError, match="no such file"):
        RunLookup(tmp_path / "none", tmp_path)
    (tmp_path / "bad").write_bytes(b"q1 Q0 d1 1 2 t\n\xff Q0 d1 1 2 t\n")
    with pytest.raises(InputError, match="line 2: found a byte that is not UTF-8"):
        RunLookup(tmp_path / "bad", tmp_path)
    cut = tmp_path / "cut.gz"
    cut.write_bytes(gzip.compress(b"q1 Q0 d1 1 2 t\n" * 99)[:-12])
    with pytest.raises(InputError, match="breaks off"):
        RunLookup(cut, tmp_path)
    (tmp_path / "empty").touch()
    empty = RunLookup(tmp_path / "empty", tmp_path)
    assert (empty.form, empty.queries, empty.hits("q1")) == (None, [], [])
