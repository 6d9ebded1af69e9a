import csv

import pytest

from denserk.config.benchmarks import Group, benchmarks, find_benchmark


def test_every_ir_datasets_name_exists():
    ir_datasets = pytest.importorskip("ir_datasets")
    names = set()
    for benchmark in benchmarks().values():
        for source in (benchmark.corpus.source, benchmark.topics):
            if source.name is not None and source.name.startswith("irds:"):
                names.add(source.name.removeprefix("irds:"))
    assert len(names) > 5
    for name in names:
        assert ir_datasets.registry[name]


def values_by_system(path, table):
    """Read nDCG@10 from a table of a paper: (row, system) -> data set -> value."""
    values: dict[tuple[str, str], dict[str, float]] = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            table_of_row, _, _ = row["row"].partition(".")
            if row["metric"] == "nDCG@10" and table_of_row == table:
                values_of_system = values.setdefault((row["row"], row["system"]), {})
                values_of_system[row["dataset"]] = float(row["value"])
    return values


TABLES = {"aggretriever": "T11", "master": "T4", "mlr": "T5"}  # with means over BEIR


@pytest.mark.parametrize(("name", "count"), [("beir-14", 14), ("beir-15", 15), ("beir", 18)])
def test_a_papers_mean_is_the_mean_of_its_own_sets(name, count, specs):
    """The printed means follow from the printed rows: the groups hold the right sets."""
    group = find_benchmark(name)
    assert isinstance(group, Group)
    paper, label = next(iter(group.labels.items()))
    labels_of_members = [find_benchmark(member).labels[paper] for member in group.members]
    assert len(labels_of_members) == count
    systems = values_by_system(specs / "paper_tables" / f"{paper}.csv", TABLES[paper])
    systems_with_mean = [values for values in systems.values() if label in values]
    assert systems_with_mean
    for values in systems_with_mean:
        mean = sum(values[member] for member in labels_of_members) / count
        assert values[label] == pytest.approx(mean, abs=0.0011)
