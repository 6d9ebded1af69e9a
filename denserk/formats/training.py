"""Training data in every format: detection, files, folders of `datasets`, Parquet and the hub."""

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import orjson

from denserk.errors import InputError, UsageError
from denserk.formats import training_triples as triples
from denserk.formats.files import BOM, STREAM, look_ahead, open_binary
from denserk.formats.json_records import Fields
from denserk.formats.training_json import JSON_FORMATS, is_array
from denserk.formats.training_records import Losses, join_neighbours
from denserk.records import TrainingExample
from denserk.settings.conversion import TrainingFormat

logger = logging.getLogger(__name__)


class Format(NamedTuple):
    """How one format is read and written."""

    read: Callable[[BinaryIO, str | Path], Iterator[TrainingExample]]
    write: Callable[[str | Path, Iterable[TrainingExample], Losses], int]


FORMATS: dict[TrainingFormat, Format] = {
    **{TrainingFormat(name): Format(f.read, f.write) for name, f in JSON_FORMATS.items()},
    TrainingFormat.ST_TRIPLET: Format(triples.read_columns, triples.write_columns),
    TrainingFormat.TRIPLES: Format(triples.read_id_triples, triples.write_id_triples),
    TrainingFormat.TEXT_TRIPLES: Format(triples.read_text_triples, triples.write_text_triples),
    TrainingFormat.NEGATIVES: Format(triples.read_negatives, triples.write_negatives),
}
# any of these keys in the first object decides; the first row that fits counts
DECIDING_KEYS = (
    (TrainingFormat.TEVATRON, ("positive_passages", "negative_passages")),
    (TrainingFormat.TEVATRON_IDS, ("positive_document_ids", "negative_document_ids")),
    (TrainingFormat.DPR, ("positive_ctxs", "hard_negative_ctxs")),
    (TrainingFormat.FLAG, ("pos", "neg")),
    (TrainingFormat.ST_TRIPLET, ("positive", "negative", "negative_1", "anchor", "answer")),
)
FIRST_COLUMNS = ("anchor", "query", "question", "sentence", "sentence1")
SAMPLE = 100
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+(:[\w.-]+)?")
FILE_ENDINGS = (".jsonl", ".json", ".tsv", ".csv", ".txt", ".gz", ".parquet")
Row = tuple[int, Mapping[str, Any]]


def detect_training(head: bytes) -> TrainingFormat | None:
    r"""Return the format of training data that begins with these bytes; None if it is unknown.

    >>> detect_training(b'{"query": "q", "pos": ["a"], "neg": []}\n').value
    'flag'
    >>> detect_training(b"1\t20\t30\n1\t20\t31\n").value
    'triples'
    """
    head = head.removeprefix(BOM)
    if is_array(head):
        return TrainingFormat.DPR if b"_ctxs" in head else None
    lines = [line for line in head.splitlines()[:SAMPLE] if line.strip()]
    if len(lines) > 1 and not head.endswith((b"\n", b"\r")):
        lines.pop()  # it may be cut short
    if not lines:
        return None
    return _of_object(lines[0]) if lines[0].lstrip()[:1] == b"{" else _of_columns(lines)


def _of_object(line: bytes) -> TrainingFormat | None:
    try:
        return _of_record(orjson.loads(line))
    except orjson.JSONDecodeError:
        return None


def _of_record(record: Mapping[str, Any]) -> TrainingFormat | None:
    keys = record.keys()
    if isinstance(record.get("neg"), dict) or {"qid", "pos"} <= keys:
        return TrainingFormat.ST_IDS
    return next((form for form, deciding in DECIDING_KEYS if keys & set(deciding)), None)


def _of_columns(lines: list[bytes]) -> TrainingFormat | None:
    rows = [[column.strip() for column in line.split(b"\t")] for line in lines]
    width = len(rows[0])
    if any(len(row) != width for row in rows):
        return None
    first = [column.decode("utf-8", "replace").lower() for column in rows[0]]
    if width > 1 and first[0] in FIRST_COLUMNS and first[1].startswith(("pos", "answer")):
        return TrainingFormat.ST_TRIPLET
    bare = not any(b" " in column for row in rows for column in row)
    if width == 3:
        return TrainingFormat.TRIPLES if bare else TrainingFormat.TEXT_TRIPLES
    return TrainingFormat.NEGATIVES if width == 2 and bare else None


def read_training(
    source: str | Path, form: TrainingFormat | None = None
) -> Iterator[TrainingExample]:
    """Read training examples one at a time.

    Args:
        source: a file, plain or gzip by suffix, or Parquet; "-" is standard input; a folder that
            `datasets` saved; or a dataset on the Hugging Face hub, NAME or NAME:CONFIG, of which
            the split `train` is read.
        form: its format; None detects it, and logs what was detected.

    Raises:
        UsageError: there is no such source.
        InputError: the format is unknown, or the source does not keep to it.
    """
    rows = _table(str(source))
    if rows is not None:
        yield from _of_table(rows, source, form)
        return
    with open_binary(source) as handle:
        if form is None:
            head, handle = look_ahead(handle, source)
            form = _known(detect_training(head), source, empty=not head.strip())
        yield from FORMATS[form].read(handle, source)


def _known(form: TrainingFormat | None, source: str | Path, *, empty: bool) -> TrainingFormat:
    if form is None:
        raise InputError(
            source,
            None,
            "nothing" if empty else "training data of no known format",
            f"one of {', '.join(TrainingFormat)}",
            "name its format if it is one of them",
        )
    logger.info(f"{source}: training data in the format {form}")
    return form


def _table(source: str) -> Iterator[Row] | None:
    """Return the rows of Parquet, of a saved dataset, or of one on the hub; None of other files."""
    if Path(source).is_dir():
        return _saved_rows(source)
    if source.endswith(".parquet"):
        return _parquet_rows(source)
    folder = Path(source).parent
    if source == STREAM or source.endswith(FILE_ENDINGS) or Path(source).exists():
        return None
    return _hub_rows(source) if HUB_NAME.fullmatch(source) and not folder.is_dir() else None


def _saved_rows(source: str) -> Iterator[Row]:
    from datasets import DatasetDict, load_from_disk

    try:
        found = load_from_disk(source)
    except (FileNotFoundError, ValueError):
        raise UsageError(
            f"{source} is a folder without a dataset", "give a file, or a folder of save_to_disk"
        ) from None
    if isinstance(found, DatasetDict):
        if "train" not in found:
            raise UsageError(f"{source} has no split train: {', '.join(found)}", "give a split")
        found = found["train"]
    yield from enumerate(found, start=1)


def _parquet_rows(source: str) -> Iterator[Row]:
    import pyarrow
    from pyarrow import parquet

    if not Path(source).exists():
        raise UsageError(f"{source}: no such file")
    try:
        with parquet.ParquetFile(source) as file:
            batches = file.iter_batches(batch_size=1024)
            yield from enumerate((row for batch in batches for row in batch.to_pylist()), start=1)
    except (pyarrow.ArrowException, OSError) as error:
        found = f"a broken file ({str(error).splitlines()[0]})"
        raise InputError(source, None, found, "a Parquet file") from None


def _hub_rows(source: str) -> Iterator[Row]:
    from datasets import load_dataset

    name, _, config = source.partition(":")
    try:
        found = load_dataset(name, config or None, split="train", streaming=True)
    except (OSError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise UsageError(
            f"{source}: no such file, and no dataset that could be read from the hub ({reason})",
            "give a file, a folder of save_to_disk, or a dataset as NAME or NAME:CONFIG",
        ) from None
    yield from enumerate(found, start=1)


def _of_table(
    rows: Iterator[Row], source: str | Path, form: TrainingFormat | None
) -> Iterator[TrainingExample]:
    first = next(rows, None)
    if first is None:
        raise InputError(source, None, "no rows", "training examples")
    if form is None:
        form = _known(_of_record(first[1]), source, empty=False)
    fields = (Fields(row, source, line) for line, row in chain((first,), rows))
    if form in JSON_FORMATS:
        read = JSON_FORMATS[form].example
        yield from (read(each, number) for number, each in enumerate(fields))
    elif form is TrainingFormat.ST_TRIPLET:
        yield from join_neighbours(map(triples.of_row, fields))
    else:
        raise UsageError(f"{source} has named columns, and {form} has none")


def write_training(
    path: str | Path,
    examples: Iterable[TrainingExample],
    form: TrainingFormat,
) -> int:
    """Write training examples; what the format cannot carry is counted and logged once.

    Args:
        path: the file, which appears whole or not at all; "-" is standard output.
        examples: what to write.
        form: the format.

    Returns:
        The number of examples.

    Raises:
        DenserkError: an example lacks what the format needs: texts, or ids.
        OutputError: it cannot be written.
    """
    losses = Losses()
    count = FORMATS[form].write(path, examples, losses)
    lost = ", ".join(f"{name}: {number:,}" for name, number in losses.items() if number)
    if lost:
        logger.info(f"left out, as {form} has no place for them: {lost}")
    return count
