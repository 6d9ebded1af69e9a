import csv

import pytest

from denserk.config.benchmarks import Group, benchmarks, find_benchmark


def test_every_ir_datasets_name_exists():
    package = pytest.importorskip("ir_datasets")
    sources = [s for one in benchmarks().values() for s in (one.corpus.source, one.topics)]
    names = {source.name for source in sources if source.name is not None}
    known = {name.removeprefix("irds:") for name in names if name.startswith("irds:")}
    assert len(known) > 5
    for name in known:
        assert package.registry[name]


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
