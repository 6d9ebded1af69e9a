"""Tiny local copies of BEIR, MS MARCO, NanoBEIR, BRIGHT and MIRACL below $DENSERK_CACHE.

They hold the toy collection, in files with the names and fields of the published ones.
"""

import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.toy import PASSAGES, QRELS, QUERIES
from tests.support.training_examples import jsonl


def write_beir(cache: Path, name: str, *, split: str = "test", own_id: bool = False) -> Path:
    """A BEIR folder of the toy collection; with `own_id`, a passage with the id of a query."""
    folder = cache / "beir" / name
    (folder / "qrels").mkdir(parents=True)
    passages = dict(PASSAGES)
    if own_id:
        passages["q1"] = ("", QUERIES["q1"])
    corpus = ({"_id": d, "title": title, "text": text} for d, (title, text) in passages.items())
    jsonl(folder / "corpus.jsonl", corpus)
    queries = {**QUERIES, "unjudged": "the old dog"}
    jsonl(folder / "queries.jsonl", ({"_id": qid, "text": text} for qid, text in queries.items()))
    lines = [f"{q}\t{d}\t{r}\n" for q, judged in QRELS.items() for d, r in judged.items()]
    (folder / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(lines))
    return folder


def write_marco(cache: Path) -> None:
    """MS MARCO's official and titled passages, its dev queries and those of DL19."""
    for folder in ("msmarco", "msmarco-titled"):
        (cache / folder).mkdir(parents=True)
    with (cache / "msmarco" / "collection.tsv").open("w") as out:
        out.writelines(f"{docid}\t{text}\n" for docid, (_, text) in PASSAGES.items())
    with (cache / "msmarco-titled" / "corpus.tsv").open("w") as out:
        out.writelines(f"{d}\t{title or '-'}\t{text}\n" for d, (title, text) in PASSAGES.items())
    queries = "".join(f"{qid}\t{text}\n" for qid, text in QUERIES.items())
    judged = "".join(f"{q} 0 {d} {r}\n" for q, grades in QRELS.items() for d, r in grades.items())
    for name in ("queries.dev.small.tsv", "msmarco-test2019-queries.tsv"):
        (cache / "msmarco" / name).write_text(queries)
    for name in ("qrels.dev.small.tsv", "2019qrels-pass.txt"):
        (cache / "msmarco" / name).write_text(judged)


def write_parquet(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """One file of a dataset of the hub."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(list(rows)), path)


def write_nanobeir(cache: Path, repository: str) -> Path:
    """A repository of zeta-alpha-ai, such as NanoSciFact; titles are part of the texts."""
    folder = cache / "nanobeir" / repository
    passages = [{"_id": d, "text": f"{title} {text}"} for d, (title, text) in PASSAGES.items()]
    queries = [{"_id": qid, "text": text} for qid, text in QUERIES.items()]
    pairs = [(qid, docid) for qid, judged in QRELS.items() for docid in judged]
    qrels = [{"query-id": qid, "corpus-id": docid} for qid, docid in pairs]
    for part, rows in (("corpus", passages), ("queries", queries), ("qrels", qrels)):
        write_parquet(folder / part / "train-00000-of-00001.parquet", rows)
    return folder


def write_bright(cache: Path, domain: str, excluded: Mapping[str, Sequence[str]]) -> None:
    """The documents and examples of a domain of xlangai/BRIGHT, with passages to exclude."""
    name = f"{domain}-00000-of-00001.parquet"
    documents = [{"id": docid, "content": text} for docid, (_, text) in PASSAGES.items()]
    examples = [
        {
            "query": text,
            "reasoning": "",
            "id": qid,
            "excluded_ids": list(excluded.get(qid, ["N/A"])),
            "gold_ids_long": ["long"],
            "gold_ids": list(QRELS[qid]),
            "gold_answer": "",
        }
        for qid, text in QUERIES.items()
    ]
    write_parquet(cache / "bright" / "documents" / name, documents)
    write_parquet(cache / "bright" / "examples" / name, examples)


def write_packed(path: Path, records: Sequence[Mapping[str, Any]]) -> None:
    """JSON lines, packed by gzip."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt") as out:
        out.writelines(json.dumps(record) + "\n" for record in records)


def write_marco_v2(cache: Path, year: int, qrels: str) -> None:
    """MS MARCO v2 as its archive unpacks, all passages of one document, and a year's topics."""
    folder = cache / "msmarco-v2"
    records = [
        {"pid": docid, "passage": text, "spans": "(0,4)", "docid": "msmarco_doc_00_0"}
        for docid, (_, text) in PASSAGES.items()
    ]
    packed = folder / "msmarco_v2_passage"
    write_packed(packed / "msmarco_passage_00.gz", records[:4])
    write_packed(packed / "msmarco_passage_01.gz", records[4:])
    queries = "".join(f"{qid}\t{text}\n" for qid, text in QUERIES.items())
    (folder / f"{year}_queries.tsv").write_text(queries + "unjudged\tthe old dog\n")
    lines = [f"{q} 0 {d} {grade}\n" for q, judged in QRELS.items() for d, grade in judged.items()]
    (folder / qrels).write_text("".join(lines))


def write_miracl(cache: Path, language: str) -> None:
    """The corpus of a language, and its dev topics and judgments."""
    name = f"miracl-v1.0-{language}"
    folder = cache / "miracl"
    records = [
        {"docid": docid, "title": title, "text": text} for docid, (title, text) in PASSAGES.items()
    ]
    corpus = folder / f"miracl-corpus-v1.0-{language}"
    write_packed(corpus / "docs-0.jsonl.gz", records[:3])
    write_packed(corpus / "docs-1.jsonl.gz", records[3:])
    for part in ("topics", "qrels"):
        (folder / name / part).mkdir(parents=True)
    topics = "".join(f"{qid}\t{text}\n" for qid, text in QUERIES.items())
    (folder / name / "topics" / f"topics.{name}-dev.tsv").write_text(topics)
    lines = [f"{q}\tQ0\t{d}\t1\n" for q, judged in QRELS.items() for d in judged]
    (folder / name / "qrels" / f"qrels.{name}-dev.tsv").write_text("".join(lines))
