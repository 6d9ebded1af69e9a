import gzip

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from denserk.errors import OutputError
from denserk.formats import run_writer as module
from denserk.formats.names import Names
from denserk.formats.run_writer import run_writer
from denserk.settings.formats import RunFormat

IDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
SCORES = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),
    st.floats(allow_nan=False, allow_infinity=False, width=32),
    st.integers(-1000, 1000).map(lambda number: number / 8),
)
QUERIES = st.lists(st.tuples(IDS, st.lists(st.tuples(IDS, SCORES), max_size=6)), max_size=6)


def written(path, queries, form, *, plain):
    with run_writer(path, form, "t%", plain=plain) as writer:
        for qid, hits in queries:
            writer.write_ranked(qid, [docid for docid, _ in hits], [score for _, score in hits])
    assert writer.lines == sum(len(hits) for _, hits in queries)
    return path.read_bytes()


@pytest.mark.parametrize("form", RunFormat)
@given(queries=QUERIES)
def test_fast_and_plain_write_the_same_bytes(tmp_path_factory, form, queries):
    path = tmp_path_factory.mktemp("runs") / "r"
    assert written(path, queries, form, plain=False) == written(path, queries, form, plain=True)


@pytest.mark.parametrize("form", RunFormat)
def test_queries_with_more_and_fewer_hits(tmp_path, form):
    queries = [(f"q{n}", [(f"d{k}", 1 - k / 512) for k in range(n)]) for n in (120, 3, 0, 12)]
    fast = written(tmp_path / "fast", queries, form, plain=False)
    assert fast == written(tmp_path / "plain", queries, form, plain=True)


@pytest.mark.parametrize("form", RunFormat)
@pytest.mark.parametrize(
    "docid", ["d", "\u00e9", 'a"b', "a\\b", "a\x01b", "a\0b", "a\nb", "a" * 200]
)
def test_odd_ids_are_written_as_the_plain_way_does(tmp_path, form, docid):
    queries = [("q1", [("d1", 2.0), (docid, 1.5)]), (docid, [("d2", 0.1)])]
    fast = written(tmp_path / "fast", queries, form, plain=False)
    assert fast == written(tmp_path / "plain", queries, form, plain=True)
    assert fast.count(b"\n") >= 3


@pytest.mark.parametrize("at_once", [1, 5, 8192])
def test_lines_are_held_back_and_all_are_written(tmp_path, monkeypatch, at_once):
    monkeypatch.setattr(module, "AT_ONCE", at_once)
    queries = [(f"q{n}", [(f"d{k}", 9 - k / 4) for k in range(n)]) for n in range(7)]
    expected = [
        f"q{n} Q0 d{k} {k + 1} {9 - k / 4:g} t%\n".encode() for n in range(7) for k in range(n)
    ]
    assert written(tmp_path / "r", queries, RunFormat.TREC, plain=False) == b"".join(expected)


@pytest.mark.parametrize("plain", [False, True])
def test_names_in_a_text_and_arrays_of_scores(tmp_path, plain):
    text = np.frombuffer(b"d1\nd22\nd333", np.uint8)
    places = np.array([0, 3, 7]), np.array([2, 6, 11])
    scores = np.array([3, 2.5, -0.1], np.float32)
    with run_writer(tmp_path / "r", plain=plain) as writer:
        writer.write_ranked("q", Names(text, *(each[[2, 0, 1]] for each in places)), scores)
        writer.write_ranked("r", Names(text, *(each[:1] for each in places)), scores[:1])
        writer.write_ranked("s", ("d1",), (1,))
        writer.write_ranked("t", [], np.empty(0))
    assert (tmp_path / "r").read_text() == (
        "q Q0 d333 1 3 denserk\nq Q0 d1 2 2.5 denserk\nq Q0 d22 3 -0.100000001 denserk\n"
        "r Q0 d1 1 3 denserk\ns Q0 d1 1 1 denserk\n"
    )


def test_msmarco_holds_a_thousand(tmp_path):
    text = np.frombuffer(b"d " * 1500, np.uint8)
    names = Names(text, np.arange(1500) * 2, np.arange(1500) * 2 + 1)
    with run_writer(tmp_path / "r", RunFormat.MSMARCO) as writer:
        writer.write_ranked("q", names, np.ones(1500))
        writer.write_ranked("r", ["d"] * 1500, np.ones(1500))
    lines = (tmp_path / "r").read_text().splitlines()
    assert lines == [f"{q}\td\t{rank}" for q in "qr" for rank in range(1, 1001)]


@pytest.mark.parametrize("score", [float("nan"), float("inf")])
def test_scores_that_are_not_finite(tmp_path, score):
    with (
        pytest.raises(OutputError, match=f"query q: the score of passage b is {score}"),
        run_writer(tmp_path / "r") as writer,
    ):
        writer.write_ranked("q", ["a", "b"], [1.0, score])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("tag", ["", "a\0b", "\u00e9 %d"])
def test_odd_tags(tmp_path, tag):
    for name, plain in (("fast", False), ("plain", True)):
        with run_writer(tmp_path / name, tag=tag, plain=plain) as writer:
            writer.write_ranked("q", ["a", "b"], [2, 1])
    assert (tmp_path / "fast").read_bytes() == (tmp_path / "plain").read_bytes()
    assert (tmp_path / "fast").read_text().startswith(f"q Q0 a 1 2 {tag}\n")


def test_compressed(tmp_path):
    for name, plain in (("fast.gz", False), ("plain.gz", True)):
        with run_writer(tmp_path / name, plain=plain) as writer:
            writer.write_ranked("q", ["a", "b"], [2, 1])
    assert gzip.decompress((tmp_path / "fast.gz").read_bytes()).startswith(b"q Q0 a 1 2 denserk")
    assert (tmp_path / "fast.gz").read_bytes() == (tmp_path / "plain.gz").read_bytes()
