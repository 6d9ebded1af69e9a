import gzip
import io
from dataclasses import replace
from random import Random
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from denserk.config.evaluation import EvaluationSettings
from denserk.errors import InputError
from denserk.evaluation.evaluator import Evaluator, HitPruner, Needed, evaluate, needed_hits
from denserk.evaluation.measures import parse_measures
from denserk.evaluation.results import Ties
from denserk.io.qrels import read_qrels_map
from denserk.io.runs import RankedList, read_run_scores

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


def both(run, qrels, measures, level=1):
    """The results from pruned hits and from all hits."""
    pruned = evaluate([run], qrels, EvaluationSettings(measures, relevance_level=level)).runs[0]
    evaluator = Evaluator(parse_measures(measures, level).measures, read_qrels_map(qrels))
    return pruned, evaluator.evaluate(pruned.name, read_run_scores(run))


@given(
    run=RUNS,
    judged=JUDGEMENTS,
    measures=st.lists(st.sampled_from([*RANKED, *COUNTING]), min_size=1, max_size=3),
    level=st.sampled_from([1, 2]),
    in_order=st.booleans(),
)
def test_pruned_and_whole_runs_have_the_same_measures(
    tmp_path_factory, run, judged, measures, level, in_order
):
    if in_order:
        run = [(q, dict(sorted(hits.items(), key=lambda hit: -hit[1]))) for q, hits in run]
    if not {qid for qid, _ in run} & judged.keys():
        judged = judged | {run[0][0]: {"a": 1}}
    files = write(tmp_path_factory.mktemp("eval"), run, judged)
    pruned, whole = both(*files, tuple(measures), level)
    assert pruned == replace(whole, run_id=pruned.run_id)


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
    pruned, whole = both(*write(tmp_path, run, judged), (" ".join(RANKED),))
    assert pruned == whole
    assert bool(pruned.ties.lines) is tied


@pytest.mark.parametrize(
    ("measures", "needed"),
    [
        ("nDCG@10 RR@20 R@5", Needed(20, to_last_judged=True)),
        ("nDCG@10 AP", Needed(None, to_last_judged=True)),
        ("nDCG(judged_only=True)@10 R@100", Needed(None, to_last_judged=True)),
        ("Judged@7 P@5", Needed(7, to_last_judged=False)),
        ("NumQ RR@10", Needed(10, to_last_judged=True)),
        *((counting, None) for counting in ("P@5 NumRet", "AP Judged@5", "infAP", "SetR")),
    ],
)
def test_needed_hits(measures, needed):
    assert needed_hits(parse_measures([measures]).measures) == needed


def test_pruned_hits():
    pruner = HitPruner(Needed(None, to_last_judged=True), {"q1": {"d1": 1, "x": 0}, "q2": {"c": 1}})

    def pruned(qid, hits):
        return pruner(RankedList(qid, list(hits), list(hits.values()), range(9)))

    falling = {"d0": 9.0, "d1": 8.0, "d2": 7.0}
    assert pruned("q1", falling) == {"d0": 9.0, "d1": 8.0}
    assert pruned("q2", {"a": 1.0, "b": 3.0, "c": 2.0, "d": 2.0, "e": 0.0}) == {
        "b": 3,
        "c": 2,
        "d": 2,
    }
    assert pruned("unjudged", falling) == {"d0": 9.0}
    assert pruner.ties == Ties(1, ("q2",))


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
    pruned, whole = both(str(tmp_path / "run"), qrels, ("nDCG@10 RR@10",))
    assert pruned == whole


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


def test_packed_and_piped(tmp_path, monkeypatch):
    _, qrels = write(tmp_path, [], {"q1": {"d1": 1}})
    settings = EvaluationSettings(("RR@10",))
    (tmp_path / "run.gz").write_bytes(gzip.compress(LINE.encode()))
    assert evaluate([str(tmp_path / "run.gz")], qrels, settings).runs[0].summary == {"RR@10": 1}
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(LINE.encode())))
    assert evaluate(["-"], qrels, settings).runs[0].summary == {"RR@10": 1}
