"""Systems over seeds: means, spread, and tests over seeds and queries."""

import json
from itertools import combinations, product

import numpy as np
import pytest

from denserk.commands.evaluate import evaluate
from denserk.errors import UsageError

QRELS = {f"q{n}": f"d{n}" for n in range(8)}


def write_run(path, ranks):
    """Write a run that ranks the relevant passage of each query at a rank, which gives RR."""
    with path.open("w") as out:
        for (qid, docid), rank in zip(QRELS.items(), ranks, strict=True):
            for place in range(1, rank + 1):
                name = docid if place == rank else f"x{place}"
                out.write(f"{qid} Q0 {name} {place} {1 / place} t\n")
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
    ranks = [1, 2, 4, 1, 2, 5, 1, 1], [2, 2, 2, 1, 2, 5, 1, 1]
    files = [write_run(tmp_path / f"agg-{n}.trec", r) for n, r in enumerate(ranks)]
    files += [write_run(tmp_path / "bm25.trec", [1] * 8)]
    agg, bm25 = compare([*files, qrels], capsys)["runs"]
    means = [np.mean(1 / np.array(r)) for r in ranks]
    assert agg["measures"]["RR@10"] == pytest.approx(np.mean(means))
    assert agg["deviation"]["RR@10"] == pytest.approx(np.std(means, ddof=1))
    assert agg["runs"] == ["agg-0", "agg-1"]
    assert (bm25["run"], bm25["deviation"]) == ("bm25", {})


def test_p_is_the_share_of_divisions_within_queries(tmp_path, qrels, capsys):
    a = [[1, 1, 2, 1, 1, 3, 1, 1], [1, 2, 1, 1, 2, 1, 1, 1]]
    b = [[2, 1, 3, 2, 1, 3, 2, 2]]
    files = [write_run(tmp_path / f"a-{n}.trec", r) for n, r in enumerate(a)]
    files += [write_run(tmp_path / "b.trec", b[0])]
    found = compare([*files, qrels], capsys, baseline="b")["comparison"]["runs"]["a"]["RR@10"]
    values = 1 / np.array([*a, *b])  # (runs, queries)
    apart = [
        [q[list(c)].mean() - np.delete(q, c).mean() for c in combinations(range(3), 2)]
        for q in values.T
    ]
    sums = np.array([sum(chosen) for chosen in product(*apart)])
    observed = sum(each[0] for each in apart)
    assert found["mean"] == pytest.approx(observed / 8)
    exact = np.mean(np.abs(sums) >= abs(observed) - 1e-9)
    assert found["p"] == pytest.approx(exact, abs=0.005)


def test_a_difference_within_the_spread_is_not_marked(tmp_path, qrels, capsys):
    low, high = [3] * 8, [1] * 8
    middle = [2, 2, 2, 2, 2, 2, 2, 3]
    write_run(tmp_path / "wide-1.trec", low)
    write_run(tmp_path / "wide-2.trec", high)
    write_run(tmp_path / "firm-1.trec", high)
    write_run(tmp_path / "firm-2.trec", high)
    runs = [str(path) for path in sorted(tmp_path.glob("*.trec"))]
    base = write_run(tmp_path / "base.trec", middle)
    options = {"measures": ("RR@10",), "format": "markdown", "correction": "none"}
    evaluate(files=[base, *runs, qrels], seeds=True, baseline="base", alpha=0.2, **options)
    rows = capsys.readouterr().out.splitlines()
    marked = {row.split(" | ")[0].strip("| "): "†" in row for row in rows if " ± " in row}
    assert marked == {"firm": True, "wide": False}
    options["format"] = "latex"
    evaluate(files=[base, *runs, qrels], seeds=True, baseline="base", alpha=0.2, **options)
    latex = capsys.readouterr().out
    assert "Values with $\\pm$ are means and standard deviations over seeds." in latex
    assert "(permutation of runs within queries, and beyond the spread over seeds; p $<$ 0.2; " in (
        latex
    )


def test_the_baseline_is_a_system(tmp_path, qrels):
    files = [write_run(tmp_path / f"a-{n}.trec", [1] * 8) for n in (1, 2)]
    with pytest.raises(UsageError, match="the systems are a"):
        evaluate(files=[*files, qrels], seeds=True, baseline="b", measures=("RR@10",))
