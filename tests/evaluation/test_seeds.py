"""Systems over seeds: means, spread, and tests over seeds and queries."""

import json
import math
from dataclasses import replace
from itertools import combinations, product

import numpy as np
import pytest

from denserk.commands.evaluate import evaluate
from denserk.config.evaluation import ComparisonSettings
from denserk.errors import UsageError
from denserk.evaluation.evaluator import Evaluator, over_seeds
from denserk.evaluation.measures import parse_measures
from denserk.evaluation.significance import seeds_p_value

QRELS = {f"q{n}": f"d{n}" for n in range(8)}


def write_run(path, ranks):
    """Write a run that ranks the relevant passage of each query at a rank, which gives RR."""
    with path.open("w") as out:
        for (qid, docid), rank in zip(QRELS.items(), ranks, strict=True):
            for irrelevant in range(1, rank):
                out.write(f"{qid} Q0 x{irrelevant} 1 {1 / irrelevant} t\n")
            out.write(f"{qid} Q0 {docid} 1 {1 / rank} t\n")
    return str(path)


@pytest.fixture
def qrels(tmp_path):
    path = tmp_path / "qrels.txt"
    path.write_text("".join(f"{qid} 0 {docid} 1\n" for qid, docid in QRELS.items()))
    return str(path)


def compare(files, capsys, **options):
    evaluate(files=files, seeds=True, measures=("RR@10",), format="json", **options)
    return json.loads(capsys.readouterr().out)


def test_mean_and_deviation_over_seeds(tmp_path, qrels, capsys):
    ranks_of_runs = np.array([[1, 2, 4, 1, 2, 5, 1, 1], [2, 2, 2, 1, 2, 5, 1, 1]])
    files = [
        write_run(tmp_path / "agg-0.trec", ranks_of_runs[0]),
        write_run(tmp_path / "agg-1.trec", ranks_of_runs[1]),
        write_run(tmp_path / "bm25.trec", [1, 1, 1, 1, 1, 1, 1, 1]),
    ]
    agg, bm25 = compare([*files, qrels], capsys)["runs"]
    means = (1 / ranks_of_runs).mean(1)
    assert agg["measures"]["RR@10"] == pytest.approx(np.mean(means))
    assert agg["deviation"]["RR@10"] == pytest.approx(np.std(means, ddof=1))
    assert agg["runs"] == ["agg-0", "agg-1"]
    assert (bm25["run"], bm25["deviation"]) == ("bm25", {})


def test_p_is_the_share_of_divisions_within_queries(tmp_path, qrels, capsys):
    ranks_of_runs = np.array(
        [
            [1, 1, 2, 1, 1, 3, 1, 1],
            [1, 2, 1, 1, 2, 1, 1, 1],
            [2, 1, 3, 2, 1, 3, 2, 2],
        ]
    )
    files = [
        write_run(tmp_path / "a-0.trec", ranks_of_runs[0]),
        write_run(tmp_path / "a-1.trec", ranks_of_runs[1]),
        write_run(tmp_path / "b.trec", ranks_of_runs[2]),
    ]
    comparison = compare([*files, qrels], capsys, baseline="b")["comparison"]
    difference = comparison["runs"]["a"]["RR@10"]

    differences_of_queries = [differences_of_divisions(1 / ranks) for ranks in ranks_of_runs.T]
    observed_sum = sum(differences[0] for differences in differences_of_queries)
    assert difference["mean"] == pytest.approx(observed_sum / 8)
    sums = [sum(differences) for differences in product(*differences_of_queries)]
    exact_p = np.mean(np.abs(sums) >= abs(observed_sum) - 1e-9)
    assert difference["p"] == pytest.approx(exact_p, abs=0.005)


def differences_of_divisions(values):
    """The difference of means for each way to choose the two runs of `a`; the first is theirs."""
    differences = []
    for division in combinations(range(3), 2):
        (value_of_b,) = np.delete(values, division)
        differences.append(values[list(division)].mean() - value_of_b)
    return differences


def test_a_difference_within_the_spread_is_not_marked(tmp_path, qrels, capsys):
    low = [3, 3, 3, 3, 3, 3, 3, 3]
    middle = [2, 2, 2, 2, 2, 2, 2, 3]
    high = [1, 1, 1, 1, 1, 1, 1, 1]
    files = [
        write_run(tmp_path / "base.trec", middle),
        write_run(tmp_path / "firm-1.trec", high),
        write_run(tmp_path / "firm-2.trec", high),
        write_run(tmp_path / "wide-1.trec", low),
        write_run(tmp_path / "wide-2.trec", high),
        qrels,
    ]
    options = {
        "seeds": True,
        "baseline": "base",
        "alpha": 0.2,
        "correction": "none",
        "measures": ("RR@10",),
    }
    evaluate(files=files, format="markdown", **options)
    rows = capsys.readouterr().out.splitlines()
    (firm_row,) = [row for row in rows if row.startswith("| firm |") and " ± " in row]
    (wide_row,) = [row for row in rows if row.startswith("| wide |") and " ± " in row]
    assert "†" in firm_row
    assert "†" not in wide_row

    evaluate(files=files, format="latex", **options)
    latex = capsys.readouterr().out
    assert "Values with $\\pm$ are means and standard deviations over seeds." in latex
    assert "(permutation of runs within queries, and beyond the spread over seeds; p $<$ 0.2; " in (
        latex
    )


def test_the_baseline_is_a_system(tmp_path, qrels):
    ranks = [1, 1, 1, 1, 1, 1, 1, 1]
    files = [write_run(tmp_path / "a-1.trec", ranks), write_run(tmp_path / "a-2.trec", ranks)]
    with pytest.raises(UsageError, match="the systems are a"):
        evaluate(files=[*files, qrels], seeds=True, baseline="b", measures=("RR@10",))


def test_a_system_has_what_is_missing_and_tied_in_any_of_its_runs(tmp_path, qrels, capsys):
    lines = ["q0 Q0 d0 1 1 t\n", "q0 Q0 x 2 1 t\n"]
    (tmp_path / "a-1.trec").write_text("".join([*lines, "q9 Q0 d 1 1 t\n"]))
    (tmp_path / "a-2.trec").write_text("".join([*lines, "q1 Q0 d1 1 1 t\n"]))
    files = [str(tmp_path / "a-1.trec"), str(tmp_path / "a-2.trec"), qrels]
    (system,) = compare(files, capsys)["runs"]
    assert system["missing"] == [f"q{n}" for n in range(1, 8)]
    assert system["unjudged"] == ["q9"]
    assert system["tied_lines"] == 2


def test_lines_have_the_deviation(tmp_path, qrels, capsys):
    files = [
        write_run(tmp_path / "a-1.trec", [1] * 8),
        write_run(tmp_path / "a-2.trec", [2] * 8),
        write_run(tmp_path / "b.trec", [2] * 8),
    ]
    evaluate(files=[*files, qrels], seeds=True, measures=("RR@10",), baseline="b", format="tsv")
    assert "a\tRR@10:deviation\t0.3536" in capsys.readouterr().out.splitlines()
    comparison = compare([*files, qrels], capsys, baseline="b")["comparison"]
    assert comparison["test"] == "permutation"


def test_an_undefined_value_has_no_p():
    (measure,) = parse_measures(["RR@10"]).measures
    evaluator = Evaluator([measure], {"q1": {"d": 1}, "q2": {"d": 1}})
    hits = {"q1": {"d": 1.0}, "q2": {"d": 1.0}}
    defined = evaluator.evaluate("base-1", hits)
    undefined = replace(defined, name="run-1", per_query={"RR@10": {"q1": 1.0, "q2": math.nan}})
    systems = over_seeds(evaluator.result([defined, undefined])).runs
    p = seeds_p_value(systems[1], systems[0], "RR@10", ComparisonSettings(permutations=50))
    assert math.isnan(p)
