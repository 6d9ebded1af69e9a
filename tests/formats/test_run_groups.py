import gzip
import io
from collections import Counter
from itertools import groupby
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from denserk.errors import InputError
from denserk.formats import run_blocks, run_groups
from denserk.formats.run_groups import read_groups
from denserk.formats.trec_run import read_run, write_run
from denserk.settings.formats import RunFormat

NAME = st.text("abz019-_#é/", min_size=1, max_size=12)
HITS = st.dictionaries(NAME, st.floats(-1e6, 1e6, width=32), min_size=1, max_size=8)
RUNS = st.dictionaries(NAME, HITS, min_size=1, max_size=8)
LINE = "q1 Q0 d1 1 2.5 tag\n"


def slow(path):
    return [
        (qid, [(hit.docid, hit.score) for hit in hits])
        for qid, hits in groupby(read_run(path), lambda hit: hit.qid)
    ]


def quick(path, **given):
    return [
        (group.qid, list(zip(group.docids, group.scores, strict=True)))
        for group in read_groups(path, **given)
    ]


@given(run=RUNS, form=st.sampled_from(RunFormat), block=st.integers(1, 300))
def test_groups_are_what_the_reader_of_lines_reads(run, form, block, tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / "run"
    ranked = ((q, sorted(h.items(), key=lambda hit: -hit[1])) for q, h in run.items())
    write_run(path, ranked, form)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_blocks, "BLOCK", block)
        assert quick(path, form=form) == [
            (qid, [(hit.docid, hit.score) for hit in hits])
            for qid, hits in groupby(read_run(path, form=form), lambda hit: hit.qid)
        ]


@pytest.mark.parametrize(
    "text",
    [
        LINE,
        LINE.strip(),
        "\ufeff" + LINE,
        LINE.replace("\n", "\r\n") * 1 + "q1\tQ0\td2\t2\t1.5\ttag\r\n",
        "q1  Q0 d1 1   2.5 tag\n\n q2 Q0 d1 1 -1e3 tag \n",
        LINE + "q2 Q0 " + "d" * 100 + " 1 0.5 tag\nq2 Q0 d1 2 .25 tag\n",
        LINE + "q1 Q0 dé 2 2.25 tag\n",
        "long-query-id-1 Q0 d1 1 2 t\nlong-query-id-2 Q0 d1 1 2 t\nlong-query-i Q0 d1 1 2 t\n",
        "q1 d1 7.5\nq1 d2 6.5\n",
    ],
)
@pytest.mark.parametrize("block", [7, 1 << 19])
def test_lines_clean_and_otherwise(text, block, tmp_path, monkeypatch):
    monkeypatch.setattr(run_blocks, "BLOCK", block)
    path = tmp_path / "run.trec"
    path.write_bytes(text.encode())
    assert quick(path) == slow(path)


def test_clean_lines_are_read_as_arrays(tmp_path, monkeypatch):
    (tmp_path / "run").write_text(LINE + LINE.replace("d1", "d2"))
    monkeypatch.setattr(run_groups, "parse_lines", None)
    assert quick(tmp_path / "run") == [("q1", [("d1", 2.5), ("d2", 2.5)])]


def test_packed_and_piped(tmp_path, monkeypatch):
    (tmp_path / "run.gz").write_bytes(gzip.compress(LINE.encode()))
    assert quick(tmp_path / "run.gz") == [("q1", [("d1", 2.5)])]
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(LINE.encode())))
    assert quick("-") == [("q1", [("d1", 2.5)])]


@pytest.mark.parametrize("text", ["", "\n\n"])
def test_an_empty_run_has_no_groups(text, tmp_path):
    (tmp_path / "run").write_text(text)
    assert quick(tmp_path / "run") == []


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (LINE + "q1 Q0 d2 2 nan tag\n", "line 2: found score 'nan'; expected a finite number"),
        (LINE + "q1 Q0 d2 2 tag\n", "line 2: found 5 columns; expected 6 columns"),
        (LINE + LINE, "line 2: found passage d1 twice for query q1"),
        (
            LINE + LINE.replace("q1", "q2") + LINE.replace("d1", "d2"),
            "line 3: found query q1 again after query q2; expected the lines of a query together",
        ),
        (LINE + "q1 Q0 d2", "line 2: found a last line that is cut off (3 columns); expected a wh"),
        (LINE + "q1 Q0 d2 2 1e tag", "line 2: found a last line that is cut off (score '1e')"),
        (LINE + "q1 Q0 d\x001 2 1.5 tag\nq1 d2\n", "line 3: found 2 columns; expected 6 columns"),
    ],
)
@pytest.mark.parametrize("block", [5, 1 << 19])
def test_refusals(text, told, block, tmp_path, monkeypatch):
    monkeypatch.setattr(run_blocks, "BLOCK", block)
    (tmp_path / "run.trec").write_text(text)
    with pytest.raises(InputError) as refusal:
        quick(tmp_path / "run.trec")
    assert told in str(refusal.value)


def test_a_packed_run_that_breaks_off(tmp_path):
    (tmp_path / "run.gz").write_bytes(gzip.compress(LINE.encode() * 1000)[:-9])
    with pytest.raises(InputError, match="breaks off"):
        quick(tmp_path / "run.gz")


def test_faults_that_are_passed_over_are_counted(tmp_path):
    lines = [LINE, "q1 Q0 d2 2 1.5 t\n", "q1 Q0 d1 3 9.5 t\n", "q1 Q0 d2 4 0.5 t\n", "q2 Q0 d7"]
    (tmp_path / "run").write_text("".join(lines))
    passed: Counter[str] = Counter()
    assert quick(tmp_path / "run", passed=passed) == [("q1", [("d1", 9.5), ("d2", 1.5)])]
    assert passed == {"a passage twice for a query": 2, "a last line that is cut off": 1}
