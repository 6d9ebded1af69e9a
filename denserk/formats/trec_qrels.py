"""Judgements: TREC's four columns, BEIR's three under a header."""

import logging
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from denserk.errors import InputError
from denserk.formats.detection import columns, told
from denserk.formats.files import read_text_lines, write_lines
from denserk.records import Qrel
from denserk.settings.formats import QrelsFormat

logger = logging.getLogger(__name__)

BEIR_HEADER = ("query-id", "corpus-id", "score")
_COLUMNS = {
    QrelsFormat.TREC: "4 columns: query, iteration, passage, relevance",
    QrelsFormat.BEIR: "3 columns: query, passage, relevance",
}
_INTEGER = re.compile(r"[+-]?[0-9]+")


def read_qrels(path: str | Path, form: QrelsFormat | None = None) -> Iterator[Qrel]:
    """Judgements of a file, in its order; the lines of a query need not stand together.

    Args:
        path: the file; "-" is standard input.
        form: its shape; None detects it by the number of columns.

    Raises:
        InputError: a line has another number of columns, a relevance that is no integer, or a
            judgement that contradicts an earlier one; or the file is empty.
    """
    judged: dict[str, dict[str, int]] = {}
    grades: dict[str, int] = {}
    detected = form
    for line, text in read_text_lines(path):
        parts = text.split()
        if not parts or (parts[0][0] == "#" and not _judges(parts)):
            continue
        if detected is None:
            detected = _detect(parts, path, line)
            logger.info(f"{told(path)}: {detected} judgements ({columns(len(parts))})")
        if not judged and tuple(text.lower().split()) == BEIR_HEADER:
            continue
        if len(parts) != (4 if detected is QrelsFormat.TREC else 3):
            raise _wrong_columns(parts, detected, path, line)
        qid, docid, grade = parts[0], parts[-2], parts[-1]
        relevance = grades.get(grade)
        if relevance is None:
            relevance = grades[grade] = _relevance(grade, path, line)
        known = judged.setdefault(qid, {})
        before = known.setdefault(docid, relevance)
        if before != relevance:
            raise InputError(
                path,
                line,
                f"relevance {relevance} for query {qid}, passage {docid}, and {before} above",
                "one judgement of a passage",
            )
        yield Qrel(qid, docid, relevance)
    if not judged:
        raise InputError(path, None, "no judgements", _COLUMNS[detected or QrelsFormat.TREC])


def _judges(parts: list[str]) -> bool:
    """Whether a line that begins with `#` is a judgement, not a comment of trec_eval 10."""
    number = _INTEGER.fullmatch(parts[-1]) is not None
    return number and (len(parts) == 3 or (len(parts) == 4 and parts[1] in ("0", "Q0")))


def _relevance(grade: str, path: str | Path, line: int) -> int:
    if not _INTEGER.fullmatch(grade) or len(grade) > 18:
        raise InputError(path, line, f"relevance {grade[:40]!r}", "an integer")
    return int(grade)


def _detect(parts: list[str], path: str | Path, line: int) -> QrelsFormat:
    if len(parts) == 4:
        return QrelsFormat.TREC
    if len(parts) == 3:
        return QrelsFormat.BEIR
    raise _wrong_columns(parts, None, path, line)


def _wrong_columns(
    parts: list[str], form: QrelsFormat | None, path: str | Path, line: int
) -> InputError:
    hint = "six columns are a run: exchange run and judgements" if len(parts) == 6 else None
    expected = _COLUMNS[form] if form else " or ".join(_COLUMNS.values())
    return InputError(path, line, columns(len(parts)), expected, hint)


def read_qrels_map(path: str | Path, form: QrelsFormat | None = None) -> dict[str, dict[str, int]]:
    """All judgements of a file: query -> passage -> relevance, in the file's order.

    Raises:
        InputError: see `read_qrels`.
    """
    return map_qrels(read_qrels(path, form))


def map_qrels(qrels: Iterable[Qrel]) -> dict[str, dict[str, int]]:
    """Judgements by query and passage.

    >>> map_qrels([Qrel("q1", "d1", 1), Qrel("q2", "d1", 0), Qrel("q1", "d2", 2)])
    {'q1': {'d1': 1, 'd2': 2}, 'q2': {'d1': 0}}
    """
    judged: dict[str, dict[str, int]] = {}
    for qid, docid, relevance in qrels:
        judged.setdefault(qid, {})[docid] = relevance
    return judged


def write_qrels(path: str | Path, qrels: Iterable[Qrel], form: QrelsFormat) -> int:
    """Writes judgements; returns how many. "-" is standard output, `.gz` is compressed.

    Raises:
        OutputError: it cannot be written.
    """
    if form is QrelsFormat.TREC:
        return write_lines(path, (f"{qid} 0 {docid} {grade}\n" for qid, docid, grade in qrels))
    header = "\t".join(BEIR_HEADER) + "\n"
    rows = (f"{qid}\t{docid}\t{grade}\n" for qid, docid, grade in qrels)
    return write_lines(path, rows, header)
