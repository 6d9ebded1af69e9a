"""Which of the papers' gains show at small scale: a tiny BERT pre-trained in five ways.

    python -m tests.benchmarks.pretraining DATA WORK [STAGE ...]

A BERT of 2 x 128 with 8,000 entries is trained from nothing as a masked language model. From it
go on, for as many steps of as many sequences, MLM, Condenser, coCondenser, RetroMAE and MASTER.
Each is then fine-tuned as `cls` and as `agg` on questions of nq-qed, and searches slices of nq-qed
(in domain) and of squad (zero-shot). DATA holds `text`, `squad` and `nq-qed`. WORK takes
everything; what is there is used again, so an interrupted study goes on. A STAGE is `texts`,
`start`, `writers`, `expansions`, a pre-training (`condenser-1`), a fine-tuning with its searches
(`condenser-cls-1`); what it needs must be there. Without one all are made, seed after
seed. Every call ends with the table so far.
"""

import random
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from denserk.config.encoding import ComputeSettings, Dtype
from denserk.config.formats import CorpusSettings
from denserk.config.generate import GenerateSettings
from denserk.config.pretraining import (
    Architecture,
    PretrainingObjective,
    PretrainSettings,
    resolve_run,
)
from denserk.config.training import (
    FinetuneRun,
    FinetuneSettings,
    ObjectiveSettings,
    OptimizerSettings,
    SamplingSettings,
)
from denserk.io.corpus import read_passages
from denserk.io.qrels import read_qrels_map
from denserk.io.topics import read_queries
from denserk.models.generation import generate
from denserk.training.finetune import finetune
from denserk.training.pretrain import pretrain
from tests.benchmarks.pretraining_texts import documents, sources, write_texts
from tests.benchmarks.pretraining_writers import train_asker, train_continuer
from tests.benchmarks.studies import (
    Collection,
    finished,
    only,
    prepare_slice,
    print_table,
    retrieve,
    share_corpora,
    training_lines,
)

SEEDS = (1, 2, 3)
COLLECTIONS = (Collection("nq-qed", "dev", trained_on=True), Collection("squad", "dev"))
RANDOM, START = "random", "start"
"""Controls: the random weights that all began with, and the shared start."""
OBJECTIVES = tuple(PretrainingObjective)
TUNED = (RANDOM, START, *OBJECTIVES)
VOCABULARY = 8000
BATCH = 32
"""Sequences of a step, in every pre-training; coCondenser's are spans of half as many documents."""
START_STEPS, START_RATE = 1000, 2e-3
STEPS, LENGTH, RATE = 300, 64, 5e-4
WRITER_STEPS = 400
QUERIES, CONTINUATION = 3, 48
"""What MASTER is given: queries of a passage, and tokens of its continuation."""
POOL = 7000
"""Queries to train on; other queries' passages are the negatives."""
TEXT = {"query_max_length": 32, "passage_max_length": 64}
FINETUNING = OptimizerSettings(batch_size=32, epochs=3, lr=2e-3, dtype=Dtype.BFLOAT16)
COMPUTE = ComputeSettings(device="cpu", dtype=Dtype.BFLOAT16)
DOT = {"l2_norm": False}
REPRESENTATIONS: dict[str, dict[str, Any]] = {
    "cls": {"representation": "cls", **DOT},
    "agg": {"representation": "agg", "cls_dim": 32, "agg_dim": 96, **DOT},
}
"""Both have as many dimensions as the model's states: 128, of which agg's lexical part has 96."""


def prepare_texts(data: Path, work: Path) -> None:
    """Passages to go on with; slices, judged queries and BM25's runs; training data."""
    write_texts(data, work, STEPS * BATCH)
    lines = []
    for collection in COLLECTIONS:
        prepare_slice(collection, data, work)
        if collection.trained_on:
            lines += training_lines(collection, data, work, POOL, 0)
    share_corpora(COLLECTIONS, data, work)
    (work / "train.jsonl").write_bytes(b"".join(lines))


def train_start(data: Path, work: Path) -> None:
    """A masked language model from nothing."""
    settings = PretrainSettings(
        objective=PretrainingObjective.MLM,
        architecture=Architecture.TINY,
        vocabulary_size=VOCABULARY,
        corpus=sources(data),
        output=str(work / START),
        device="cpu",
        overwrite=True,
    )
    _pretrain(settings, 1, LENGTH, START_RATE, START_STEPS, BATCH)


def go_on(objective: PretrainingObjective, seed: int, work: Path) -> None:
    """A further pre-training from the start."""
    spans = objective is PretrainingObjective.COCONDENSER
    master = objective is PretrainingObjective.MASTER
    settings = PretrainSettings(
        objective=objective,
        model=str(work / START),
        corpus=(str(work / ("documents.jsonl" if spans else "passages.jsonl")),),
        expansions=str(work / "expansions.jsonl") if master else None,
        output=str(work / f"{objective}-{seed}"),
        device="cpu",
        overwrite=True,
    )
    _pretrain(settings, seed, LENGTH, RATE, STEPS, BATCH // 2 if spans else BATCH)


def _pretrain(
    settings: PretrainSettings, seed: int, length: int, rate: float, steps: int, batch: int
) -> None:
    sizes = {"max_length": length, "seed": seed, "batch_size": batch, "max_steps": steps}
    more = {"lr": rate, "dtype": Dtype.BFLOAT16, "logging_steps": 50}
    result = pretrain(resolve_run(settings, CorpusSettings(), sizes | more))
    print(f"{settings.output}: loss {result.loss:.3f} after {result.steps} steps", flush=True)


def _pairs(data: Path) -> Iterator[tuple[str, str]]:
    """The passages and questions of the training splits."""
    for collection in COLLECTIONS:
        source = data / collection.name
        text = {p.docid: f"{p.title} {p.text}" for p in read_passages(only(source, "corpus"))}
        asked = {query.qid: query.text for query in read_queries(only(source, "queries"))}
        for qid, judged in read_qrels_map(str(source / "qrels" / "train.tsv")).items():
            yield from ((text[docid], asked[qid]) for docid in judged)


def train_writers(data: Path, work: Path) -> None:
    """The models that write expansions."""
    train_asker(list(_pairs(data)), WRITER_STEPS, work / "asker")
    books = [passage.text for document in documents(sources(data)) for passage in document]
    train_continuer(
        random.Random(0).sample(books, WRITER_STEPS * 32), WRITER_STEPS, work / "continuer"
    )


def generate_texts(work: Path) -> None:
    """Queries and continuations of the passages."""
    generate(
        GenerateSettings(
            corpus=str(work / "passages.jsonl"),
            queries_model=str(work / "asker"),
            continuation_model=str(work / "continuer"),
            output=str(work / "expansions.jsonl"),
            num_queries=QUERIES,
            query_max_tokens=20,
            continuation_max_tokens=CONTINUATION,
            passage_max_length=80,
            resume=True,
        ),
        CorpusSettings(),
        COMPUTE,
    )


def tune(name: str, work: Path) -> None:
    """A fine-tuned model, and its runs."""
    pretrained, representation, seed = name.split("-")
    controls = {RANDOM: f"{START}/start", START: START}
    start = controls.get(pretrained, f"{pretrained}-{seed}")
    output = work / "models" / name
    if not finished(output):
        result = finetune(
            FinetuneRun(
                finetune=FinetuneSettings(
                    model=str(work / start),
                    train_data=(str(work / "train.jsonl"),),
                    corpus=str(work / "corpus"),
                    output=str(output),
                    device="cpu",
                    overwrite=True,
                ),
                sampling=SamplingSettings(group_size=1, seed=int(seed)),
                objective=ObjectiveSettings(),
                optimizer=FINETUNING,
                representation=REPRESENTATIONS[representation],
                text=TEXT,
            )
        )
        print(f"{name}: loss {result.loss:.3f} after {result.steps} steps", flush=True)
    for collection in COLLECTIONS:
        run = work / collection.name / f"{name}.trec"
        if not run.exists():
            retrieve(str(output), {}, TEXT, COMPUTE, run)


def stages() -> Iterator[str]:
    """All stages, seed after seed."""
    yield from ("texts", "start", "writers", "expansions")
    for seed in SEEDS:
        yield from (f"{objective}-{seed}" for objective in OBJECTIVES)
        for representation in REPRESENTATIONS:
            yield from (f"{name}-{representation}-{seed}" for name in TUNED)


def make(stage: str, data: Path, work: Path) -> None:
    """One stage, unless what it makes is there."""
    single = {
        "texts": ("train.jsonl", lambda: prepare_texts(data, work)),
        "start": (f"{START}/model.safetensors", lambda: train_start(data, work)),
        "writers": ("continuer/config.json", lambda: train_writers(data, work)),
        "expansions": ("expansions.jsonl", lambda: generate_texts(work)),
    }
    parts = stage.split("-")
    if stage in single:
        made, work_to_do = single[stage]
        if not (work / made).exists():
            work_to_do()
    elif len(parts) == 3:
        tune(stage, work)
    elif not finished(work / stage):
        go_on(PretrainingObjective(parts[0]), int(parts[1]), work)


def main(data: Path, work: Path, names: Sequence[str]) -> None:
    """Makes the stages asked for, then prints the table."""
    work.mkdir(parents=True, exist_ok=True)
    for stage in names or stages():
        begun = time.perf_counter()
        make(stage, data, work)
        print(f"{stage}: {time.perf_counter() - begun:.0f} s", flush=True)
    systems = [f"{name}-{kind}" for kind in REPRESENTATIONS for name in TUNED]
    print_table(["bm25", *systems], COLLECTIONS, data, work)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
