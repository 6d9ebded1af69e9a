"""DPR's training data: a JSON array, or JSON lines, of questions with lists of contexts.

    {"question", "answers", "positive_ctxs": [{"title", "text", "score", "passage_id"}],
     "negative_ctxs": [...], "hard_negative_ctxs": [...]}

The hard negatives are the ones DPR trains with, and so the `negatives` here; the random ones stay
as they are among the extra fields, for this shape to write again. A question's id is its number
from 0, as everywhere downstream of DPR, unless it carries `query_id`.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from denserk.formats.files import BOM, look_ahead, number_lines, whole_binary
from denserk.formats.json_records import Fields, dump_json, parse_objects, read_array
from denserk.formats.training_records import RANDOM_NEGATIVES, Losses, need_texts
from denserk.records import Candidate, TrainingExample

KEYS = ("query_id", "question", "answers", "positive_ctxs", "hard_negative_ctxs")
CONTEXT_KEYS = ("title", "text", "score", "passage_id", "psg_id")


def is_array(head: bytes) -> bool:
    """Whether the first bytes of a file begin an array, not an object.

    >>> is_array(b' [{"question": "..."'), is_array(b'{"question": "..."')
    (True, False)
    """
    return head.removeprefix(BOM).lstrip()[:1] == b"["


def read(handle: BinaryIO, path: str | Path) -> Iterator[TrainingExample]:
    """Reads questions one at a time from either form; `path` names the input in errors.

    Raises:
        InputError: the file is not in this shape.
    """
    head, handle = look_ahead(handle, path)
    records = (
        read_array(handle, path)
        if is_array(head)
        else parse_objects(number_lines(handle, path), path)
    )
    for number, (line, record) in enumerate(records):
        fields = Fields(record, path, line)
        yield TrainingExample(
            fields.identifier("query_id", str(number)),
            fields.text("question"),
            tuple(map(_candidate, fields.objects("positive_ctxs"))),
            tuple(map(_candidate, fields.objects("hard_negative_ctxs"))),
            fields.texts("answers"),
            fields.rest(KEYS if record.get(RANDOM_NEGATIVES) else (*KEYS, RANDOM_NEGATIVES)),
        )


def _candidate(fields: Fields) -> Candidate:
    key = "passage_id" if "passage_id" in fields else "psg_id"
    return Candidate(
        fields.identifier(key),
        fields.text("text"),
        fields.text("title"),
        fields.number("score"),
        fields.rest(CONTEXT_KEYS),
    )


def random_negatives(example: TrainingExample, path: str | Path) -> tuple[Candidate, ...]:
    """The random negatives of an example of this shape, for want of hard ones.

    Raises:
        InputError: they are not contexts; `path` names the input.
    """
    fields = Fields(example.extra, path, None)
    return tuple(map(_candidate, fields.objects(RANDOM_NEGATIVES)))


def _context(candidate: Candidate) -> dict[str, Any]:
    score = {} if candidate.score is None else {"score": candidate.score}
    return {
        "title": candidate.title,
        "text": candidate.text,
        **score,
        **candidate.extra,
        "passage_id": candidate.docid,
    }


def _entry(example: TrainingExample, number: int) -> dict[str, Any]:
    need_texts(example)
    qid = {} if example.qid == str(number) else {"query_id": example.qid}
    return {
        **qid,
        "question": example.query,
        "answers": list(example.answers),
        "positive_ctxs": [_context(c) for c in example.positives],
        RANDOM_NEGATIVES: [],
        "hard_negative_ctxs": [_context(c) for c in example.negatives],
        **example.extra,
    }


def write(path: str | Path, examples: Iterable[TrainingExample], losses: Losses) -> int:
    """Writes an array, an entry a line, or JSON lines under a `.jsonl` name; returns how many.

    Raises:
        DenserkError: an example knows its passages by id alone.
    """
    lines = ".jsonl" in Path(path).suffixes
    count = 0
    with whole_binary(path) as handle:
        handle.write(b"" if lines else b"[\n")
        for count, example in enumerate(examples, start=1):
            entry = dump_json(_entry(example, count - 1))
            handle.write(entry if lines else (b",\n" if count > 1 else b"") + entry.rstrip(b"\n"))
        handle.write(b"" if lines else b"\n]\n")
    return count
