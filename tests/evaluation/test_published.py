import csv

import pytest

from denserk.config.benchmarks import Paper, benchmarks, find_benchmark, groups
from denserk.evaluation.benchmarks import figures, published_rows
from denserk.evaluation.results import published_measures

KNOWN = {**benchmarks(), **groups()}
NOT_RETRIEVAL = {"STS-b Test", "Wiki Section Test", "CoLA", "MRPC", "STS-B", "QQP"}
"""Data sets of the papers' other tables."""


@pytest.mark.parametrize("paper", Paper)
def test_every_figure_is_what_the_paper_prints(paper, specs):
    with (specs / "paper_tables" / f"{paper}.csv").open(newline="") as file:
        printed = list(csv.DictReader(file))
    kept = figures(paper)
    assert len(kept) == len(printed) > 100
    for figure, row in zip(kept, printed, strict=True):
        assert (figure.table, figure.system, figure.label, figure.metric, figure.value) == (
            *(row["row"], row["system"], row["dataset"], row["metric"], row["value"]),
        )
        if "6 or 8" not in figure.setting:
            assert figure.setting == row["setting"]


@pytest.mark.parametrize("paper", Paper)
def test_every_retrieval_figure_has_its_suite(paper):
    reported = {(f.label, f.metric, f.table, f.system, f.setting): f.value for f in figures(paper)}
    shown = sum(len(row.values) for name in KNOWN for row in published_rows(paper, name))
    measured = {metric for suite in benchmarks().values() for metric in suite.metrics}
    of_suites = [key for key in reported if key[1] in measured and key[0] not in NOT_RETRIEVAL]
    assert shown == len(of_suites)


@pytest.mark.parametrize("name", KNOWN)
def test_a_label_has_rows(name):
    for paper in Paper:
        assert bool(published_rows(paper, name)) == (paper in find_benchmark(name).labels)


def test_a_row_holds_its_values_by_measure():
    rows = published_rows(Paper.MASTER, "msmarco-titled-dev")
    bm25 = rows[0]
    assert (bm25.table, bm25.system, bm25.setting) == ("T2.1", "BM25", "as printed")
    assert bm25.values == {"RR@10": "0.185", "Success@50": "0.585", "Success@1000": "0.857"}
    assert published_measures(rows) == ["RR@10", "Success@50", "Success@1000"]


def test_the_same_numbers_are_not_shown_for_another_corpus():
    assert not published_rows(Paper.MASTER, "msmarco-dev")
    assert not published_rows(Paper.AGGRETRIEVER, "msmarco-titled-dev")


def test_means_of_groups():
    rows = published_rows(Paper.MASTER, "beir")
    assert rows
    assert {tuple(row.values) for row in rows} == {("nDCG@10",)}
