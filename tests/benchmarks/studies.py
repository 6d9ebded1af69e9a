"""Shared by the studies of learning: slices of collections, training data, runs, tables."""

import random
import shutil
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from denserk.commands.retrieve import encode, index, search
from denserk.config.evaluation import EvaluationSettings
from denserk.config.formats import CorpusFormat, TopicsFormat
from denserk.io.corpus import read_passages, write_passages
from denserk.io.json_records import write_objects
from denserk.io.qrels import read_qrels_map
from denserk.io.runs import read_run_scores
from denserk.io.topics import read_queries, write_queries
from denserk.io.written_files import write_lines
from denserk.models.processor import has_bfloat16
from denserk.tasks.evaluate import evaluate

Judgments = dict[str, dict[str, int]]  # query -> passage -> grade
SETTINGS = "settings.json"  # in WORK: what its slices, training data and models are made with
QRELS = "qrels.txt"  # the judgments of the queries that are searched
TRAIN = "train.jsonl"  # in WORK: the training data
# passages searched in each collection: the judged ones, and others, drawn, up to so many
SLICE = 2000
DEPTH = 100
NO_SEED = 0  # in the names of runs of systems that are not trained: `bm25-0.trec`
SPARE = 10  # hits of a training query beyond its negatives: positives are among them
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


def beir_file(folder: Path, stem: str) -> str:
    """Return the corpus or the queries of a BEIR folder, plain or compressed."""
    files = sorted(folder.glob(f"{stem}.jsonl*"))
    if not files:
        sys.exit(f"error: {folder} has no {stem}.jsonl: a folder in BEIR layout is expected")
    return str(files[0])


def write_slice(source: Path, judged: set[str], target: Path) -> None:
    """Write the judged passages, and others, drawn, as many as the slice has room for."""
    passages = {passage.docid: passage for passage in read_passages(beir_file(source, "corpus"))}
    others = sorted(set(passages) - judged)
    drawn = random.Random(0).sample(others, min(len(others), max(0, SLICE - len(judged))))
    docids = judged.union(drawn)
    slice_passages = (passage for docid, passage in passages.items() if docid in docids)
    write_passages(target, slice_passages, CorpusFormat.BEIR)


def write_topics(source: Path, qids: set[str], target: Path) -> str:
    """Write chosen queries of a collection."""
    queries = (query for query in read_queries(beir_file(source, "queries")) if query.qid in qids)
    write_queries(target, queries, TopicsFormat.BEIR)
    return str(target)


# Slices and training data


def prepare(
    collections: Sequence[Collection],
    data: Path,
    work: Path,
    count: int,
    negatives: int,
    most_queries: int | None = None,
    training: Mapping[str, Any] | None = None,
) -> None:
    """Write slices with judged queries and BM25's runs, training data and its corpus.

    The training data are seeded draws of `count` queries of each training collection, each with its
    positives and BM25's best other passages. Of the judged queries, `most_queries` are drawn. What
    is there stays as it is. `training` are the options that all models in WORK are trained with.
    """
    keep_settings(
        work,
        {
            "collections": [[each.name, each.split, each.trained_on] for each in collections],
            "training_queries": count,
            "negatives": negatives,
            "queries": most_queries,
            "slice": SLICE,
            "training": training,
        },
    )
    for collection in collections:
        folder = write_searched_slice(collection, data, work, most_queries)
        bm25(
            str(folder / "corpus.jsonl"),
            str(folder / "topics.jsonl"),
            folder / f"bm25-{NO_SEED}.trec",
        )
    if not (work / TRAIN).exists():
        write_training_data(collections, data, work, count, negatives)


def keep_settings(work: Path, settings: Mapping[str, Any]) -> None:
    """Note in a folder what its files are made with; exit if that was something else.

    A folder of a version that noted nothing is taken to be of these settings.
    """
    file = work / SETTINGS
    text = orjson.dumps(settings, option=orjson.OPT_INDENT_2).decode()
    if not file.exists():
        write_lines(file, [f"{text}\n"])
    elif orjson.loads(file.read_bytes()) != orjson.loads(text):
        sys.exit(
            f"error: {work} was made with other settings: those in {file}\n"
            f"  expected {orjson.dumps(settings).decode()}\n"
            "  give another WORK"
        )


def write_searched_slice(
    collection: Collection, data: Path, work: Path, most_queries: int | None = None
) -> Path:
    """Write judged queries of a collection, their judgments and a slice of its passages.

    Return the folder. `most_queries` are drawn if more are judged. A file that is there stays: runs
    are of it.
    """
    source = data / collection.name
    folder = work / collection.name
    qrels = folder / QRELS
    topics = folder / "topics.jsonl"
    corpus = folder / "corpus.jsonl"
    if qrels.exists() and topics.exists() and corpus.exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    judged = read_qrels_map(str(source / "qrels" / f"{collection.split}.tsv"))
    if most_queries is not None and most_queries < len(judged):
        judged = draw_queries(judged, most_queries)
    if not qrels.exists():
        write_judgments(judged, qrels)
    if not topics.exists():
        write_topics(source, set(judged), topics)
    if not corpus.exists():
        write_slice(source, set().union(*judged.values()), corpus)
    return folder


def write_training_data(
    collections: Sequence[Collection], data: Path, work: Path, count: int, negatives: int
) -> None:
    """Copy the corpora of the training collections, then write the training data of all."""
    (work / "corpus").mkdir(parents=True, exist_ok=True)
    records: list[dict[str, Any]] = []
    for collection in collections:
        if not collection.trained_on:
            continue
        source = data / collection.name
        corpus = Path(beir_file(source, "corpus"))
        shutil.copyfile(corpus, work / "corpus" / corpus.name.replace("corpus", collection.name))
        records += training_records(source, work / collection.name, count, negatives)
    write_objects(work / TRAIN, records)


def draw_queries(judged: Judgments, count: int) -> Judgments:
    """Return the judgments of a seeded draw of queries, in the order of the draw."""
    drawn = random.Random(0).sample(sorted(judged), count)
    return {qid: judged[qid] for qid in drawn}


def write_judgments(judged: Judgments, target: Path) -> None:
    """Write judgments in TREC's format."""
    lines = []
    for qid, grades in judged.items():
        for docid, grade in grades.items():
            lines.append(f"{qid} 0 {docid} {grade}\n")
    write_lines(target, lines)


def qrels_of(collection: Collection, work: Path) -> Path:
    """Return the judgments of the queries that are searched."""
    return work / collection.name / QRELS


def training_records(
    source: Path, target: Path, count: int, negatives: int
) -> Iterator[dict[str, Any]]:
    """Yield `count` drawn queries of a collection with their positives and BM25's negatives."""
    judged = read_qrels_map(str(source / "qrels" / "train.tsv"))
    answerable = {qid: grades for qid, grades in judged.items() if max(grades.values()) > 0}
    drawn = draw_queries(answerable, count)
    topics = write_topics(source, set(drawn), target / "train.jsonl")
    run = target / "train.trec"
    bm25(beir_file(source, "corpus"), topics, run, negatives + SPARE)
    hits_by_query = read_run_scores(str(run))
    text_by_qid = {query.qid: query.text for query in read_queries(topics)}
    for qid, grades in drawn.items():
        unjudged_hits = [docid for docid in hits_by_query.get(qid, {}) if docid not in grades]
        yield {
            "query_id": qid,
            "query_text": text_by_qid[qid],
            "positive_document_ids": [docid for docid, grade in grades.items() if grade > 0],
            "negative_document_ids": unjudged_hits[:negatives],
        }


# Runs and tables


def bm25(corpus: str, topics: str, run: Path, hits: int = DEPTH) -> None:
    """Write the run of BM25 over title and text, unless it is there."""
    if not run.exists():
        folder = run.with_suffix(".index")
        index(corpus=corpus, type="bm25", output=folder, overwrite=True)
        search(index=folder, topics=topics, output=run, hits=hits)


def retrieve(
    model: str, name: str, collections: Sequence[Collection], work: Path, **options: Any
) -> None:
    """Write the runs of a model over the slices, unless they are there."""
    for collection in collections:
        folder = work / collection.name
        run = folder / f"{name}.trec"
        vectors = folder / f"{name}.vectors"
        if run.exists():
            continue
        encode(
            model=model,
            corpus=folder / "corpus.jsonl",
            output=vectors,
            overwrite=True,
            **options,
            **COMPUTE,
        )
        search(
            model=model,
            index=vectors,
            topics=folder / "topics.jsonl",
            output=run,
            hits=DEPTH,
            **options,
            **COMPUTE,
        )
        shutil.rmtree(vectors)


def runs_of(system: str, folder: Path) -> list[Path]:
    """Return the runs of a system in a collection's folder, by seed: `cls-1.trec`, `cls-2.trec`.

    Those of a system that is not trained have `NO_SEED`.
    """
    run_by_seed = {}
    for run in folder.glob(f"{system}-*.trec"):
        name, _, seed = run.stem.rpartition("-")
        if name == system and seed.isdigit():
            run_by_seed[int(seed)] = run
    return [run_by_seed[seed] for seed in sorted(run_by_seed)]


def print_table(systems: Sequence[str], collections: Sequence[Collection], work: Path) -> None:
    """Print systems by collections: mean and standard deviation over the seeds with runs."""
    for position, measure in enumerate(collections[0].measures):
        headers = [column_header(collection, position, measure) for collection in collections]
        print(f"\n| {measure} |", " | ".join(headers), "|")
        print("|" + "---|" * (1 + len(collections)))
        for system in systems:
            cells = [
                cell(system, collection.measures[position], collection, work)
                for collection in collections
            ]
            print("|", " | ".join([system, *cells]), "|")


def column_header(collection: Collection, position: int, measure: str) -> str:
    """Return a collection's name, with its measure where that is not the table's."""
    own_measure = collection.measures[position]
    if own_measure == measure:
        return collection.name
    return f"{collection.name}, {own_measure}"


def cell(system: str, measure: str, collection: Collection, work: Path) -> str:
    """Return mean and standard deviation of a measure over the seeds of a system."""
    runs = [str(run) for run in runs_of(system, work / collection.name)]
    if not runs:
        return ""
    qrels = str(qrels_of(collection, work))
    results = evaluate(runs, qrels, EvaluationSettings(measures=(measure,))).runs
    values = [result.summary[measure] for result in results]
    if len(values) == 1:
        return f"{values[0]:.3f}"
    return f"{statistics.mean(values):.3f} ± {statistics.stdev(values):.3f}"
