import shutil
import struct
from dataclasses import replace
from math import log2
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from denserk.config.evaluation import EvaluationSettings
from denserk.errors import MismatchError
from denserk.evaluation.evaluator import Evaluator
from denserk.evaluation.measures import parse_measures
from denserk.io import run_columns, runs
from denserk.io.runs import read_run_scores
from denserk.io.topics import read_qrels_map
from denserk.tasks.evaluate import evaluate

Scores = dict[str, dict[str, float]]
Grades = dict[str, dict[str, int]]

MEASURES = parse_measures(["nDCG@3 AP RR P@3 R@3 RR@3"]).measures
IDS = st.sampled_from(["D9", "D10", "d1", "d2", "900", "1000", "ä", "z"])
NEAR = st.sampled_from([1.0, 1.0 + 1e-9, 1.0 + 1e-6, 2.0, -3.5, 80.0, 80.000001])
QUERIES = ["q1", "q2", "q3"]
RUNS = st.dictionaries(
    st.sampled_from([*QUERIES, "other"]), st.dictionaries(IDS, NEAR, min_size=1), max_size=4
).filter(lambda run: run.keys() & set(QUERIES))
GRADES = st.fixed_dictionaries(
    {qid: st.dictionaries(IDS, st.integers(-1, 3), min_size=1) for qid in QUERIES}
)


def as_float32(score: float) -> float:
    return float(struct.unpack("f", struct.pack("f", score))[0])


def literal(hits: dict[str, float], grades: dict[str, int]) -> dict[str, float]:
    """trec_eval 9's measures of one query, restated: float32 scores, ties by id descending."""
    ranked = sorted(hits, key=lambda d: (as_float32(hits[d]), d.encode()), reverse=True)
    gains = [max(grades.get(docid, 0), 0) for docid in ranked]
    ideal = sorted((max(grade, 0) for grade in grades.values()), reverse=True)
    relevant = sum(gain > 0 for gain in ideal)
    ranks = [rank for rank, gain in enumerate(gains, 1) if gain]

    def dcg(values: list[int]) -> float:
        return sum(gain / log2(rank + 1) for rank, gain in enumerate(values[:3], 1))

    ascending = sorted(hits, key=lambda d: (-hits[d], d))
    first = [rank for rank, docid in enumerate(ascending[:3], 1) if grades.get(docid, 0) > 0]
    return {
        "nDCG@3": dcg(gains) / dcg(ideal) if relevant else 0.0,
        "AP": sum(i / rank for i, rank in enumerate(ranks, 1)) / relevant if relevant else 0.0,
        "RR": 1 / ranks[0] if ranks else 0.0,
        "P@3": sum(rank <= 3 for rank in ranks) / 3,
        "R@3": sum(rank <= 3 for rank in ranks) / relevant if relevant else 0.0,
        "RR@3": 1 / first[0] if first else 0.0,
    }


@given(RUNS, GRADES)
def test_equals_a_literal_restatement_on_runs_full_of_ties(run: Scores, judged: Grades) -> None:
    result = Evaluator(MEASURES, judged).evaluate("run", run)
    for qid, grades in judged.items():
        found = {name: values[qid] for name, values in result.per_query.items()}
        assert found == pytest.approx(literal(run.get(qid, {}), grades))
    for name, values in result.per_query.items():
        assert list(values) == list(judged)
        assert result.summary[name] == pytest.approx(sum(values.values()) / len(judged))


def test_missing_and_unjudged_queries() -> None:
    judged = {"q1": {"a": 1}, "q2": {"a": 1}, "q3": {"a": 0}, "q4": {"a": 1}}
    run = {"q1": {"a": 2.0, "b": 1.0}, "q2": {"b": 2.0, "a": 1.0}, "q3": {"a": 1.0}}
    run |= {"q4": {}, "other": {"a": 1.0}}
    measures = parse_measures(["RR@10 NumQ"]).measures
    result = Evaluator(measures, judged).evaluate("run", run)
    assert result.summary == {"RR@10": (1 / 1 + 1 / 2 + 0 + 0) / 4, "NumQ": 4}
    assert (result.missing, result.unjudged) == (("q4",), ("other",))
    assert Evaluator(measures, judged, complete=False).evaluate("run", run).summary == {
        "RR@10": (1 / 1 + 1 / 2 + 0) / 3,
        "NumQ": 3,
    }
    with pytest.raises(MismatchError, match=r"run answers queries 'x'; .* none in common"):
        Evaluator(measures, judged).evaluate("run", {"x": {"a": 1.0}})
    with pytest.raises(MismatchError, match="run holds no hit at all"):
        Evaluator(measures, judged).evaluate("run", {"q1": {}})


@pytest.mark.parametrize(
    ("hits", "passage"),
    [
        ({"x#0": 3.0, "a#1": 2.0, "a#0": 1.0}, "a#1"),
        ({"a#1": 2.0, "b": 1.0}, None),  # a document is found
        ({"x#0": 2.0, "y": 1.0}, None),
    ],
)
def test_passages_of_judged_documents_are_warned_of(
    hits: dict[str, float], passage: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    evaluator = Evaluator(parse_measures(["RR@10"]).measures, {"q1": {"a": 1, "b": 0}})
    evaluator.result([evaluator.evaluate("run", {"q1": hits})])
    messages = [
        f"run: no hit is judged: hits are passages such as {passage!r}, judgments are of documents "
        "such as 'a'; search --max-passage writes documents"
    ]
    assert caplog.messages == (messages if passage else [])


@pytest.mark.skipif(shutil.which("perl") is None, reason="gdeval is a Perl script")
def test_gdeval_takes_any_query_id() -> None:
    measures = parse_measures(["ERR@20"]).measures
    judged = {"a-1": {"x": 1}, "b-1": {"x": 4}, "missing": {"x": 1}}
    run = {"b-1": {"x": 1.0}, "a-1": {"x": 1.0}, "unjudged": {"x": 1.0}}
    result = Evaluator(measures, judged).evaluate("run", run)
    assert result.per_query["ERR@20"] == {"a-1": 1 / 16, "b-1": 15 / 16, "missing": 0.0}


RANKED = (
    *("nDCG@3", "nDCG nDCG(judged_only=True)@2", "RR@2 RR(rel=2)@10 RR", "AP AP(rel=2)@3"),
    *("R@2 R(rel=2)@1000", "P@2 P(judged_only=True)@3", "Success@2", "Rprec Bpref"),
    *("IPrec@0.1 IPrec@0.5 IPrec@1.0", "Judged@2", "NumQ NumRel"),
)
COUNTING = ("NumRet", "SetP SetF", "Judged", "infAP", "official")


def write(folder: Path, run: Scores, judged: Grades) -> tuple[str, str]:
    lines = [
        f"{qid} Q0 {docid} {rank} {score!r} t\n"
        for qid, hits in run.items()
        for rank, (docid, score) in enumerate(hits.items(), 1)
    ]
    (folder / "run").write_text("".join(lines))
    grades = [f"{q} 0 {d} {grade}\n" for q, grades in judged.items() for d, grade in grades.items()]
    (folder / "qrels").write_text("".join(grades))
    return str(folder / "run"), str(folder / "qrels")


def both(run, qrels, measures, level=1):
    pruned = evaluate([run], qrels, EvaluationSettings(measures, relevance_level=level)).runs[0]
    evaluator = Evaluator(parse_measures(measures, level).measures, read_qrels_map(qrels))
    whole = evaluator.evaluate(pruned.name, read_run_scores(run))
    assert sum(pruned.ties.values()) <= sum(whole.ties.values())  # those of the hits that are kept
    return pruned, replace(whole, run_id=pruned.run_id, ties=pruned.ties)


@given(
    run=RUNS,
    judged=GRADES,
    measures=st.lists(st.sampled_from([*RANKED, *COUNTING]), min_size=1, max_size=3),
    level=st.sampled_from([1, 2]),
    in_order=st.booleans(),
    small_block=st.sampled_from([0, runs.SMALL_BLOCK]),  # by column, and line by line
)
def test_pruned_and_whole_runs_have_the_same_measures(
    tmp_path_factory, run, judged, measures, level, in_order, small_block
):
    if in_order:
        run = {q: dict(sorted(hits.items(), key=lambda hit: -hit[1])) for q, hits in run.items()}
    files = write(tmp_path_factory.mktemp("eval"), run, judged)
    with patch.object(runs, "SMALL_BLOCK", small_block), patch.object(run_columns, "MANY_HITS", 1):
        pruned, whole = both(*files, tuple(measures), level)
    assert pruned == whole


LINE = "q1 Q0 d1 1 2.5 t\n"


@pytest.mark.parametrize(
    "text",
    [
        LINE + "q2 Q0 d1 1 1 t\nq1 Q0 d2 2 2 t\n",
        f"# of 2024 3 5 columns\n{LINE} # half way\nq1 Q0 d2 2 2 t and more\n",
        '{"qid":"q1","docid":"d1","score":1}\n',
    ],
)
def test_any_run_is_evaluated(tmp_path: Path, text: str) -> None:
    _, qrels = write(tmp_path, {}, {"q1": {"d1": 0, "d2": 1}})
    (tmp_path / "run").write_text(text)
    pruned, whole = both(str(tmp_path / "run"), qrels, ("nDCG@10 RR@10",))
    assert pruned == whole
