import struct

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from denserk.errors import InputError, OutputError
from denserk.formats import run_blocks
from denserk.formats.trec_run import read_run, read_run_scores, write_run
from denserk.records import ScoredPassage
from denserk.settings.formats import RunFormat
from tests.reporters import Heard

TREC = "007 Q0 d1 1 2.5 x\n007 Q0 d2 2 1.5 x\nq2 Q0 d1 1 -3e-2 x\n"


@pytest.mark.parametrize("text", [TREC, TREC.replace(" ", "\t"), "\n" + TREC.replace("\n", "\r\n")])
def test_trec(tmp_path, text):
    (tmp_path / "r").write_text(text)
    notes = Heard()
    assert list(read_run(tmp_path / "r")) == [
        ScoredPassage("007", "d1", 2.5, 1),
        ScoredPassage("007", "d2", 1.5, 2),
        ScoredPassage("q2", "d1", -0.03, 1),
    ]
    assert notes.notes == ["r: trec run (6 columns: qid Q0 docid rank score tag)"]
    assert read_run_scores(tmp_path / "r") == {"007": {"d1": 2.5, "d2": 1.5}, "q2": {"d1": -0.03}}


@pytest.mark.parametrize(
    ("text", "form", "hits"),
    [
        (
            "q\ta\t1\nq\tb\t2\nr\ta\t1\n",
            RunFormat.MSMARCO,
            [("q", "a", -1, 1), ("q", "b", -2, 2), ("r", "a", -1, 1)],
        ),
        ("q\ta\t2\nq\tb\t1\n", RunFormat.TEVATRON, [("q", "a", 2, 0), ("q", "b", 1, 0)]),
        ("q\ta\t1.0\n", RunFormat.TEVATRON, [("q", "a", 1, 0)]),
        ("q\ta\t1\nq\tb\t1\n", RunFormat.TEVATRON, [("q", "a", 1, 0), ("q", "b", 1, 0)]),
        (
            '{"qid": "q", "docid": 7, "rank": 1, "score": 2}\n{"qid":"q","docid":"b","score":1.5}',
            RunFormat.JSONL,
            [("q", "7", 2, 1), ("q", "b", 1.5, 0)],
        ),
        ("q Q0 a 0 1 t\nq Q0 b - 2 t", RunFormat.TREC, [("q", "a", 1, 0), ("q", "b", 2, 0)]),
    ],
)
def test_other_shapes(tmp_path, text, form, hits):
    (tmp_path / "r").write_text(text)
    notes = Heard()
    assert list(read_run(tmp_path / "r")) == hits
    assert notes.notes[0].startswith(f"r: {form} run")
    assert list(read_run(tmp_path / "r", form=form)) == hits


def test_whole_scores_can_be_forced_over_ranks(tmp_path):
    (tmp_path / "r").write_text("q\ta\t1\nq\tb\t2\n")
    assert read_run_scores(tmp_path / "r", form=RunFormat.TEVATRON) == {"q": {"a": 1.0, "b": 2.0}}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("q Q0 d 1 2 t\nq Q0 d 1 2", "r, line 2: found 5 columns; expected 6 columns"),
        ("q Q0 a b 1 2 t", "r, line 1: found 7 columns"),
        ("q Q0 a\u00a0b 1 2 t", "r, line 1: found 7 columns"),
        ("q Q0 d 1 nan t", "r, line 1: found score 'nan'; expected a finite number"),
        ("q Q0 d 1 1e999 t", "r, line 1: found score '1e999'"),
        ("q Q0 d 1 -inf t", "r, line 1: found score '-inf'"),
        ("q Q0 d 1 x t", "r, line 1: found score 'x'"),
        ("q Q0 d 1 2 t\n\nq Q0 d 2 1 t", "r, line 3: found passage d twice for query q"),
        ("q d 1\nq e x", "r, line 2: found score 'x'"),
        ('{"qid": "q", "docid": "d"}', "r, line 1: found the keys qid, docid; expected JSON lines"),
        ('{"qid": "q", "docid": "d e", "score": 1}', "r, line 1: found the passage id 'd e'"),
        ('{"qid": "q", "docid": "d", "score": "1"}', "r, line 1: found score '1'"),
        ('{"qid": "q", "docid": "d", "score": true}', "r, line 1: found score 'True'"),
    ],
)
def test_broken_runs_are_told_with_their_line(tmp_path, text, told):
    (tmp_path / "r").write_text(text)
    for read in (read_run, read_run_scores):
        with pytest.raises(InputError, match=told):
            list(read(tmp_path / "r"))


def test_a_byte_that_is_not_utf8(tmp_path):
    (tmp_path / "r").write_bytes(b"q Q0 d 1 2 t\nq Q0 \xff 1 2 t\n")
    with pytest.raises(InputError, match=r"r, line 2: found a byte that is not UTF-8"):
        read_run_scores(tmp_path / "r")


@pytest.mark.parametrize("rank", ["1.5", "x", "inf"])
def test_ranks_are_whole_numbers(tmp_path, rank):
    (tmp_path / "r").write_text(f"q\td\t{rank}\n")
    with pytest.raises(InputError, match=f"r, line 1: found rank '{rank}'") as refusal:
        list(read_run(tmp_path / "r", form=RunFormat.MSMARCO))
    assert refusal.value.hint == "if the third column is a score, name the shape: tevatron"


def test_judgements_in_place_of_a_run(tmp_path):
    (tmp_path / "r").write_text("q 0 d 1\n")
    with pytest.raises(InputError, match=r"found 4 columns") as refusal:
        read_run_scores(tmp_path / "r")
    assert refusal.value.hint == "four columns are judgements: exchange run and judgements"


def test_interleaved_queries_are_read_whole_and_not_streamed(tmp_path):
    (tmp_path / "r").write_text("q Q0 a 1 2 t\nr Q0 a 1 2 t\nq Q0 b 2 1 t\n")
    assert read_run_scores(tmp_path / "r") == {"q": {"a": 2.0, "b": 1.0}, "r": {"a": 2.0}}
    with pytest.raises(InputError, match=r"r, line 3: found query q again after query r"):
        list(read_run(tmp_path / "r"))
    (tmp_path / "r").write_text("q Q0 a 1 2 t\nr Q0 a 1 2 t\nq Q0 a 2 1 t\n")
    with pytest.raises(InputError, match=r"r, line 3: found passage a twice for query q"):
        read_run_scores(tmp_path / "r")


@pytest.mark.parametrize("block", [1, 20, 45, 1 << 19])
def test_blocks_change_nothing_in_a_whole_run(tmp_path, monkeypatch, block):
    monkeypatch.setattr(run_blocks, "BLOCK", block)
    lines = [f"q{n % 3 // 2} Q0 d{n} {n} {n / 4} t\n" for n in range(12)]
    (tmp_path / "r").write_text("".join(lines))
    expected = {f"q{q}": {f"d{n}": n / 4 for n in range(12) if n % 3 // 2 == q} for q in (0, 1)}
    read = read_run_scores(tmp_path / "r")
    assert [(q, list(h.items())) for q, h in read.items()] == [
        (q, list(h.items())) for q, h in expected.items()
    ]
    (tmp_path / "r").write_text("".join([*lines, "q1 Q0 d12 1 2 t\n", lines[5]]))
    with pytest.raises(InputError, match=r"r, line 14: found passage d5 twice for query q1"):
        read_run_scores(tmp_path / "r")


def test_an_empty_run_is_a_run(tmp_path):
    (tmp_path / "r").write_text("\n")
    assert list(read_run(tmp_path / "r")) == []
    assert read_run_scores(tmp_path / "r") == {}


def test_written_lines(tmp_path):
    results = [("q%d", [('a"%s', 100.0), ("b", 0.1234567891)]), ("none", []), ("r", [("a", -2.0)])]
    expected = {
        RunFormat.TREC: 'q%d Q0 a"%s 1 100 t%\nq%d Q0 b 2 0.123456789 t%\nr Q0 a 1 -2 t%\n',
        RunFormat.MSMARCO: 'q%d\ta"%s\t1\nq%d\tb\t2\nr\ta\t1\n',
        RunFormat.TEVATRON: 'q%d\ta"%s\t100\nq%d\tb\t0.123456789\nr\ta\t-2\n',
        RunFormat.JSONL: '{"qid":"q%d","docid":"a\\"%s","rank":1,"score":100}\n'
        '{"qid":"q%d","docid":"b","rank":2,"score":0.123456789}\n'
        '{"qid":"r","docid":"a","rank":1,"score":-2}\n',
    }
    for form in RunFormat:
        assert write_run(tmp_path / "r", results, form, "t%") == 3
        assert (tmp_path / "r").read_text() == expected[form]


def test_ms_marco_takes_a_thousand(tmp_path):
    hits = [(f"d{n}", -float(n)) for n in range(1500)]
    assert write_run(tmp_path / "r", [("q", hits)], RunFormat.MSMARCO) == 1000
    assert write_run(tmp_path / "r", [("q", hits)], RunFormat.TREC) == 1500


@pytest.mark.parametrize("score", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("form", RunFormat)
def test_a_score_that_is_not_finite_is_not_written(tmp_path, form, score):
    with pytest.raises(OutputError, match=r"query q: the score of passage b is"):
        write_run(tmp_path / "r", [("q", [("a", 1.0), ("b", score)])], form)
    assert not list(tmp_path.iterdir())


def float32(value):
    return struct.unpack("f", struct.pack("f", value))[0]


ids = st.text(st.characters(exclude_categories=["Z", "C"]), min_size=1)
scores = st.floats(width=32, allow_nan=False, allow_infinity=False)
runs = st.dictionaries(ids, st.dictionaries(ids, scores, min_size=1, max_size=4), max_size=3)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(run=runs)
@pytest.mark.parametrize("form", RunFormat)
def test_a_written_run_keeps_order_and_float32_scores(tmp_path, form, run):
    ordered = {
        qid: dict(sorted(hits.items(), key=lambda hit: (-hit[1], hit[0])))
        for qid, hits in run.items()
    }
    write_run(tmp_path / "r", [(qid, list(hits.items())) for qid, hits in ordered.items()], form)
    read = read_run_scores(tmp_path / "r", form=form)
    assert {qid: list(hits) for qid, hits in read.items()} == {
        q: list(h) for q, h in ordered.items()
    }
    if form is not RunFormat.MSMARCO:
        assert {q: {d: float32(s) for d, s in hits.items()} for q, hits in read.items()} == ordered
