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
from denserk.io.runs import read_run_scores

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


def files(folder, lines, grades):
    """Write a run and qrels, which hold query 5, too."""
    run, qrels = folder / "run.trec", folder / "qrels.txt"
    hits = "".join(f"7 Q0 {d} {rank} {score!r} t\n" for d, rank, score in lines)
    run.write_text(f"{hits}5 Q0 1 1 1.5 t\n")
    judged = "".join(f"7\t0\t{d}\t{grade}\n" for d, grade in (grades or {}).items())
    qrels.write_text(f"{judged}5\t0\t1\t1\n")
    return str(run), str(qrels)


def views(run, qrels):
    return {v.name: v.values for v in explain(run, qrels, "7", EvaluationSettings(MEASURES))}


def lines_of(path):
    return Path(path).read_text().splitlines()


def as_dicts(run, qrels):
    """Read files as BEIR's and MTEB's users do: of a repeated passage the last line stays."""
    hits: dict[str, dict[str, float]] = {}
    judged: dict[str, dict[str, int]] = {}
    for qid, _, docid, _, score, _ in map(str.split, lines_of(run)):
        hits.setdefault(qid, {})[docid] = float(score)
    for qid, _, docid, grade in map(str.split, lines_of(qrels)):
        judged.setdefault(qid, {})[docid] = int(grade)
    return hits, judged


def expected(values, names):
    """Return the values of numbers under another evaluator's names; None where it has none."""
    return {name: values[own] for own, name in names.items() if isinstance(values[own], float)}


@pytest.fixture(params=CASES)
def case(request, tmp_path):
    return files(tmp_path, *CASES[request.param])


def test_pytrec_eval_has_the_same_values(case):
    mine = views(*case)["pytrec_eval"]
    names = {"nDCG@10": "ndcg_cut_10", "AP": "map", "R@2": "recall_2"}
    judged = pytrec_eval.parse_qrel(lines_of(case[1]))
    try:
        hits = pytrec_eval.parse_run(lines_of(case[0]))
    except AssertionError:
        assert mine["AP"] == "stops: a passage twice"
        return
    found = pytrec_eval.RelevanceEvaluator(judged, {"ndcg_cut.10", "map", "recall.2"})
    values = found.evaluate(hits).get("7", {})
    assert {k: values[k] for k in names.values() if k in values} == pytest.approx(
        expected(mine, names)
    )


def test_ir_measures_has_the_same_values(case):
    mine = views(*case)
    both = {**mine["ir_measures"], **mine["ir_measures RR@k"]}
    qrels, run = (
        list(ir_measures.read_trec_qrels(case[1])),
        list(ir_measures.read_trec_run(case[0])),
    )
    asked = [ir_measures.parse_measure(name) for name in MEASURES]
    values = {
        str(m.measure): m.value
        for m in ir_measures.iter_calc(asked, qrels, run)
        if m.query_id == "7"
    }
    if any(query.query_id == "7" for query in qrels):
        assert values == pytest.approx({name: float(value) for name, value in both.items()})
    else:
        assert set(both.values()) == {"left out"}
        assert not values


def test_ms_marcos_script_has_the_same_values(case, tmp_path):
    from ir_measures.bin import msmarco_eval

    mine = views(*case)["MS MARCO script"]["RR@10"]
    columns = [line.split() for line in lines_of(case[0])]
    candidates = tmp_path / "candidates.tsv"
    candidates.write_text("".join(f"{c[0]}\t{c[2]}\t{c[3]}\n" for c in columns))
    reference, found = (
        msmarco_eval.load_reference(case[1]),
        msmarco_eval.load_candidate(candidates),
    )
    if not msmarco_eval.quality_checks_qids(reference, found)[0]:
        assert mine == "stops: a passage twice"
        return
    values = msmarco_eval.compute_metrics(reference, found)["MRR @10 by query"]
    assert values.get(7) == (pytest.approx(mine) if isinstance(mine, float) else None)


@pytest.mark.peer
def test_beir_has_the_same_values(case):
    evaluation = pytest.importorskip("beir.retrieval.evaluation").EvaluateRetrieval
    custom = pytest.importorskip("beir.retrieval.custom_metrics")
    mine = views(*case)
    hits, judged = as_dicts(*case)
    only = {"7": hits["7"]} if "7" in hits else {}
    if "7" not in judged:
        assert mine["BEIR MRR"]["RR@10"] == "stops with a KeyError"
        with pytest.raises(KeyError):
            custom.mrr(judged, only, [10])
        return
    own = {"7": judged["7"]}
    if not only:
        assert custom.mrr(own, only, [10])["MRR@10"] == float(mine["BEIR MRR"]["RR@10"])
        return
    ndcg, ap, recall, _ = evaluation.evaluate(own, only, [2, 10, 100])
    found = {**ndcg, **ap, **recall, **custom.mrr(own, only, [10])}
    found |= custom.recall_cap(own, only, [2])
    names = {"nDCG@10": "NDCG@10", "AP": "MAP@100", "R@2": "Recall@2", "R_cap@2": "R_cap@2"}
    wanted = expected(mine["BEIR"], names) | expected(mine["BEIR MRR"], {"RR@10": "MRR@10"})
    assert {name: found[name] for name in wanted} == pytest.approx(wanted, abs=1e-5)


@pytest.mark.peer
def test_mteb_has_the_same_values(case):
    metrics = pytest.importorskip("mteb._evaluators.retrieval_metrics")
    mine = views(*case)
    hits, judged = as_dicts(*case)
    if "7" not in hits or "7" not in judged:
        assert {type(value) for value in mine["MTEB"].values()} == {str}
        return
    one = ({"7": hits["7"]}, {"7": judged["7"]})
    found = metrics.calculate_retrieval_scores(copy.deepcopy(one[0]), one[1], [2, 10])
    values = {
        "nDCG@10": found.ndcg["NDCG@10"],
        "R@2": found.recall["Recall@2"],
        "RR@10": found.mrr["MRR@10"],
        "R_cap@2": metrics.recall_cap(one[1], one[0], [2])["R_cap_at_2"][0],
    }
    wanted = {**mine["MTEB"], **mine["MTEB MRR"]}
    assert values == pytest.approx({name: wanted[name] for name in values}, abs=1e-5)


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
    run, qrels = files(tmp_path, *CASES[name])
    found = explain(run, qrels, "7", EvaluationSettings(MEASURES))
    assert {v.name: v.moved_by for v in found}[evaluator] == (rule,)
    assert not {v.name: v.moved_by for v in found}["pytrec_eval"]


def test_the_command_prints_a_row_for_each_evaluator(tmp_path, capsys):
    run, qrels = files(tmp_path, *CASES["own id"])
    evaluate(files=[run, qrels], explain="7", measures=("nDCG@10",))
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert rows[0][:2] == ["run.trec: query 7", "nDCG@10"]
    values = {row[0]: row[1:3] for row in rows[1:]}
    assert values["trec_eval"] == ["0.6309", "7 (-) 1 (1)"]
    assert values["BEIR"][0] == "1.0000"
    assert read_run_scores(run)["7"]  # nothing was changed


def test_a_query_that_is_not_there_brings_the_nearest_ones(tmp_path):
    run, qrels = files(tmp_path, *CASES["own id"])
    with pytest.raises(UsageError) as caught:
        explain(run, qrels, "77", EvaluationSettings(MEASURES))
    assert "did you mean 7?" in str(caught.value.hint)
