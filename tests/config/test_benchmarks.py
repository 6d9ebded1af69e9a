import csv
from itertools import groupby

import ir_measures
import pytest

from denserk.commands.app import run
from denserk.config.benchmarks import (
    Group,
    Paper,
    benchmarks,
    find_benchmark,
    find_benchmarks,
    groups,
    groups_within,
    list_benchmarks,
)
from denserk.errors import UsageError


def names(*suites):
    return [suite.short for suite in find_benchmarks(suites)]


def test_names_are_told_apart():
    assert not benchmarks().keys() & groups().keys()
    shorts = [suite.short for suite in benchmarks().values()]
    assert len(set(shorts)) == len(shorts)


@pytest.mark.parametrize("suite", benchmarks().values(), ids=lambda suite: suite.name)
def test_every_suite_can_be_measured(suite):
    assert (suite.qrels is None) != (suite.answers is None)
    for name in (*suite.measures, *suite.metrics.values()):
        assert str(ir_measures.parse_measure(name)) == name
    for source in (suite.corpus.source, suite.topics, suite.qrels or suite.answers):
        assert source is not None
        assert source.paths
        assert source.name is None or source.name.startswith(("irds:", "beir:"))
    assert bool(suite.labels) <= bool(suite.metrics)


def test_every_ir_datasets_name_exists():
    package = pytest.importorskip("ir_datasets")
    sources = [s for suite in benchmarks().values() for s in (suite.corpus.source, suite.topics)]
    names = {source.name for source in sources if source.name is not None}
    known = {name.removeprefix("irds:") for name in names if name.startswith("irds:")}
    assert len(known) > 5
    for name in known:
        assert package.registry[name]


def test_a_corpus_of_one_name_is_one_corpus():
    by_name = groupby(
        sorted((suite.corpus for suite in benchmarks().values()), key=lambda corpus: corpus.name),
        key=lambda corpus: corpus.name,
    )
    assert all(len(set(map(repr, corpora))) == 1 for _, corpora in by_name)


@pytest.mark.parametrize(
    ("group", "members", "sets"),
    [
        ("beir", 18, 29),
        ("beir-15", 15, 26),
        ("beir-14", 14, 25),
        ("beir-small", 5, 5),
        ("beir/cqadupstack", 12, 12),
    ],
)
def test_the_means_of_beir(group, members, sets):
    found = find_benchmark(group)
    assert isinstance(found, Group)
    assert (len(found.members), len(find_benchmarks([group]))) == (members, sets)
    assert found.members.count("beir/cqadupstack") == (members > 12)


def test_what_the_means_leave_out():
    whole = set(names("beir"))
    assert whole - set(names("beir-15")) == {"signal1m", "arguana", "quora"}
    assert whole - set(names("beir-14")) == {"bioasq", "signal1m", "trec-news", "robust04"}
    assert all(s.corpus.source.fetched for s in find_benchmarks(["beir-14"]))
    assert not any(
        benchmarks()[f"beir/{name}"].corpus.source.fetched
        for name in ("bioasq", "signal1m", "trec-news", "robust04")
    )


def test_means_that_can_be_told_of_some_sets():
    assert [group.name for group in groups_within(["beir-14"])] == [
        "beir/cqadupstack",
        "beir-14",
        "beir-small",
    ]


@pytest.mark.parametrize("number", [14, 15, 18])
def test_a_papers_mean_is_the_mean_of_its_own_sets(number, specs):
    """The printed means follow from the printed rows: the groups hold the right sets."""
    group = find_benchmark("beir" if number == 18 else f"beir-{number}")
    assert isinstance(group, Group)
    (paper, label), *_ = group.labels.items()
    members = [find_benchmark(name).labels[paper] for name in group.members]
    with (specs / "paper_tables" / f"{paper}.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["metric"] == "nDCG@10"]
    table = {"aggretriever": "T11", "master": "T4", "mlr": "T5"}[paper]
    rows = [row for row in rows if row["row"].split(".")[0] == table]
    systems = {(row["row"], row["system"]) for row in rows if row["dataset"] == label}
    assert systems
    for system in systems:
        own = {r["dataset"]: float(r["value"]) for r in rows if (r["row"], r["system"]) == system}
        assert own[label] == pytest.approx(sum(own[m] for m in members) / number, abs=0.0011)


def test_official_and_titled_are_two():
    official, titled = benchmarks()["msmarco-dev"], benchmarks()["msmarco-titled-dev"]
    assert official.corpus.name != titled.corpus.name
    assert official.qrels == titled.qrels
    assert not official.labels.keys() & titled.labels.keys()


@pytest.mark.parametrize(
    ("suite", "paper", "metric", "measure"),
    [
        ("msmarco-dev", Paper.AGGRETRIEVER, "R@1K", "R@1000"),
        ("msmarco-dev", Paper.AGGRETRIEVER, "MAP", "AP"),
        ("msmarco-titled-dev", Paper.CONDENSER, "R@1K", "R@1000"),
        ("msmarco-titled-dev", Paper.MASTER, "R@50", "Success@50"),
        ("dl19", Paper.AGGRETRIEVER, "MAP", "AP(rel=2)"),
        ("dl20", Paper.AGGRETRIEVER, "R@1K", "R(rel=2)@1000"),
        ("nq-test", Paper.MASTER, "R@100", "Success@100"),
        ("msmarco-doc-dev", Paper.CONDENSER, "RR@100", "RR@100"),
        ("beir/nq", Paper.AGGRETRIEVER, "train_queries", None),
    ],
)
def test_what_the_papers_call_a_measure(suite, paper, metric, measure):
    assert benchmarks()[suite].measure_of(paper, metric) == measure


@pytest.mark.parametrize(
    ("name", "near"),
    [("dl91", "dl19"), ("scifact", "beir/scifact"), ("android", "beir/cqadupstack/android")],
)
def test_an_unknown_name_is_told_with_the_nearest(name, near):
    with pytest.raises(UsageError) as refused:
        find_benchmark(name)
    assert near in (refused.value.hint or "")


def test_beirs_own_names_are_taken():
    assert find_benchmark("beir:scifact") is benchmarks()["beir/scifact"]


def test_the_listing_has_every_suite_and_its_papers(capsys):
    assert run(["benchmark", "--list"]) == 0
    header, *lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert header == ["name", "title", "source", "measures", "papers"]
    assert [line[0] for line in lines] == [*benchmarks(), *groups()]
    by_name = {line[0]: line for line in lines}
    assert by_name["msmarco-titled-dev"][2:] == [
        "$DENSERK_CACHE/msmarco-titled/corpus.tsv + irds:msmarco-passage/dev/small",
        "RR@10 R@50 R@1000",
        "condenser, master, mlr",
    ]
    assert len(lines) == len(list_benchmarks())
