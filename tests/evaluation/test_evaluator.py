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
from denserk.io.qrels import read_qrels_map
from denserk.io.runs import read_run_scores
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


def trec_eval_order(hits: dict[str, float]) -> list[str]:
    """Passages by float32 score, ties by id descending."""
    return sorted(hits, key=lambda d: (as_float32(hits[d]), d.encode()), reverse=True)


def relevant_ranks(order: list[str], grades: dict[str, int]) -> list[int]:
    return [rank for rank, docid in enumerate(order, start=1) if grades.get(docid, 0) > 0]


def dcg_at_3(grades: list[int]) -> float:
    gains = [max(grade, 0) for grade in grades[:3]]
    return sum(gain / log2(rank + 1) for rank, gain in enumerate(gains, start=1))


def restated_measures(hits: dict[str, float], grades: dict[str, int]) -> dict[str, float]:
    """The values of MEASURES for one query, from their definitions."""
    order = trec_eval_order(hits)
    ranks = relevant_ranks(order, grades)
    order_of_rr_at_3 = sorted(hits, key=lambda docid: (-hits[docid], docid))
    ranks_of_rr_at_3 = relevant_ranks(order_of_rr_at_3[:3], grades)
    values = dict.fromkeys(map(str, MEASURES), 0.0)
    values["P@3"] = sum(rank <= 3 for rank in ranks) / 3
    if ranks:
        values["RR"] = 1 / ranks[0]
    if ranks_of_rr_at_3:
        values["RR@3"] = 1 / ranks_of_rr_at_3[0]
    relevant_count = sum(grade > 0 for grade in grades.values())
    if relevant_count:
        ideal = sorted(grades.values(), reverse=True)
        precisions = [count / rank for count, rank in enumerate(ranks, start=1)]
        values["nDCG@3"] = dcg_at_3([grades.get(d, 0) for d in order]) / dcg_at_3(ideal)
        values["AP"] = sum(precisions) / relevant_count
        values["R@3"] = sum(rank <= 3 for rank in ranks) / relevant_count
    return values


@given(RUNS, GRADES)
def test_measures_equal_their_restatement_on_runs_full_of_ties(
    run: Scores, judgments: Grades
) -> None:
    result = Evaluator(MEASURES, judgments).evaluate("run", run)
    for qid, grades in judgments.items():
        values_of_query = {name: values[qid] for name, values in result.per_query.items()}
        assert values_of_query == pytest.approx(restated_measures(run.get(qid, {}), grades))
    for name, values in result.per_query.items():
        assert list(values) == list(judgments)
        assert result.summary[name] == pytest.approx(sum(values.values()) / len(judgments))


JUDGMENTS = {"q1": {"a": 1}, "q2": {"a": 1}, "q3": {"a": 0}, "q4": {"a": 1}}


def test_missing_and_unjudged_queries() -> None:
    run = {
        "q1": {"a": 2.0, "b": 1.0},
        "q2": {"b": 2.0, "a": 1.0},
        "q3": {"a": 1.0},
        "q4": {},
        "other": {"a": 1.0},
    }
    measures = parse_measures(["RR@10 NumQ"]).measures
    complete = Evaluator(measures, JUDGMENTS).evaluate("run", run)
    assert complete.summary == {"RR@10": (1 / 1 + 1 / 2 + 0 + 0) / 4, "NumQ": 4}
    assert complete.missing == ("q4",)
    assert complete.unjudged == ("other",)
    without_missing = Evaluator(measures, JUDGMENTS, complete=False).evaluate("run", run)
    assert without_missing.summary == {"RR@10": (1 / 1 + 1 / 2 + 0) / 3, "NumQ": 3}


@pytest.mark.parametrize(
    ("run", "message"),
    [
        ({"x": {"a": 1.0}}, "run answers queries 'x'; .* none in common"),
        ({"q1": {}}, "run holds no hit at all"),
    ],
)
def test_a_run_without_hits_for_judged_queries_is_rejected(run: Scores, message: str) -> None:
    evaluator = Evaluator(parse_measures(["RR@10"]).measures, JUDGMENTS)
    with pytest.raises(MismatchError, match=message):
        evaluator.evaluate("run", run)


@pytest.mark.parametrize(
    ("hits", "warnings"),
    [
        (
            {"x#0": 3.0, "a#1": 2.0, "a#0": 1.0},
            [
                "run: no hit is judged: hits are passages such as 'a#1', judgments are of "
                "documents such as 'a'; search --max-passage writes documents"
            ],
        ),
        ({"a#1": 2.0, "b": 1.0}, []),  # a document is among the hits
        (
            {"x#0": 2.0, "y": 1.0},
            [
                "run: no hit is judged: hits are passages such as 'x#0', judgments are of "
                "passages such as 'a'; are these ids of the same corpus?"
            ],
        ),
    ],
)
def test_hits_of_which_none_is_judged_are_warned_of(
    hits: dict[str, float], warnings: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    evaluator = Evaluator(parse_measures(["RR@10"]).measures, {"q1": {"a": 1, "b": 0}})
    evaluator.result([evaluator.evaluate("run", {"q1": hits})])
    assert caplog.messages == warnings


@pytest.mark.skipif(shutil.which("perl") is None, reason="gdeval is a Perl script")
def test_gdeval_takes_any_query_id() -> None:
    measures = parse_measures(["ERR@20"]).measures
    judgments = {"a-1": {"x": 1}, "b-1": {"x": 4}, "missing": {"x": 1}}
    run = {"b-1": {"x": 1.0}, "a-1": {"x": 1.0}, "unjudged": {"x": 1.0}}
    result = Evaluator(measures, judgments).evaluate("run", run)
    assert result.per_query["ERR@20"] == {"a-1": 1 / 16, "b-1": 15 / 16, "missing": 0.0}


RANKED = (
    *("nDCG@3", "nDCG nDCG(judged_only=True)@2", "RR@2 RR(rel=2)@10 RR", "AP AP(rel=2)@3"),
    *("R@2 R(rel=2)@1000", "P@2 P(judged_only=True)@3", "Success@2", "Rprec Bpref"),
    *("IPrec@0.1 IPrec@0.5 IPrec@1.0", "Judged@2", "NumQ NumRel"),
)
COUNTING = ("NumRet", "SetP SetF", "Judged", "infAP", "official")


def write_run(path: Path, run: Scores) -> str:
    with path.open("w") as out:
        for qid, hits in run.items():
            for rank, (docid, score) in enumerate(hits.items(), start=1):
                out.write(f"{qid} Q0 {docid} {rank} {score!r} t\n")
    return str(path)


def write_qrels(path: Path, judgments: Grades) -> str:
    with path.open("w") as out:
        for qid, grades in judgments.items():
            for docid, grade in grades.items():
                out.write(f"{qid} 0 {docid} {grade}\n")
    return str(path)


def check_that_pruning_changes_nothing(
    run: str, qrels: str, measures: tuple[str, ...], level: int = 1
) -> None:
    """The task reads only the hits that measures need; the evaluator gets all of them."""
    pruned = evaluate([run], qrels, EvaluationSettings(measures, relevance_level=level)).runs[0]
    evaluator = Evaluator(parse_measures(measures, level).measures, read_qrels_map(qrels))
    whole = evaluator.evaluate(pruned.name, read_run_scores(run))
    assert sum(pruned.ties.values()) <= sum(whole.ties.values())  # of the hits that are needed
    assert pruned == replace(whole, run_id=pruned.run_id, ties=pruned.ties)


@given(
    run=RUNS,
    judgments=GRADES,
    measures=st.lists(st.sampled_from([*RANKED, *COUNTING]), min_size=1, max_size=3),
    level=st.sampled_from([1, 2]),
    in_order=st.booleans(),
    small_block=st.sampled_from([0, runs.SMALL_BLOCK]),  # by column, and line by line
)
def test_pruned_and_whole_runs_have_the_same_measures(
    tmp_path_factory, run, judgments, measures, level, in_order, small_block
):
    if in_order:
        run = {qid: highest_first(hits) for qid, hits in run.items()}
    folder = tmp_path_factory.mktemp("eval")
    run_file = write_run(folder / "run", run)
    qrels_file = write_qrels(folder / "qrels", judgments)
    with patch.object(runs, "SMALL_BLOCK", small_block), patch.object(run_columns, "MANY_HITS", 1):
        check_that_pruning_changes_nothing(run_file, qrels_file, tuple(measures), level)


def test_a_judged_hit_below_the_depth_of_the_measures_is_a_judged_hit(tmp_path: Path) -> None:
    run_file = write_run(tmp_path / "run", {"q1": {"d1": 3.0, "d2": 2.0, "d3": 1.0}})
    qrels_file = write_qrels(tmp_path / "qrels", {"q1": {"d3": 1}})
    check_that_pruning_changes_nothing(run_file, qrels_file, ("nDCG@1",))
    result = evaluate([run_file], qrels_file, EvaluationSettings(("nDCG@1",))).runs[0]
    assert result.unjudged_hit is None


def highest_first(hits: dict[str, float]) -> dict[str, float]:
    return {docid: hits[docid] for docid in sorted(hits, key=hits.__getitem__, reverse=True)}


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
    run = tmp_path / "run"
    run.write_text(text)
    qrels = write_qrels(tmp_path / "qrels", {"q1": {"d1": 0, "d2": 1}})
    check_that_pruning_changes_nothing(str(run), qrels, ("nDCG@10 RR@10",))
