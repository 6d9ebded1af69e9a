"""Tevatron's training data: JSON lines with passages inside, or with the ids of passages.

{"query_id", "query", "answers", "positive_passages": [{"docid", "title", "text", "score"}],
 "negative_passages": [...]}
{"query_id", "query_text", "positive_document_ids": [...], "negative_document_ids": [...]}
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from denserk.formats.files import number_lines
from denserk.formats.json_records import Fields, parse_objects, write_objects
from denserk.formats.training_records import (
    Losses,
    count_losses,
    need_ids,
    need_texts,
    without_contexts,
)
from denserk.records import Candidate, TrainingExample

PASSAGE_KEYS = ("docid", "title", "text", "score")
INLINE_KEYS = ("query_id", "query", "answers", "positive_passages", "negative_passages")
ID_KEYS = ("query_id", "query_text", "answers", "positive_document_ids", "negative_document_ids")


def read_inline(handle: BinaryIO, path: str | Path) -> Iterator[TrainingExample]:
    """Reads examples that hold their passages; `path` names the input in errors.

    Raises:
        InputError: a line is not such an example.
    """
    for line, record in parse_objects(number_lines(handle, path), path):
        fields = Fields(record, path, line)
        yield TrainingExample(
            fields.identifier("query_id", str(line - 1)),
            fields.text("query"),
            tuple(map(_candidate, fields.objects("positive_passages"))),
            tuple(map(_candidate, fields.objects("negative_passages"))),
            fields.texts("answers"),
            fields.rest(INLINE_KEYS),
        )


def _candidate(fields: Fields) -> Candidate:
    return Candidate(
        fields.identifier("docid"),
        fields.text("text"),
        fields.text("title"),
        fields.number("score"),
        fields.rest(PASSAGE_KEYS),
    )


def _passage(candidate: Candidate) -> dict[str, Any]:
    score = {} if candidate.score is None else {"score": candidate.score}
    named = {"docid": candidate.docid, "title": candidate.title, "text": candidate.text}
    return {**named, **score, **candidate.extra}


def write_inline(path: str | Path, examples: Iterable[TrainingExample], losses: Losses) -> int:
    """Writes examples with their passages; returns how many.

    Raises:
        DenserkError: an example knows its passages by id alone.
    """

    def record(example: TrainingExample) -> dict[str, Any]:
        need_texts(example)
        answers = {"answers": list(example.answers)} if example.answers else {}
        return {
            "query_id": example.qid,
            "query": example.query,
            **answers,
            "positive_passages": [_passage(c) for c in example.positives],
            "negative_passages": [_passage(c) for c in example.negatives],
            **example.extra,
        }

    return write_objects(path, map(record, examples))


def read_ids(handle: BinaryIO, path: str | Path) -> Iterator[TrainingExample]:
    """Reads examples that name their passages by id; `path` names the input in errors.

    Raises:
        InputError: a line is not such an example.
    """
    for line, record in parse_objects(number_lines(handle, path), path):
        fields = Fields(record, path, line)
        yield TrainingExample(
            fields.identifier("query_id", str(line - 1)),
            fields.text("query_text"),
            tuple(map(Candidate, fields.identifiers("positive_document_ids"))),
            tuple(map(Candidate, fields.identifiers("negative_document_ids"))),
            fields.texts("answers"),
            fields.rest(ID_KEYS),
        )


def write_ids(path: str | Path, examples: Iterable[TrainingExample], losses: Losses) -> int:
    """Writes examples with the ids of their passages; returns how many.

    Raises:
        DenserkError: a passage has no id.
    """

    def record(example: TrainingExample) -> dict[str, Any]:
        need_ids(example)
        count_losses(example, losses, {"docid", "answers", "extra"})
        answers = {"answers": list(example.answers)} if example.answers else {}
        return {
            "query_id": example.qid,
            "query_text": example.query,
            **answers,
            "positive_document_ids": [c.docid for c in example.positives],
            "negative_document_ids": [c.docid for c in example.negatives],
            **without_contexts(example, losses),
        }

    return write_objects(path, map(record, examples))
