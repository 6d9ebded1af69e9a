"""Section `heads`: how long a masked-LM head must be trained before Aggretriever gains by it.

[CLS], the mean of tokens and Aggretriever are fine-tuned alike from the same weights: those that
training starts from, and those after more and more steps of masked language modelling. What each
query scores stands in `heads.csv` beside the tables, for paired tests.
"""

import csv
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from denserk.api import Index, encode, evaluate, finetune, pretrain
from denserk.io.corpus import read_passages
from denserk.io.qrels import read_qrels_map
from denserk.io.topics import read_queries
from tests.gpu.measuring import Load
from tests.gpu.models import has_minilm, random_bert
from tests.gpu.real_training import measured, mined_examples, passage_length, precision
from tests.gpu.setup import Setup
from tests.gpu.texts import (
    PASSAGES,
    books_of,
    more_passages,
    passages_of,
    training_collection,
    write_corpus,
    write_judged_queries,
)
from tests.gpu.training_runs import NEVER, losses

OTHER = "squad"  # a folder below --data: a collection that models are not trained on
MEASURE = "nDCG@10"
REPRESENTATIONS = ("agg", "cls", "mean")
TABLE = "heads.csv"
COLUMNS = ("head_steps", "head_loss", "representation", "seed", "collection", "query", MEASURE)


@dataclass(frozen=True)
class Start:
    """Weights that fine-tuning starts from, and how long their head was trained."""

    steps: int
    model: str
    loss: float | None = None


@dataclass(frozen=True)
class Collection:
    """Paths of a collection that models are evaluated on."""

    name: str
    corpus: str
    topics: str
    qrels: str


def heads(setup: Setup) -> None:
    """Fine-tune every representation from every start, one seed after the other."""
    start = str(setup.minilm) if has_minilm(setup) else random_bert(setup, "minilm", dropout=0.1)
    collections = list(evaluated_collections(setup))
    first = collections[0]
    vectors = measured(setup, "start", start, first.corpus, (first.topics, first.qrels))
    mined = mined_examples(setup, vectors, first.corpus)
    starts = list(trained_starts(setup, start, first.corpus))
    table = setup.report.folder / TABLE
    table.parent.mkdir(parents=True, exist_ok=True)
    with table.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for seed in range(1, setup.choose(3, 1) + 1):
            for each in starts:
                for representation in REPRESENTATIONS:
                    name = f"{representation} after {each.steps:,} steps, seed {seed}"
                    with setup.report.attempt(name):
                        rows = fine_tuned_rows(
                            setup, each, representation, seed, mined, collections
                        )
                        writer.writerows(rows)
                        file.flush()


def trained_starts(setup: Setup, model: str, corpus: str) -> Iterator[Start]:
    """Yield the weights that training starts from, then those after masked language modelling."""
    yield Start(0, model)
    passages = [*read_passages(corpus), *books_of(setup)]
    passages += passages_of(setup, f"{PASSAGES}/corpus.jsonl.gz")
    passages += passages_of(setup, f"{OTHER}/corpus.jsonl.gz")
    text = write_corpus(setup, "text-of-heads", passages)
    for steps in setup.choose((400, 2500), (2,)):
        options: dict[str, Any] = {
            "batch_size": setup.choose(256, 8),
            "max_length": setup.choose(128, 32),
            "max_steps": steps,
            "lr": 4e-4,
            "warmup_ratio": 0.1,
            "logging_steps": setup.choose(50, 1),
            "save_steps": NEVER,
            "overwrite": True,
            **precision(setup),
        }
        began = time.perf_counter()
        with setup.report.attempt(f"{steps:,} steps"), Load(setup.device) as load:
            output = setup.work / f"head-{steps}"
            folder = pretrain("mlm", text, output, model=model, **options)
            loss = float(losses(folder)[-1])
            seconds = time.perf_counter() - began
            setup.report.measure(
                f"{steps:,} steps of masked language modelling",
                loss,
                "last loss",
                seconds=seconds,
                **load.details,
            )
            yield Start(steps, str(folder), loss)


def evaluated_collections(setup: Setup) -> Iterator[Collection]:
    """Yield the collection of training, then another one if it is there."""
    passages = [*training_collection(setup).passages, *more_passages(setup)]
    topics, qrels = write_judged_queries(setup, "dev", setup.choose(None, 10))
    yield Collection("training", write_corpus(setup, "collection", passages), topics, qrels)
    if setup.data is None or setup.rehearsal or not (setup.data / OTHER).is_dir():
        return
    folder = setup.data / OTHER
    judged = read_qrels_map(folder / "qrels" / "dev.tsv")
    queries = setup.work / "other-queries.tsv"
    lines = [
        f"{query.qid}\t{query.text}\n"
        for query in read_queries(str(folder / "queries.jsonl.gz"))
        if query.qid in judged
    ]
    queries.write_text("".join(lines))
    yield Collection(
        OTHER,
        str(folder / "corpus.jsonl.gz"),
        str(queries),
        str(folder / "qrels" / "dev.tsv"),
    )


def fine_tuned_rows(
    setup: Setup,
    start: Start,
    representation: str,
    seed: int,
    mined: str,
    collections: list[Collection],
) -> list[tuple[Any, ...]]:
    """Fine-tune, evaluate on each collection, and return a row for each query."""
    options: dict[str, Any] = {
        "representation": representation,
        "batch_size": setup.choose(64, 4),
        "group_size": 2,
        "max_steps": setup.choose(300, 2),
        "lr": 5e-5,
        "temperature": 1.0,
        "l2_norm": False,
        "seed": seed,
        "mask_false_negatives": True,
        "passage_max_length": passage_length(setup),
        "logging_steps": setup.choose(50, 1),
        "save_steps": NEVER,
        "overwrite": True,
        **precision(setup),
    }
    if representation == "agg" and start.loss is None:
        options["mlm_head"] = "none"
    began = time.perf_counter()
    folder = finetune(start.model, mined, setup.work / "tuned", **options)
    tuned = time.perf_counter() - began
    rows = []
    means = {}
    for collection in collections:
        values = values_of_queries(setup, folder, collection)
        means[collection.name] = sum(values.values()) / len(values)
        for query, value in values.items():
            what = (start.steps, start.loss, representation, seed, collection.name)
            rows.append((*what, query, value))
    name = f"{representation} after {start.steps:,} steps, seed {seed}"
    seconds = {"seconds": time.perf_counter() - began, "of_training": tuned}
    first, *others = means.items()
    setup.report.measure(name, first[1], MEASURE, **dict(others), **seconds)
    return rows


def values_of_queries(setup: Setup, model: Path, collection: Collection) -> dict[str, float]:
    """Encode, search and evaluate; return the measure of each query."""
    output = setup.work / "vectors-of-tuned"
    encode(
        model,
        output,
        corpus=collection.corpus,
        passage_max_length=passage_length(setup),
        workers=setup.choose(8, 1),
        overwrite=True,
        **precision(setup),
    )
    with Index.open(output, device=setup.device) as index:
        run = index.search(collection.topics, hits=100)
    found = evaluate(run, collection.qrels, MEASURE, details=True)
    return dict(found.per_query[MEASURE])
