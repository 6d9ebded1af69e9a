"""One query as evaluators see it, beside those evaluators themselves."""

import copy
from pathlib import Path

import ir_measures
import pytest
import pytrec_eval

from denserk.commands.evaluate import evaluate
from denserk.config.evaluation import EvaluationSettings
from denserk.errors import UsageError
from denserk.evaluation.explain import explain

MEASURES = ("nDCG@10", "RR@10", "AP", "R@2")
# a disagreement: lines of the run (passage, rank, score) and grades of query 7
CASES = {
    "equal scores": ([(1, 1, 9.0), (2, 2, 9.0), (3, 3, 8.0)], {1: 1, 3: 2}),
    "equal as float32": ([(1, 1, 20.0000002), (2, 2, 20.0000001)], {1: 1}),
    "ranks against scores": ([(1, 1, 2.0), (2, 2, 3.0)], {1: 1}),
    "empty ranks": ([(1, 2, 3.0), (2, 5, 2.0)], {2: 1}),
    "own id": ([(7, 1, 3.0), (1, 2, 2.0)], {1: 1}),
    "own id is judged": ([(7, 1, 3.0), (1, 2, 2.0)], {7: 1, 1: 1}),
    "more than ten hits": ([(n, n, 50.0 - n) for n in range(11, 30)], {22: 1}),
    "grade 0": ([(1, 1, 3.0), (2, 2, 2.0)], {1: 0, 2: 1}),
    "negative grade": ([(1, 1, 3.0), (2, 2, 2.0)], {1: -1, 2: 1}),
    "capped recall": ([(1, 1, 3.0), (2, 2, 2.0)], {1: 1, 2: 1, 3: 1, 4: 1}),
    "unjudged hits": ([(8, 1, 3.0), (9, 2, 2.5), (1, 3, 2.0)], {1: 2}),
    "a passage twice": ([(1, 1, 3.0), (2, 2, 2.0), (1, 3, 1.0)], {1: 1}),
    "a query without hits": ([], {1: 1}),
    "a query without judgments": ([(1, 1, 3.0)], None),
}


def write_files(folder, lines, grades):
    """Write a run and qrels, which hold query 5, too."""
    run = folder / "run.trec"
    with run.open("w") as out:
        for docid, rank, score in lines:
            out.write(f"7 Q0 {docid} {rank} {score!r} t\n")
        out.write("5 Q0 1 1 1.5 t\n")
    qrels = folder / "qrels.txt"
    with qrels.open("w") as out:
        for docid, grade in (grades or {}).items():
            out.write(f"7\t0\t{docid}\t{grade}\n")
        out.write("5\t0\t1\t1\n")
    return str(run), str(qrels)


def values_by_evaluator(run, qrels):
    views = explain(run, qrels, "7", EvaluationSettings(MEASURES))
    return {view.name: view.values for view in views}


def lines_of(path):
    return Path(path).read_text().splitlines()


def as_dicts(run, qrels):
    """Read files as BEIR's and MTEB's users do: of a repeated passage the last line stays."""
    hits: dict[str, dict[str, float]] = {}
    grades: dict[str, dict[str, int]] = {}
    for line in lines_of(run):
        qid, _, docid, _, score, _ = line.split()
        hits.setdefault(qid, {})[docid] = float(score)
    for line in lines_of(qrels):
        qid, _, docid, grade = line.split()
        grades.setdefault(qid, {})[docid] = int(grade)
    return hits, grades


def renamed(values, names):
    """Return the values that are numbers, under another evaluator's names of measures."""
    return {
        other_name: values[name]
        for name, other_name in names.items()
        if isinstance(values[name], float)
    }


@pytest.fixture(params=CASES)
def case(request, tmp_path):
    return write_files(tmp_path, *CASES[request.param])


def test_pytrec_eval_has_the_same_values(case):
    run, qrels = case
    explained = values_by_evaluator(run, qrels)["pytrec_eval"]
    try:
        hits = pytrec_eval.parse_run(lines_of(run))
    except AssertionError:
        assert explained["AP"] == "stops: a passage twice"
        return
    grades = pytrec_eval.parse_qrel(lines_of(qrels))
    evaluator = pytrec_eval.RelevanceEvaluator(grades, {"ndcg_cut.10", "map", "recall.2"})
    values = evaluator.evaluate(hits).get("7", {})
    names = {"nDCG@10": "ndcg_cut_10", "AP": "map", "R@2": "recall_2"}
    assert values == pytest.approx(renamed(explained, names))


def test_ir_measures_has_the_same_values(case):
    run, qrels = case
    explained = values_by_evaluator(run, qrels)
    expected = {**explained["ir_measures"], **explained["ir_measures RR@k"]}
    judgments = list(ir_measures.read_trec_qrels(qrels))
    hits = list(ir_measures.read_trec_run(run))
    measures = [ir_measures.parse_measure(name) for name in MEASURES]
    values = {}
    for metric in ir_measures.iter_calc(measures, judgments, hits):
        if metric.query_id == "7":
            values[str(metric.measure)] = metric.value
    if any(judgment.query_id == "7" for judgment in judgments):
        assert values == pytest.approx({name: float(value) for name, value in expected.items()})
    else:
        assert set(expected.values()) == {"left out"}
        assert not values


def test_ms_marcos_script_has_the_same_values(case, tmp_path):
    from ir_measures.bin import msmarco_eval

    run, qrels = case
    explained = values_by_evaluator(run, qrels)["MS MARCO script"]["RR@10"]
    ranking = tmp_path / "ranking.tsv"
    with ranking.open("w") as out:
        for line in lines_of(run):
            qid, _, docid, rank, _, _ = line.split()
            out.write(f"{qid}\t{docid}\t{rank}\n")
    reference = msmarco_eval.load_reference(qrels)
    candidates = msmarco_eval.load_candidate(ranking)
    is_accepted, _ = msmarco_eval.quality_checks_qids(reference, candidates)
    if not is_accepted:
        assert explained == "stops: a passage twice"
        return
    values = msmarco_eval.compute_metrics(reference, candidates)["MRR @10 by query"]
    if isinstance(explained, float):
        assert values[7] == pytest.approx(explained)
    else:
        assert 7 not in values


@pytest.mark.peer
def test_beir_has_the_same_values(case):
    evaluation = pytest.importorskip("beir.retrieval.evaluation").EvaluateRetrieval
    custom = pytest.importorskip("beir.retrieval.custom_metrics")
    explained = values_by_evaluator(*case)
    all_hits, all_grades = as_dicts(*case)
    hits = {"7": all_hits["7"]} if "7" in all_hits else {}
    if "7" not in all_grades:
        assert explained["BEIR MRR"]["RR@10"] == "stops with a KeyError"
        with pytest.raises(KeyError):
            custom.mrr(all_grades, hits, [10])
        return
    grades = {"7": all_grades["7"]}
    if not hits:
        assert custom.mrr(grades, hits, [10])["MRR@10"] == float(explained["BEIR MRR"]["RR@10"])
        return
    ndcg, ap, recall, _ = evaluation.evaluate(grades, hits, [2, 10, 100])
    values = {**ndcg, **ap, **recall, **custom.mrr(grades, hits, [10])}
    values |= custom.recall_cap(grades, hits, [2])
    names = {"nDCG@10": "NDCG@10", "AP": "MAP@100", "R@2": "Recall@2", "R_cap@2": "R_cap@2"}
    expected = renamed(explained["BEIR"], names)
    expected |= renamed(explained["BEIR MRR"], {"RR@10": "MRR@10"})
    assert {name: values[name] for name in expected} == pytest.approx(expected, abs=1e-5)


@pytest.mark.peer
def test_mteb_has_the_same_values(case):
    metrics = pytest.importorskip("mteb._evaluators.retrieval_metrics")
    explained = values_by_evaluator(*case)
    all_hits, all_grades = as_dicts(*case)
    if "7" not in all_hits or "7" not in all_grades:
        assert {type(value) for value in explained["MTEB"].values()} == {str}
        return
    hits = {"7": all_hits["7"]}
    grades = {"7": all_grades["7"]}
    scores = metrics.calculate_retrieval_scores(copy.deepcopy(hits), grades, [2, 10])
    values = {
        "nDCG@10": scores.ndcg["NDCG@10"],
        "R@2": scores.recall["Recall@2"],
        "RR@10": scores.mrr["MRR@10"],
        "R_cap@2": metrics.recall_cap(grades, hits, [2])["R_cap_at_2"][0],
    }
    expected = {**explained["MTEB"], **explained["MTEB MRR"]}
    assert values == pytest.approx({name: expected[name] for name in values}, abs=1e-5)


@pytest.mark.parametrize(
    ("name", "evaluator", "rule"),
    [
        ("equal scores", "ir_measures RR@k", "ties by ids ascending"),
        ("equal as float32", "MTEB MRR", "scores compared as float64"),
        ("ranks against scores", "MS MARCO script", "ranks in place of scores"),
        ("own id", "BEIR", "the passage with the query's own id is dropped"),
        ("grade 0", "MS MARCO script", "every judged passage is relevant, whatever its grade"),
    ],
)
def test_the_rule_that_moves_a_value_is_named(name, evaluator, rule, tmp_path):
    run, qrels = write_files(tmp_path, *CASES[name])
    views = explain(run, qrels, "7", EvaluationSettings(MEASURES))
    rules_by_evaluator = {view.name: view.moved_by for view in views}
    assert rules_by_evaluator[evaluator] == (rule,)
    assert rules_by_evaluator["pytrec_eval"] == ()


def test_the_command_prints_a_row_for_each_evaluator(tmp_path, capsys):
    run, qrels = write_files(tmp_path, *CASES["own id"])
    evaluate(files=[run, qrels], explain="7", measures=("nDCG@10",))
    header, *rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert header[:2] == ["run.trec: query 7", "nDCG@10"]
    row_by_evaluator = {row[0]: row for row in rows}
    assert row_by_evaluator["trec_eval"][1:3] == ["0.6309", "7 (-) 1 (1)"]
    assert row_by_evaluator["BEIR"][1] == "1.0000"


def test_a_query_that_is_not_there_brings_the_nearest_ones(tmp_path):
    run, qrels = write_files(tmp_path, *CASES["own id"])
    with pytest.raises(UsageError) as caught:
        explain(run, qrels, "77", EvaluationSettings(MEASURES))
    assert "did you mean 7?" in str(caught.value.hint)
