"""Training examples of numbered texts, and the files and runs that are made of them."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import orjson

from denserk.config.finetuning import FinetuneRun, resolve_run
from denserk.config.formats import CorpusSettings
from tests.support.toy import WORDS


def jsonl(path: Path, objects: Iterable[Any]) -> str:
    path.write_bytes(b"".join(orjson.dumps(value) + b"\n" for value in objects))
    return str(path)


def write_expansions(path: Path, expansions: Iterable[Any]) -> str:
    records = [
        {
            "docid": expansion.docid,
            "queries": expansion.queries,
            "next": expansion.continuations,
        }
        for expansion in expansions
    ]
    return jsonl(path, records)


def run_on(*files: str, **options: Any) -> FinetuneRun:
    """A run on training files; only its inputs matter."""
    paths = {"model": "", "train_data": files, "output": ""}
    return resolve_run(None, CorpusSettings(), {**paths, **options})


def words(number: int, length: int) -> str:
    """A text of its own for every number: the number in words, then filling."""
    digits = [WORDS[(number // len(WORDS) ** place) % len(WORDS)] for place in range(3)]
    return " ".join((digits + WORDS)[:length])


def inline(query: int, positives: int, negatives: int, scored: bool = False) -> dict[str, Any]:
    """A query in Tevatron's shape; its passages are d<query>-0, -1, ..., all of unequal texts."""

    def passage(number: int) -> dict[str, Any]:
        score = {"score": query + number / 100} if scored else {}
        text = words(100 * query + number, 4 + number % 5)
        return {"docid": f"d{query}-{number}", "text": text, **score}

    passages = [passage(number) for number in range(positives + negatives)]
    return {
        "query_id": f"q{query}",
        "query": words(query, 3 + query % 4),
        "positive_passages": passages[:positives],
        "negative_passages": passages[positives:],
    }


def pairs(count: int, label: float | None = None) -> list[dict[str, Any]]:
    return [
        {
            "sentence1": words(2 * number, 3 + number % 4),
            "sentence2": words(2 * number + 1, 2 + number % 5),
            "label": number % 6 if label is None else label,
        }
        for number in range(count)
    ]


def triplets(count: int) -> list[dict[str, str]]:
    names = ("anchor", "positive", "negative")
    return [
        {name: words(3 * number + place, 4) for place, name in enumerate(names)}
        for number in range(count)
    ]
