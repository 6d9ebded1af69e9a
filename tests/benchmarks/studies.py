"""What the studies of learning share: slices of collections, training data, runs, tables."""

import random
import shutil
import statistics
from collections.abc import Collection as Some
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import orjson

from denserk.config.encoding import ComputeSettings, EncodeSettings
from denserk.config.evaluation import EvaluationSettings
from denserk.config.formats import CorpusFormat, CorpusSettings, TopicsFormat
from denserk.config.retrieval import (
    IndexPaths,
    IndexSettings,
    IndexType,
    SearchPaths,
    SearchSettings,
)
from denserk.evaluation.evaluator import evaluate
from denserk.index.build import build_index
from denserk.index.search import search
from denserk.io.corpus import read_passages, write_passages
from denserk.io.qrels import read_qrels_map
from denserk.io.runs import read_run_scores
from denserk.io.topics import read_queries, write_queries
from denserk.models.encode import encode

SLICE = 2000
"""Passages searched in each collection: the judged ones, and others, drawn, up to so many."""
DEPTH = 100


@dataclass(frozen=True)
class Collection:
    """A folder, the split that is judged, and the measures by grade."""

    name: str
    split: str
    trained_on: bool = False
    measures: tuple[str, str] = ("nDCG@10", "RR@10")


def finished(model: Path) -> bool:
    """Whether a training run has come to its end: the weights are what it writes there."""
    return (model / "model.safetensors").exists()


def only(folder: Path, stem: str) -> str:
    """The file of a BEIR folder, plain or compressed."""
    return str(next(folder.glob(f"{stem}.jsonl*")))


def write_slice(source: Path, judged: set[str], target: Path) -> str:
    """The judged passages of a collection, and as many others, drawn, as the slice has room for."""
    passages = {passage.docid: passage for passage in read_passages(only(source, "corpus"))}
    others = sorted(set(passages) - judged)
    drawn = random.Random(0).sample(others, min(len(others), max(0, SLICE - len(judged))))
    kept = judged.union(drawn)
    chosen = (passage for docid, passage in passages.items() if docid in kept)
    write_passages(target, chosen, CorpusFormat.BEIR)
    return str(target)


def write_topics(source: Path, qids: Some[str], target: Path) -> str:
    """Chosen queries of a collection, as a file of their own."""
    wanted = set(qids)
    found = (query for query in read_queries(only(source, "queries")) if query.qid in wanted)
    write_queries(target, found, TopicsFormat.BEIR)
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
            SearchPaths(index=(str(index),), topics=topics, output=str(run)),
            SearchSettings(hits=hits),
        )


def prepare_slice(collection: Collection, data: Path, work: Path) -> None:
    """A collection's slice and judged queries, and BM25's run of them."""
    source, target = data / collection.name, work / collection.name
    target.mkdir(parents=True, exist_ok=True)
    judged = read_qrels_map(str(source / "qrels" / f"{collection.split}.tsv"))
    topics = write_topics(source, judged, target / "topics.jsonl")
    known = {docid for of_query in judged.values() for docid in of_query}
    searched = write_slice(source, known, target / "corpus.jsonl")
    bm25(searched, topics, target / "bm25-0.trec", DEPTH)


def training_lines(
    collection: Collection, data: Path, work: Path, count: int, negatives: int
) -> list[bytes]:
    """A seeded draw of training queries, each with its positives and BM25's best other passages."""
    source, target = data / collection.name, work / collection.name
    judged = read_qrels_map(str(source / "qrels" / "train.tsv"))
    qids = random.Random(0).sample(sorted(judged), count)
    topics = write_topics(source, qids, target / "train.jsonl")
    bm25(only(source, "corpus"), topics, target / "train.trec", negatives + 10)
    found = read_run_scores(str(target / "train.trec"))
    text = {query.qid: query.text for query in read_queries(topics)}
    lines = []
    for qid in qids:
        others = (docid for docid in found.get(qid, {}) if docid not in judged[qid])
        record = {
            "query_id": qid,
            "query_text": text[qid],
            "positive_document_ids": [d for d, grade in judged[qid].items() if grade > 0],
            "negative_document_ids": list(islice(others, negatives)),
        }
        lines.append(orjson.dumps(record) + b"\n")
    return lines


def share_corpora(collections: Sequence[Collection], data: Path, work: Path) -> None:
    """The passages of the training collections in one folder, `corpus`."""
    (work / "corpus").mkdir(parents=True, exist_ok=True)
    for collection in collections:
        if collection.trained_on:
            file = Path(only(data / collection.name, "corpus"))
            shutil.copyfile(file, work / "corpus" / file.name.replace("corpus", collection.name))


def retrieve(
    model: str,
    representation: Mapping[str, Any],
    text: Mapping[str, Any],
    compute: ComputeSettings,
    run: Path,
) -> None:
    """The run of a model over a collection's slice; vectors and index are thrown away."""
    corpus = str(run.with_name("corpus.jsonl"))
    vectors, index = run.with_suffix(".vectors"), run.with_suffix(".index")
    encode(
        EncodeSettings(model=model, corpus=corpus, output=str(vectors), overwrite=True),
        CorpusSettings(),
        representation,
        text,
        compute,
    )
    build_index(IndexPaths(input=(str(vectors),), output=str(index), overwrite=True))
    topics = str(run.with_name("topics.jsonl"))
    paths = SearchPaths(index=(str(index),), topics=topics, model=model, output=str(run))
    search(paths, SearchSettings(hits=DEPTH), representation, text, compute)
    for folder in (vectors, index):
        shutil.rmtree(folder)


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


def print_table(
    systems: Sequence[str], collections: Sequence[Collection], data: Path, work: Path
) -> None:
    """A table a measure: systems by collections, those alone of which there are runs."""
    found = {(s, c.name): measured(c, s, data, work) for s in systems for c in collections}
    for place, measure in enumerate(collections[0].measures):
        print(f"\n| {measure} | seeds |", " | ".join(c.name for c in collections), "|")
        print("|" + "---|" * (2 + len(collections)))
        for system in systems:
            cells = [found[system, c.name] for c in collections]
            if any(cells):
                words = [told([each[place] for each in cell]) if cell else "" for cell in cells]
                print("|", " | ".join([system, str(max(map(len, cells))), *words]), "|")
