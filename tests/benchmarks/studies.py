"""Shared by the studies of learning: slices of collections, training data, runs, tables."""

import random
import shutil
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import orjson

from denserk.commands.retrieve import encode, index, search
from denserk.config.evaluation import EvaluationSettings
from denserk.config.formats import CorpusFormat, TopicsFormat
from denserk.io.corpus import read_passages, write_passages
from denserk.io.runs import read_run_scores
from denserk.io.topics import read_qrels_map, read_queries, write_queries
from denserk.models.processor import has_bfloat16
from denserk.tasks.evaluate import evaluate

# passages searched in each collection: the judged ones, and others, drawn, up to so many
SLICE = 2000
DEPTH = 100
COMPUTE = {"device": "cpu", "dtype": "bfloat16" if has_bfloat16() else "float32"}


@dataclass(frozen=True)
class Collection:
    """A folder in BEIR layout, the split that is judged, and the measures."""

    name: str
    split: str
    trained_on: bool = False
    measures: tuple[str, str] = ("nDCG@10", "RR@10")


def finished(model: Path) -> bool:
    """Return whether a training run is complete: it writes the weights at its end."""
    return (model / "model.safetensors").exists()


def only(folder: Path, stem: str) -> str:
    """Return the file of a BEIR folder, plain or compressed."""
    return str(next(folder.glob(f"{stem}.jsonl*")))


def write_slice(source: Path, judged: set[str], target: Path) -> None:
    """Write the judged passages, and others, drawn, as many as the slice has room for."""
    passages = {passage.docid: passage for passage in read_passages(only(source, "corpus"))}
    others = sorted(set(passages) - judged)
    drawn = random.Random(0).sample(others, min(len(others), max(0, SLICE - len(judged))))
    kept = judged.union(drawn)
    chosen = (passage for docid, passage in passages.items() if docid in kept)
    write_passages(target, chosen, CorpusFormat.BEIR)


def write_topics(source: Path, qids: set[str], target: Path) -> str:
    """Write chosen queries of a collection."""
    found = (query for query in read_queries(only(source, "queries")) if query.qid in qids)
    write_queries(target, found, TopicsFormat.BEIR)
    return str(target)


def bm25(corpus: str, topics: str, run: Path, hits: int) -> None:
    """Write the run of BM25 over title and text."""
    if not run.exists():
        folder = run.with_suffix(".index")
        index(corpus=corpus, type="bm25", output=folder, overwrite=True)
        search(index=folder, topics=topics, output=run, hits=hits)


def prepare(
    collections: Sequence[Collection], data: Path, work: Path, count: int, negatives: int
) -> None:
    """Write slices with judged queries and BM25's runs, training data and its corpus.

    The training data are seeded draws of `count` queries of each training collection, each with its
    positives and BM25's best other passages.
    """
    lines = []
    (work / "corpus").mkdir(parents=True, exist_ok=True)
    for collection in collections:
        source, target = data / collection.name, work / collection.name
        target.mkdir(parents=True, exist_ok=True)
        judged = read_qrels_map(str(source / "qrels" / f"{collection.split}.tsv"))
        topics = write_topics(source, set(judged), target / "topics.jsonl")
        write_slice(source, set().union(*judged.values()), target / "corpus.jsonl")
        bm25(str(target / "corpus.jsonl"), topics, target / "bm25-0.trec", DEPTH)
        if not collection.trained_on:
            continue
        judged = read_qrels_map(str(source / "qrels" / "train.tsv"))
        qids = random.Random(0).sample(sorted(judged), count)
        topics = write_topics(source, set(qids), target / "train.jsonl")
        bm25(only(source, "corpus"), topics, target / "train.trec", negatives + 10)
        found = read_run_scores(str(target / "train.trec"))
        text = {query.qid: query.text for query in read_queries(topics)}
        for qid in qids:
            others = (docid for docid in found.get(qid, {}) if docid not in judged[qid])
            record = {
                "query_id": qid,
                "query_text": text[qid],
                "positive_document_ids": [d for d, grade in judged[qid].items() if grade > 0],
                "negative_document_ids": list(islice(others, negatives)),
            }
            lines.append(orjson.dumps(record) + b"\n")
        file = Path(only(source, "corpus"))
        shutil.copyfile(file, work / "corpus" / file.name.replace("corpus", collection.name))
    (work / "train.jsonl").write_bytes(b"".join(lines))


def retrieve(
    model: str, name: str, collections: Sequence[Collection], work: Path, **options: Any
) -> None:
    """Write the runs of a model over the slices, unless they are there."""
    for collection in collections:
        folder = work / collection.name
        run, vectors = folder / f"{name}.trec", folder / f"{name}.vectors"
        if not run.exists():
            options |= {"model": model, **COMPUTE}
            corpus = folder / "corpus.jsonl"
            encode(corpus=corpus, output=vectors, overwrite=True, **options)
            topics = folder / "topics.jsonl"
            search(index=vectors, topics=topics, output=run, hits=DEPTH, **options)
            shutil.rmtree(vectors)


def print_table(
    systems: Sequence[str], collections: Sequence[Collection], data: Path, work: Path
) -> None:
    """Print systems by collections: mean and standard deviation over the seeds with runs."""
    for place, measure in enumerate(collections[0].measures):
        print(f"\n| {measure} |", " | ".join(c.name for c in collections), "|")
        print("|" + "---|" * (1 + len(collections)))
        for system in systems:
            cells = []
            for collection in collections:
                runs = sorted(map(str, (work / collection.name).glob(f"{system}-[0-9].trec")))
                qrels = str(data / collection.name / "qrels" / f"{collection.split}.tsv")
                settings = EvaluationSettings(measures=collection.measures)
                found = evaluate(runs, qrels, settings).runs if runs else ()
                values = [list(result.summary.values())[place] for result in found]
                spread = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
                cells.append(f"{statistics.mean(values):.3f}{spread}" if values else "")
            print("|", " | ".join([system, *cells]), "|")
