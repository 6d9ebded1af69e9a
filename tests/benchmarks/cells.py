"""Finished cells of a study, kept in docs/: rows of what was measured, and the values by query.

A cell is a system and its seed, named SYSTEM-SEED: `agg-2`. Each of its collections is a row of
docs/STUDY.csv; its values by query are a column of docs/STUDY-queries.csv. So a study can be
continued, and its systems be compared, without the models and runs of the cells that are there.
"""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import ttest_ind

from denserk.config.evaluation import EvaluationSettings
from denserk.evaluation.significance import t_test
from denserk.evaluation.t_test_power import smallest_difference
from denserk.io.manifest import file_sha256
from denserk.io.written_files import write_rows
from denserk.tasks.evaluate import evaluate
from tests.benchmarks.studies import COMPUTE, NO_SEED, Collection, qrels_of

DOCS = Path(__file__).parents[2] / "docs"
MEASURE = "nDCG@10"
ALPHA = 0.05

Values = dict[tuple[str, str], dict[str, str]]  # collection, query -> name of a cell -> value


class FinishedCells:
    """The two tables of a study. Each row of the first has the columns that the study names.

    Columns that are filled here: `collection`, `nDCG@10`, `queries` (their number), `dtype`, and
    `run` (its SHA-256).
    """

    def __init__(self, study: str, columns: Sequence[str]) -> None:
        self._rows_file = DOCS / f"{study}.csv"
        self._values_file = DOCS / f"{study}-queries.csv"
        self._columns = columns

    def rows(self) -> list[dict[str, str]]:
        """Return the rows of all cells."""
        if not self._rows_file.exists():
            return []
        with self._rows_file.open(newline="") as file:
            return list(csv.DictReader(file))

    def values(self) -> Values:
        """Return the values by collection and query, each by the name of the cell."""
        values: Values = {}
        if self._values_file.exists():
            with self._values_file.open(newline="") as file:
                for row in csv.DictReader(file):
                    values[row.pop("collection"), row.pop("query")] = row
        return values

    def add(
        self,
        name: str,
        collections: Sequence[Collection],
        work: Path,
        fields: Mapping[str, Any],
    ) -> None:
        """Evaluate the runs of a cell and add it to both tables; `fields` are its other columns.

        The values by query come first: a cell that has rows is finished.
        """
        rows: list[dict[str, Any]] = []
        values: dict[tuple[str, str], float] = {}
        for collection in collections:
            run = work / collection.name / f"{name}.trec"
            settings = EvaluationSettings(measures=(MEASURE,))
            (result,) = evaluate([str(run)], str(qrels_of(collection, work)), settings).runs
            value_by_query = result.per_query[MEASURE]
            for query, value in value_by_query.items():
                values[collection.name, query] = value
            rows.append(
                {
                    **fields,
                    "collection": collection.name,
                    MEASURE: f"{result.summary[MEASURE]:.4f}",
                    "queries": len(value_by_query),
                    "dtype": COMPUTE["dtype"],
                    "run": file_sha256(run),
                }
            )
        self._add_values(name, values)
        self._add_rows(rows)

    def _add_rows(self, new_rows: Sequence[Mapping[str, Any]]) -> None:
        """Add rows to the first table."""
        lines = [[str(row[column]) for column in self._columns] for row in self.rows()]
        lines += [[str(row[column]) for column in self._columns] for row in new_rows]
        write_rows(self._rows_file, [self._columns, *lines])

    def _add_values(self, name: str, new_values: Mapping[tuple[str, str], float]) -> None:
        """Add the column of a cell to the second table."""
        values = self.values()
        for place, value in new_values.items():
            values.setdefault(place, {})[name] = f"{value:.4f}"
        names = names_of_cells(values)
        lines = []
        for (collection, query), value_by_cell in sorted(values.items()):
            texts = [value_by_cell.get(cell, "") for cell in names]
            lines.append([collection, query, *texts])
        write_rows(self._values_file, [["collection", "query", *names], *lines])


def names_of_cells(values: Values) -> list[str]:
    """Return the names of the cells that have values, in the order of their columns."""
    names: dict[str, None] = {}
    for value_by_cell in values.values():
        names |= dict.fromkeys(value_by_cell)
    return list(names)


def values_by_seed(
    values: Values, system: str, collection: Collection
) -> dict[int, NDArray[np.float64]]:
    """Return the values (Q,) of a system's finished seeds, for the queries of a collection."""
    places = [place for place in values if place[0] == collection.name]
    values_of_seeds = {}
    for name in names_of_cells(values):
        system_of_cell, _, seed = name.rpartition("-")
        if system_of_cell != system:
            continue
        texts = [values[place].get(name, "") for place in places]
        if texts and all(texts):
            values_of_seeds[int(seed)] = np.array(texts, dtype=np.float64)
    return values_of_seeds


def mean_text(values: Sequence[float]) -> str:
    """Return the mean and the standard deviation of a system's seeds; nothing if there are none.

    >>> mean_text([0.5, 0.7]), mean_text([0.5]), mean_text([])
    ('0.600 ± 0.141', '0.500', '')
    """
    if not values:
        return ""
    if len(values) == 1:
        return f"{values[0]:.3f}"
    return f"{mean(values):.3f} ± {stdev(values):.3f}"


def print_comparison_header() -> None:
    """Print the head of the table of which `print_comparison` prints rows."""
    print(f"\n| difference | collection | {MEASURE} | p | p over seeds | detectable |")
    print("|---|---|--:|--:|--:|--:|")


def print_comparison(
    values: Values, system: str, baseline: str, collections: Sequence[Collection]
) -> None:
    """Print how much a system differs from another one in each collection.

    Compared are the seeds that both have; a baseline that is not trained is that of each seed. `p`
    is of a paired t-test over queries, of means over these seeds; `p over seeds` of Welch's test of
    the seeds' means. The last column is the difference that the first test finds with a power of
    80 %.
    """
    for collection in collections:
        system_values = values_by_seed(values, system, collection)
        baseline_values = values_by_seed(values, baseline, collection)
        is_trained = NO_SEED not in baseline_values
        if not is_trained:
            baseline_values = dict.fromkeys(system_values, baseline_values[NO_SEED])
        seeds = sorted(system_values.keys() & baseline_values.keys())
        if not seeds:
            continue
        table = np.array([system_values[seed] for seed in seeds])  # (seeds, queries)
        baseline_table = np.array([baseline_values[seed] for seed in seeds])
        differences = table.mean(0) - baseline_table.mean(0)
        p_over_seeds = ""
        if is_trained and len(seeds) > 1:
            test = ttest_ind(table.mean(1), baseline_table.mean(1), equal_var=False)
            p_over_seeds = f"{test.pvalue:.2g}"
        deviation = float(differences.std(ddof=1))
        detectable = smallest_difference(deviation, len(differences), ALPHA)
        print(
            f"| `{system}` - `{baseline}` | {collection.name} | {differences.mean():+.3f} "
            f"| {t_test(differences).pvalue:.2g} | {p_over_seeds} | {detectable:.3f} |"
        )
