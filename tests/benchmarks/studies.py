"""Shared by the studies of learning: slices of collections, training data, runs, tables."""

import random
import shutil
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from denserk.commands.retrieve import encode, index, search
from denserk.config.evaluation import EvaluationSettings
from denserk.config.formats import CorpusFormat, TopicsFormat
from denserk.io.corpus import read_passages, write_passages
from denserk.io.files import write_lines
from denserk.io.qrels import read_qrels_map
from denserk.io.runs import read_run_scores
from denserk.io.topics import read_queries, write_queries
from denserk.models.processor import has_bfloat16
from denserk.tasks.evaluate import evaluate

Judgments = dict[str, dict[str, int]]  # query -> passage -> grade
DRAWN_QRELS = "qrels.txt"  # the judgments of the queries that are searched, if they were drawn
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
    docids = judged.union(drawn)
    slice_passages = (passage for docid, passage in passages.items() if docid in docids)
    write_passages(target, slice_passages, CorpusFormat.BEIR)


def write_topics(source: Path, qids: set[str], target: Path) -> str:
    """Write chosen queries of a collection."""
    queries = (query for query in read_queries(only(source, "queries")) if query.qid in qids)
    write_queries(target, queries, TopicsFormat.BEIR)
    return str(target)


def bm25(corpus: str, topics: str, run: Path, hits: int) -> None:
    """Write the run of BM25 over title and text."""
    if not run.exists():
        folder = run.with_suffix(".index")
        index(corpus=corpus, type="bm25", output=folder, overwrite=True)
        search(index=folder, topics=topics, output=run, hits=hits)


def prepare(
    collections: Sequence[Collection],
    data: Path,
    work: Path,
    count: int,
    negatives: int,
    most_queries: int | None = None,
) -> None:
    """Write slices with judged queries and BM25's runs, training data and its corpus.

    The training data are seeded draws of `count` queries of each training collection, each with its
    positives and BM25's best other passages. Of the judged queries, `most_queries` are drawn.
    """
    lines = []
    (work / "corpus").mkdir(parents=True, exist_ok=True)
    for collection in collections:
        source, target = data / collection.name, work / collection.name
        target.mkdir(parents=True, exist_ok=True)
        judged = read_qrels_map(str(source / "qrels" / f"{collection.split}.tsv"))
        if most_queries is not None and most_queries < len(judged):
            judged = draw_queries(judged, most_queries)
            write_judgments(judged, target / DRAWN_QRELS)
        topics = write_topics(source, set(judged), target / "topics.jsonl")
        write_slice(source, set().union(*judged.values()), target / "corpus.jsonl")
        bm25(str(target / "corpus.jsonl"), topics, target / "bm25-0.trec", DEPTH)
        if not collection.trained_on:
            continue
        for record in training_records(source, target, count, negatives):
            lines.append(orjson.dumps(record) + b"\n")
        file = Path(only(source, "corpus"))
        shutil.copyfile(file, work / "corpus" / file.name.replace("corpus", collection.name))
    (work / "train.jsonl").write_bytes(b"".join(lines))


def draw_queries(judged: Judgments, count: int) -> Judgments:
    """Return the judgments of a seeded draw of queries."""
    drawn = random.Random(0).sample(sorted(judged), count)
    return {qid: judged[qid] for qid in drawn}


def write_judgments(judged: Judgments, target: Path) -> None:
    """Write judgments in TREC's format."""
    lines = []
    for qid, grades in judged.items():
        for docid, grade in grades.items():
            lines.append(f"{qid} 0 {docid} {grade}\n")
    write_lines(target, lines)


def qrels_of(collection: Collection, data: Path, work: Path) -> Path:
    """Return the judgments of the queries that are searched: all of the split, or those drawn."""
    drawn = work / collection.name / DRAWN_QRELS
    if drawn.exists():
        return drawn
    return data / collection.name / "qrels" / f"{collection.split}.tsv"


def training_records(
    source: Path, target: Path, count: int, negatives: int
) -> Iterator[dict[str, Any]]:
    """Yield `count` drawn queries of a collection with their positives and BM25's negatives."""
    judged = read_qrels_map(str(source / "qrels" / "train.tsv"))
    qids = random.Random(0).sample(sorted(judged), count)
    topics = write_topics(source, set(qids), target / "train.jsonl")
    bm25(only(source, "corpus"), topics, target / "train.trec", negatives + 10)
    hits_by_query = read_run_scores(str(target / "train.trec"))
    text_by_qid = {query.qid: query.text for query in read_queries(topics)}
    for qid in qids:
        grades = judged[qid]
        unjudged_hits = [docid for docid in hits_by_query.get(qid, {}) if docid not in grades]
        yield {
            "query_id": qid,
            "query_text": text_by_qid[qid],
            "positive_document_ids": [docid for docid, grade in grades.items() if grade > 0],
            "negative_document_ids": unjudged_hits[:negatives],
        }


def retrieve(
    model: str, name: str, collections: Sequence[Collection], work: Path, **options: Any
) -> None:
    """Write the runs of a model over the slices, unless they are there."""
    for collection in collections:
        folder = work / collection.name
        run = folder / f"{name}.trec"
        vectors = folder / f"{name}.vectors"
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
    for position, measure in enumerate(collections[0].measures):
        print(f"\n| {measure} |", " | ".join(collection.name for collection in collections), "|")
        print("|" + "---|" * (1 + len(collections)))
        for system in systems:
            cells = [cell(system, position, collection, data, work) for collection in collections]
            print("|", " | ".join([system, *cells]), "|")


def cell(system: str, position: int, collection: Collection, data: Path, work: Path) -> str:
    """Return mean and standard deviation of a collection's measure over the seeds of a system."""
    measure = collection.measures[position]
    runs = sorted(map(str, (work / collection.name).glob(f"{system}-[0-9].trec")))
    if not runs:
        return ""
    qrels = str(qrels_of(collection, data, work))
    results = evaluate(runs, qrels, EvaluationSettings(measures=(measure,))).runs
    values = [result.summary[measure] for result in results]
    if len(values) == 1:
        return f"{values[0]:.3f}"
    return f"{statistics.mean(values):.3f} ± {statistics.stdev(values):.3f}"
