"""What the queries of a comparison can show, and randomised Tukey HSD in `eval`."""

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

import denserk
from denserk.commands.app import run as run_command
from denserk.config.evaluation import (
    ComparisonSettings,
    Correction,
    OutputFormat,
    PairedTest,
    ReportSettings,
)
from denserk.errors import UsageError
from denserk.evaluation.evaluator import Evaluator
from denserk.evaluation.measures import parse_measures
from denserk.evaluation.significance import compare
from denserk.evaluation.t_test_power import needed_queries, smallest_difference
from denserk.evaluation.tables import render
from denserk.evaluation.tukey import permuted_ranges

MEASURES = parse_measures(["RR@10", "P@1"]).measures
NAMES = ("base", "near", "far")


def per_query_values(query_count=40, seed=1):
    """Values of three runs: `near` is a little better than `base`, `far` is much better."""
    random = np.random.default_rng(seed)
    base = random.random(query_count)
    values = {
        "base": base,
        "near": base + random.normal(0.02, 0.2, query_count),
        "far": base + random.normal(0.4, 0.2, query_count),
    }
    runs = {}
    for name, row in values.items():
        by_query = {f"q{number}": float(value) for number, value in enumerate(row)}
        runs[name] = {"RR@10": by_query, "P@1": by_query}
    return runs


def compared(runs, baseline="base", **settings):
    return compare(runs, MEASURES, baseline, ComparisonSettings(**settings))


def sample_of(runs, run, baseline="base", measure="RR@10"):
    return np.array(
        [value - runs[baseline][measure][qid] for qid, value in runs[run][measure].items()]
    )


@pytest.mark.parametrize(
    ("correction", "level"),
    [(Correction.HOLM, 0.05 / 4), (Correction.BONFERRONI, 0.05 / 4), (Correction.NONE, 0.05)],
)
def test_power_is_that_at_the_level_of_the_first_step(correction, level):
    runs = per_query_values()
    differences = compared(runs, correction=correction).differences
    sample = sample_of(runs, "near")
    deviation = sample.std(ddof=1)
    near = differences["near"]["RR@10"]
    assert near.level == pytest.approx(level)
    assert near.detectable == pytest.approx(smallest_difference(deviation, 40, level))
    assert near.needed_queries == needed_queries(sample.mean(), deviation, level)
    assert near.needed_queries > 40
    assert differences["far"]["RR@10"].needed_queries is None  # it is shown already


def table_of(*runs, grades=None, format=OutputFormat.TABLE, **settings):
    """A table of runs, {query id: rank of the relevant passage}, compared with the first one."""
    evaluator = Evaluator(parse_measures(["RR@10"]).measures, {qid: {"a": 1} for qid in runs[0]})
    results = []
    for number, ranks in enumerate(runs):
        hits = {}
        for qid, rank in ranks.items():
            docids = [f"x{position}" for position in range(1, rank)]
            hits[qid] = {docid: -float(place) for place, docid in enumerate([*docids, "a"])}
        results.append(evaluator.evaluate(f"run{number}", hits))
    values = {result.name: result.per_query for result in results}
    result = evaluator.result(results)
    comparison = compare(values, result.measures, "run0", ComparisonSettings(**settings))
    return render(replace(result, comparison=comparison), ReportSettings(), format)


def ranks(*values):
    return {f"q{number}": rank for number, rank in enumerate(values)}


def test_an_undecided_difference_has_the_queries_that_would_decide():
    table = table_of(ranks(1, 2, 3, 1, 2, 4, 1, 2), ranks(1, 1, 3, 2, 1, 4, 1, 1))
    line = next(line for line in table.splitlines() if "more queries would show" in line)
    sample = np.array([0, 0.5, 0, -0.5, 0.5, 0, 0, 0.5])
    more_queries = needed_queries(sample.mean(), sample.std(ddof=1), 0.05) - 8
    assert line.split() == f"run1 RR@10 about {more_queries} more queries would show 0.12".split()
    assert "t test at 0.05)" in table
    markdown = table_of(ranks(1, 2, 3, 1), ranks(1, 1, 3, 2), format=OutputFormat.MARKDOWN)
    assert "| run | measure | undecided |" in markdown


def test_a_shown_difference_has_no_verdict():
    table = table_of(ranks(*[2] * 10, 3), ranks(*[1] * 10, 1))
    assert "detectable" in table
    assert "undecided" not in table


@pytest.mark.parametrize(
    ("baseline_ranks", "run_ranks", "settings", "verdict"),
    [
        ((1, 2, 3), (1, 2, 3), {}, "no query has a difference"),
        ((1,), (2,), {}, "fewer than two queries cannot be tested"),
        ((1, 2, 1, 2), (2, 1, 2, 1), {}, "or more would probably have been seen"),
        (
            (2, 2, 2),
            (1, 1, 1),
            {"test": PairedTest.RANDOMISATION},
            "too few queries or permutations",
        ),
        (
            (10, 10, 9),
            (1, 1, 1),
            {"test": PairedTest.RANDOMISATION},
            "too few queries or permutations for this test",
        ),
    ],
)
def test_verdicts_without_a_number(baseline_ranks, run_ranks, settings, verdict):
    table = table_of(ranks(*baseline_ranks), ranks(*run_ranks), **settings)
    assert verdict in table


def test_lines_and_json_have_power():
    runs = ranks(1, 2, 3, 1, 2, 4, 1, 2), ranks(1, 1, 3, 2, 1, 4, 1, 1)
    lines = table_of(*runs, format=OutputFormat.TSV).splitlines()
    comparison = json.loads(table_of(*runs, format=OutputFormat.JSON))["comparison"]
    difference = comparison["runs"]["run1"]["RR@10"]
    assert f"run1\tRR@10:needed_queries\t{difference['needed_queries']}" in lines
    assert f"run1\tRR@10:detectable\t{difference['detectable']:.4f}" in lines
    assert comparison["power"] == 0.8
    unknown = json.loads(table_of(ranks(1), ranks(2), format=OutputFormat.JSON))["comparison"]
    assert unknown["runs"]["run1"]["RR@10"]["detectable"] is None


def test_tests_over_seeds_have_no_power():
    runs = per_query_values()
    seeds = tuple(SimpleNamespace(per_query=runs[name]) for name in ("near", "far"))
    systems = {
        "base": SimpleNamespace(name="base", seeds=seeds[:1], spread={}),
        "near": SimpleNamespace(name="near", seeds=seeds, spread={}),
    }
    settings = ComparisonSettings(seeds=True, permutations=100)
    of_systems = {name: runs[name] for name in systems}
    comparison = compare(of_systems, MEASURES, "base", settings, systems)  # type: ignore[arg-type]
    difference = comparison.differences["near"]["RR@10"]
    assert math.isnan(difference.detectable)
    assert difference.needed_queries is None


def test_tukey_is_over_all_runs_and_bonferroni_over_measures():
    runs = per_query_values()
    settings = {"correction": Correction.TUKEY, "permutations": 2000}
    difference = compared(runs, **settings).differences["near"]["RR@10"]
    rows = np.array([list(runs[name]["RR@10"].values()) for name in NAMES])
    ranges = permuted_ranges(rows, 2000, ComparisonSettings().test_seed)
    sample = sample_of(runs, "near")
    share = ((ranges >= abs(sample.mean())).sum() + 1) / 2001
    assert difference.corrected == pytest.approx(min(1, 2 * share))
    assert difference.p == pytest.approx(stats.ttest_1samp(sample, 0).pvalue)
    half_width = (difference.high - difference.low) / 2
    assert half_width == pytest.approx(np.quantile(ranges, 1 - 0.05 / 2), rel=0.05)


def test_the_interval_of_tukey_leaves_out_0_exactly_where_p_is_below_the_level():
    runs = per_query_values()
    outcomes = set()
    for alpha in (0.002, 0.05, 0.3, 0.9):
        for baseline in NAMES:
            comparison = compared(
                runs, baseline, correction=Correction.TUKEY, permutations=500, alpha=alpha
            )
            for differences in comparison.differences.values():
                for difference in differences.values():
                    excludes_0 = difference.low > 0 or difference.high < 0
                    assert excludes_0 == (difference.corrected < alpha)
                    outcomes.add(excludes_0)
    assert outcomes == {True, False}


def test_tukey_compares_on_the_queries_of_all_runs():
    runs = per_query_values()
    del runs["far"]["RR@10"]["q0"]
    comparison = compared(runs, correction=Correction.TUKEY, permutations=100)
    assert comparison.differences["near"]["RR@10"].query_count == 39
    assert comparison.differences["near"]["P@1"].query_count == 39  # the same mapping
    assert compared(runs).differences["near"]["RR@10"].query_count == 40


@pytest.mark.parametrize("query_count", [0, 1])
def test_tukey_of_one_query_tests_nothing(query_count):
    runs = per_query_values(query_count)
    difference = compared(runs, correction=Correction.TUKEY).differences["near"]["RR@10"]
    assert math.isnan(difference.corrected)


def test_too_few_permutations_show_nothing():
    runs = per_query_values()
    comparison = compared(runs, correction=Correction.TUKEY, permutations=10)
    difference = comparison.differences["far"]["RR@10"]
    assert (difference.low, difference.high) == (-math.inf, math.inf)
    assert math.isnan(difference.detectable)


def test_tukey_is_named_in_the_note_and_the_caption():
    runs = ranks(1, 2, 3, 1, 2, 4), ranks(1, 1, 3, 2, 1, 4), ranks(2, 2, 2, 2, 2, 2)
    settings = {"correction": Correction.TUKEY, "permutations": 100}
    note = "randomised Tukey HSD of all runs"
    assert f"(p < 0.05; {note})" in table_of(*runs, **settings)
    assert f"({note}; p $<$ 0.05)" in table_of(*runs, format=OutputFormat.LATEX, **settings)


def test_tukey_needs_a_baseline_and_no_seeds(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "qrels.txt").write_text("q1 0 a 1\n")
    for name in ("x", "y"):
        (tmp_path / f"{name}.trec").write_text("q1 Q0 a 1 1.0 t\n")
    command = ["eval", "x.trec", "y.trec", "qrels.txt", "--correction", "tukey"]
    assert run_command(command) == 2
    assert "no baseline" in capsys.readouterr().err
    assert run_command([*command, "--baseline", "x.trec", "--seeds"]) == 2
    assert "exclude each other" in capsys.readouterr().err
    runs = {"x": "x.trec", "y": "y.trec"}
    with pytest.raises(UsageError, match="no baseline"):
        denserk.evaluate(runs, "qrels.txt", correction="tukey")


def test_python_has_power():
    qrels = {f"q{number}": {"a": 1} for number in range(6)}
    runs = {
        "x": {qid: {"a": 1.0, "b": 0.5} for qid in qrels},
        "y": {qid: {"a": 1.0 - number % 2, "b": 0.5} for number, qid in enumerate(qrels)},
    }
    details = denserk.evaluate(runs, qrels, "RR@10", baseline="x", details=True, correction="tukey")
    difference = details.comparison["y"]["RR@10"]
    assert difference.detectable > 0
    assert difference.needed_queries is not None
