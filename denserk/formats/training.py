"""Training data in any shape: the table of shapes, and how a file's own is told."""

import logging
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

import orjson

from denserk.errors import InputError
from denserk.formats import training_dpr, training_jsonl, training_pos_neg, training_triples
from denserk.formats.files import BOM, look_ahead, open_binary
from denserk.formats.training_records import Losses
from denserk.records import TrainingExample
from denserk.settings.conversion import TrainingFormat

logger = logging.getLogger(__name__)

Reader = Callable[[BinaryIO, str | Path], Iterator[TrainingExample]]
Writer = Callable[[str | Path, Iterable[TrainingExample], Losses], int]


class TrainingShape(NamedTuple):
    """How one shape is read and written."""

    read: Reader
    write: Writer


SHAPES: dict[TrainingFormat, TrainingShape] = {
    TrainingFormat.TEVATRON: TrainingShape(training_jsonl.read_inline, training_jsonl.write_inline),
    TrainingFormat.TEVATRON_IDS: TrainingShape(training_jsonl.read_ids, training_jsonl.write_ids),
    TrainingFormat.DPR: TrainingShape(training_dpr.read, training_dpr.write),
    TrainingFormat.ST_TRIPLET: TrainingShape(
        training_triples.read_columns, training_triples.write_columns
    ),
    TrainingFormat.FLAG: TrainingShape(training_pos_neg.read, training_pos_neg.write),
    TrainingFormat.TRIPLES: TrainingShape(
        training_triples.read_id_triples, training_triples.write_id_triples
    ),
    TrainingFormat.TEXT_TRIPLES: TrainingShape(
        training_triples.read_text_triples, training_triples.write_text_triples
    ),
    TrainingFormat.NEGATIVES: TrainingShape(
        training_triples.read_negatives, training_triples.write_negatives
    ),
}

TELLING_KEYS = (
    (TrainingFormat.TEVATRON, ("positive_passages", "negative_passages")),
    (TrainingFormat.TEVATRON_IDS, ("positive_document_ids", "negative_document_ids")),
    (TrainingFormat.DPR, ("positive_ctxs", "hard_negative_ctxs")),
    (TrainingFormat.FLAG, ("pos", "neg")),
    (TrainingFormat.ST_TRIPLET, ("positive", "negative", "anchor")),
)
"""Any of these keys in the first object gives its shape away; the first row that fits counts."""

FIRST_COLUMNS = ("anchor", "query", "question", "sentence", "sentence1")
SAMPLE = 100


def detect_training(head: bytes) -> TrainingFormat | None:
    r"""The shape of training data that begins with these bytes; None where nothing gives it away.

    >>> detect_training(b'{"query": "q", "pos": ["a"], "neg": []}\n').value
    'flag'
    >>> detect_training(b"1\t20\t30\n1\t20\t31\n").value
    'triples'
    """
    head = head.removeprefix(BOM)
    if training_dpr.is_array(head):
        return TrainingFormat.DPR if b"_ctxs" in head else None
    lines = [line for line in head.splitlines()[:SAMPLE] if line.strip()]
    if len(lines) > 1 and not head.endswith((b"\n", b"\r")):
        lines.pop()  # it may be cut short
    if not lines:
        return None
    return _of_object(lines[0]) if lines[0].lstrip()[:1] == b"{" else _of_columns(lines)


def _of_object(line: bytes) -> TrainingFormat | None:
    try:
        keys = orjson.loads(line).keys()
    except orjson.JSONDecodeError:
        return None
    return next((form for form, telling in TELLING_KEYS if keys & set(telling)), None)


def _of_columns(lines: list[bytes]) -> TrainingFormat | None:
    rows = [[column.strip() for column in line.split(b"\t")] for line in lines]
    width = len(rows[0])
    if any(len(row) != width for row in rows):
        return None
    first = [column.decode("utf-8", "replace").lower() for column in rows[0]]
    if width > 1 and first[0] in FIRST_COLUMNS and first[1].startswith("pos"):
        return TrainingFormat.ST_TRIPLET
    bare = not any(b" " in column for row in rows for column in row)
    if width == 3:
        return TrainingFormat.TRIPLES if bare else TrainingFormat.TEXT_TRIPLES
    return TrainingFormat.NEGATIVES if width == 2 and bare else None


def read_training(
    source: str | Path, form: TrainingFormat | None = None
) -> Iterator[TrainingExample]:
    """Reads training examples one at a time.

    Args:
        source: a file, plain or gzip by suffix; "-" is standard input.
        form: its shape; detected from its first lines, and told, where it is None.

    Raises:
        UsageError: there is no such file.
        InputError: the shape cannot be told, or the file does not keep to it.
    """
    with open_binary(source) as handle:
        if form is None:
            head, handle = look_ahead(handle, source)
            form = detect_training(head)
            if form is None:
                raise InputError(
                    source,
                    None,
                    "training data of no known shape" if head.strip() else "nothing",
                    f"one of {', '.join(TrainingFormat)}",
                    "name its shape if it is one of them",
                )
            logger.info(f"{source}: training data in the shape {form}")
        yield from SHAPES[form].read(handle, source)


def write_training(
    path: str | Path,
    examples: Iterable[TrainingExample],
    form: TrainingFormat,
) -> int:
    """Writes training examples; what the shape cannot carry is counted and told once.

    Args:
        path: the file, which appears whole or not at all; "-" is standard output.
        examples: what to write.
        form: the shape.

    Returns:
        How many examples were taken.

    Raises:
        DenserkError: an example lacks what the shape needs: texts, or ids.
        OutputError: it cannot be written.
    """
    losses = Losses()
    count = SHAPES[form].write(path, examples, losses)
    lost = ", ".join(f"{name}: {number:,}" for name, number in losses.items() if number)
    if lost:
        logger.info(f"left out, as {form} has no place for them: {lost}")
    return count
