"""Collections that the check computes with: those of a folder that is given, or made-up text."""

import json
import random
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path

from denserk.config.formats import CorpusFormat
from denserk.io.corpus import read_passages, write_passages
from denserk.io.qrels import read_qrels_map
from denserk.io.topics import read_queries
from denserk.records import Passage
from tests.gpu.setup import Setup

# Folders below --data, each of BEIR's layout
TRAINING = "nq-qed"  # has questions for training and for testing
PASSAGES = "marco-dl19"  # passages of MS MARCO, whose length speed is measured with
MORE_PASSAGES = "wiki-extra"
# A file below --data: more text for pre-training
BOOKS = "text/openstax.jsonl.gz"

SYLLABLES = tuple(map("".join, product("bdfgklmnprst", "aeiou")))


@dataclass(frozen=True)
class Collection:
    """Passages, queries by id, and the relevant passages of each judged query, by split."""

    passages: list[Passage]
    queries: dict[str, str]
    relevant: dict[str, dict[str, list[str]]]


@cache
def training_collection(setup: Setup) -> Collection:
    """Return the collection that models are trained and evaluated on."""
    if setup.data is not None and (setup.data / TRAINING).is_dir() and not setup.rehearsal:
        return read_collection(setup.data / TRAINING)
    return made_up_collection(setup.choose(3000, 120), seed=1)


@cache
def timed_passages(setup: Setup, count: int) -> list[Passage]:
    """Return so many passages of MS MARCO, repeated under other ids where there are fewer."""
    if setup.data is not None and (setup.data / PASSAGES).is_dir() and not setup.rehearsal:
        passages = list(read_passages(str(setup.data / PASSAGES / "corpus.jsonl.gz")))
    else:
        passages = made_up_collection(setup.choose(10_000, 100), seed=2).passages
    repeated = []
    for number in range(count):
        passage = passages[number % len(passages)]
        repeated.append(passage._replace(docid=f"{passage.docid}-{number // len(passages)}"))
    return repeated


def more_passages(setup: Setup) -> list[Passage]:
    """Return passages that make the training collection harder to search; may be none."""
    return passages_of(setup, f"{MORE_PASSAGES}/corpus.jsonl.gz")


def books_of(setup: Setup) -> list[Passage]:
    """Return more text for pre-training; may be none."""
    return passages_of(setup, BOOKS)


def passages_of(setup: Setup, name: str) -> list[Passage]:
    """Return the passages of a file below --data; none if it is not there, or in a rehearsal."""
    if setup.data is None or setup.rehearsal or not (setup.data / name).is_file():
        return []
    return list(read_passages(str(setup.data / name)))


def read_collection(folder: Path) -> Collection:
    """Read a folder of BEIR's layout."""
    passages = list(read_passages(str(folder / "corpus.jsonl.gz")))
    queries = {query.qid: query.text for query in read_queries(str(folder / "queries.jsonl.gz"))}
    relevant = {}
    for path in sorted((folder / "qrels").glob("*.tsv")):
        judged = read_qrels_map(path)
        relevant[path.stem] = {
            qid: [docid for docid, grade in grades.items() if grade > 0]
            for qid, grades in judged.items()
        }
    return Collection(passages, queries, relevant)


def made_up_collection(count: int, seed: int) -> Collection:
    """Make passages of some 40 made-up words, frequent ones and rare ones.

    A query has a few rare words of its passage; each fourth passage is of the split `dev`, the
    others of `train`.
    """
    draw = random.Random(seed)
    words = made_up_words(2000, draw)
    weights = [1 / rank for rank in range(1, len(words) + 1)]
    rarity = {word: rank for rank, word in enumerate(words)}
    passages = []
    queries = {}
    relevant: dict[str, dict[str, list[str]]] = {"train": {}, "dev": {}}
    for number in range(count):
        docid = f"d{number}"
        text = draw.choices(words, weights, k=draw.randint(25, 60))
        passages.append(Passage(docid, " ".join(text), text[0]))
        qid = f"q{number}"
        rare_first = sorted(set(text), key=rarity.__getitem__, reverse=True)
        queries[qid] = " ".join(rare_first[:4])
        relevant["dev" if number % 4 == 0 else "train"][qid] = [docid]
    return Collection(passages, queries, relevant)


def made_up_words(count: int, draw: random.Random) -> list[str]:
    """Return different words of two to four syllables."""
    words: dict[str, None] = {}
    while len(words) < count:
        words["".join(draw.choices(SYLLABLES, k=draw.randint(2, 4)))] = None
    return list(words)


def write_corpus(setup: Setup, name: str, passages: Iterable[Passage]) -> str:
    """Write a corpus file, and return its path."""
    path = setup.work / f"{name}.jsonl"
    write_passages(path, passages, CorpusFormat.BEIR)
    return str(path)


def write_judged_queries(setup: Setup, split: str, count: int | None = None) -> tuple[str, str]:
    """Write the judged queries of a split and their judgments; return the paths of both."""
    collection = training_collection(setup)
    judged = list(collection.relevant[split].items())[:count]
    topics = setup.work / f"{split}-{len(judged)}.tsv"
    qrels = setup.work / f"{split}-{len(judged)}.qrels"
    topics.write_text("".join(f"{qid}\t{collection.queries[qid]}\n" for qid, _ in judged))
    lines = []
    for qid, docids in judged:
        lines += [f"{qid} 0 {docid} 1\n" for docid in docids]
    qrels.write_text("".join(lines))
    return str(topics), str(qrels)


@cache
def training_file(setup: Setup, count: int, group_size: int, *, scored: bool = False) -> str:
    """Write training examples, their texts inline, and return the path.

    A query has its relevant passages and `group_size - 1` drawn ones; with `scored`, a teacher's
    scores.
    """
    collection = training_collection(setup)
    by_id = {passage.docid: passage for passage in collection.passages}
    docids = list(by_id)
    draw = random.Random(3)

    def as_record(docid: str, score: float) -> dict[str, str | float]:
        passage = by_id[docid]
        record: dict[str, str | float] = {
            "docid": docid,
            "title": passage.title,
            "text": passage.text[:600],
        }
        if scored:
            record["score"] = score
        return record

    path = setup.work / f"training-{count}-{group_size}-{scored}.jsonl"
    with path.open("w") as file:
        for qid, relevant in list(collection.relevant["train"].items())[:count]:
            negatives = [
                docid for docid in draw.sample(docids, group_size) if docid not in relevant
            ]
            example = {
                "query_id": qid,
                "query": collection.queries[qid],
                "positive_passages": [as_record(docid, 10 + draw.random()) for docid in relevant],
                "negative_passages": [
                    as_record(docid, 5 * draw.random()) for docid in negatives[: group_size - 1]
                ],
            }
            file.write(json.dumps(example) + "\n")
    return str(path)
