import gzip
import io
from random import Random
from types import SimpleNamespace
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from denserk.errors import InputError
from denserk.evaluation.evaluator import Ties
from denserk.evaluation.hits_seen import Reach, Sight, reach_of
from denserk.evaluation.measures import parse_measures, providers_of
from denserk.formats import run_blocks
from denserk.settings.evaluation import EvaluationSettings
from denserk.tasks.evaluate import evaluate
from tests.reporters import Heard

RANKED = (
    "nDCG@3",
    "nDCG nDCG(judged_only=True)@2",
    "RR@2 RR(rel=2)@10 RR",
    "AP AP(rel=2)@3",
    "R@2 R(rel=2)@1000",
    "P@2 P(judged_only=True)@3",
    "Success@2",
    "Rprec Bpref",
    "IPrec@0.1 IPrec@0.5 IPrec@1.0",
    "Judged@2",
    "NumQ NumRel",
)
COUNTING = ("NumRet", "SetP SetF", "Judged", "infAP", "official")

IDS = st.sampled_from(["a", "b", "c", "d1", "d10", "passage-007", "passage-008", "passages-007"])
SCORES = st.one_of(st.integers(-2, 2), st.floats(-1, 1), st.sampled_from([1.0, 1.00000000001]))
RUNS = st.lists(
    st.tuples(
        st.sampled_from(["q1", "q2", "q3", "a-long-query", "a-long-query-2"]),
        st.dictionaries(IDS, SCORES, min_size=1, max_size=8),
    ),
    min_size=1,
    max_size=5,
    unique_by=lambda query: query[0],
)
JUDGEMENTS = st.dictionaries(
    st.sampled_from(["q1", "q2", "q3", "a-long-query", "none"]),
    st.dictionaries(IDS, st.integers(0, 3), min_size=1, max_size=6),
    min_size=1,
)


def write(folder, run, judged) -> tuple[str, str]:
    lines = [
        f"{qid} Q0 {docid} {rank} {score!r} t\n"
        for qid, hits in run
        for rank, (docid, score) in enumerate(hits.items(), 1)
    ]
    (folder / "run").write_text("".join(lines))
    grades = [f"{q} 0 {d} {grade}\n" for q, grades in judged.items() for d, grade in grades.items()]
    (folder / "qrels").write_text("".join(grades))
    return str(folder / "run"), str(folder / "qrels")


def both(run, qrels, measures, **settings):
    """What the fast and the plain path find."""
    chosen = EvaluationSettings(measures, **settings)
    fast = evaluate([run], qrels, chosen).runs[0]
    with patch.object(Sight, "of", return_value=None):
        return [fast, evaluate([run], qrels, chosen).runs[0]]


@given(
    run=RUNS,
    judged=JUDGEMENTS,
    measures=st.lists(st.sampled_from([*RANKED, *COUNTING]), min_size=1, max_size=3),
    level=st.sampled_from([1, 2]),
    in_order=st.booleans(),
    block=st.sampled_from([1, 40, 200, 1 << 19]),
)
def test_fast_and_plain_find_the_same(
    tmp_path_factory, run, judged, measures, level, in_order, block
):
    if in_order:
        run = [(q, dict(sorted(hits.items(), key=lambda hit: -hit[1]))) for q, hits in run]
    if not {qid for qid, _ in run} & judged.keys():
        judged = judged | {run[0][0]: {"a": 1}}
    files = write(tmp_path_factory.mktemp("eval"), run, judged)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(run_blocks, "BLOCK", block)
        fast, plain = both(*files, tuple(measures), relevance_level=level)
    assert fast == plain


@pytest.mark.parametrize("depth", [10, 1500])
@pytest.mark.parametrize("tied", [False, True])
def test_long_lists(tmp_path, depth, tied):
    draw = Random(1)
    run, judged = [], {}
    for number in range(5):
        docids = [f"D{n}" for n in draw.sample(range(10_000), depth)]
        places = [place // 3 if tied else place for place in range(depth)]
        run.append((f"q{number}", {d: 1 - p / 1024 for d, p in zip(docids, places, strict=True)}))
        judged[f"q{number}"] = {d: draw.randrange(3) for d in [*docids[:: depth // 5], "D-1"]}
    fast, plain = both(*write(tmp_path, run, judged), (" ".join(RANKED),))
    assert fast == plain
    assert bool(fast.ties.lines) is tied


@pytest.mark.parametrize(
    ("measures", "reach"),
    [
        ("nDCG@10 RR@20 R@5", Reach(20, to_last_judged=True)),
        ("nDCG@10 AP", Reach(None, to_last_judged=True)),
        ("nDCG(judged_only=True)@10 R@100", Reach(None, to_last_judged=True)),
        ("Judged@7 P@5", Reach(7, to_last_judged=False)),
        ("NumQ RR@10", Reach(10, to_last_judged=True)),
        *((counting, None) for counting in ("P@5 NumRet", "AP Judged@5", "infAP", "SetR")),
    ],
)
def test_reach(measures, reach):
    assert reach_of(providers_of(parse_measures([measures]).measures)) == reach


def test_what_is_seen_of_a_run(tmp_path):
    falling = {f"d{place}": 9.0 - place for place in range(6)}
    tied = {"a": 1, "b": 3, "c": 2, "d": 2, "e": 0}
    run, _ = write(
        tmp_path, [("q1", falling), ("q2", tied), ("unjudged", falling)], {"q1": {"d0": 1}}
    )
    sight = Sight.of(
        parse_measures(["AP"]).measures, {"q1": {"d2": 1, "d4": 0, "x": 1}, "q2": {"c": 1}}
    )
    notes = Heard()
    assert sight is not None
    seen = sight.see(run)
    assert seen is not None
    assert set(notes.notes) == {"run: trec run (6 columns: qid Q0 docid rank score tag)"}
    assert seen.run == {
        "q1": {"\n0": 0, "\n1": -1, "d2": -2, "\n3": -3, "d4": -4},
        "q2": {"b": 3, "c": 2, "d": 2},
        "unjudged": {"\n0": 0},
    }
    assert seen.ties == Ties(1, ("q2",))


LINE = "q1 Q0 d1 1 2.5 t\n"


@pytest.mark.parametrize(
    "text",
    [
        LINE + "q2 Q0 d1 1 1 t\nq1 Q0 d2 2 2 t\n",
        LINE + "q1 Q0 d\u00e9 2 2 t\n",
        LINE + "\nq1  Q0 d2 2 2 t\n",
        "q1 d1 1\nq1 d2 2\n",
        '{"qid":"q1","docid":"d1","score":1}\n',
        LINE.replace("\n", "\r\n"),
        LINE.strip(),
        "\ufeff" + LINE,
    ],
)
def test_any_run_is_evaluated(tmp_path, text):
    _, qrels = write(tmp_path, [], {"q1": {"d1": 0, "d2": 1}})
    (tmp_path / "run").write_bytes(text.encode())
    fast, plain = both(str(tmp_path / "run"), qrels, ("nDCG@10 RR@10",))
    assert fast == plain


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (LINE + LINE, "line 2: found passage d1 twice for query q1"),
        (LINE * 1 + "x Q0 a 1 2 t\nx Q0 a 2 1 t\n", "line 3: found passage a twice for query x"),
        (LINE + "q1 Q0 d2 2 nan t\n", "line 2: found score 'nan'"),
        (LINE + "q1 Q0 d2 2 t\n", "line 2: found 5 columns"),
        (LINE + "q2 Q0 d 1 1 t\n" + LINE, "line 3: found passage d1 twice for query q1"),
    ],
)
def test_mistakes_are_told_by_line(tmp_path, text, told):
    _, qrels = write(tmp_path, [], {"q1": {"d1": 1}})
    (tmp_path / "run").write_text(text)
    with pytest.raises(InputError, match=told):
        evaluate([str(tmp_path / "run")], qrels, EvaluationSettings(("RR@10",)))


def test_passages_whose_keys_are_alike(tmp_path):
    """Only the first and the last eight bytes make a key."""
    hits = {f"collection-{n}-passage": 9.0 - n for n in range(5)}
    judged = {"q1": {"collection-3-passage": 1, "collection-7-passage": 1}}
    fast, plain = both(*write(tmp_path, [("q1", hits)], judged), ("RR@10 AP",))
    assert fast == plain
    assert fast.summary["RR@10"] == 0.25


def test_packed_and_piped(tmp_path, monkeypatch):
    _, qrels = write(tmp_path, [], {"q1": {"d1": 1}})
    settings = EvaluationSettings(("RR@10",))
    (tmp_path / "run.gz").write_bytes(gzip.compress(LINE.encode()))
    assert evaluate([str(tmp_path / "run.gz")], qrels, settings).runs[0].summary == {"RR@10": 1}
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(LINE.encode())))
    assert evaluate(["-"], qrels, settings).runs[0].summary == {"RR@10": 1}
