"""Tiny local copies of BEIR datasets and MS MARCO, in a folder that $DENSERK_CACHE names."""

from pathlib import Path

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
