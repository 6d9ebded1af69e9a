"""Relevance judgments (qrels): TREC's four columns, BEIR's three under a header or by name."""

import logging
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from denserk.config.formats import QrelsFormat
from denserk.errors import InputError, UsageError
from denserk.io import data_sets
from denserk.io.files import columns, display_name, open_ahead, read_text_lines, write_lines
from denserk.io.json_records import Fields, first_record, list_keys, read_objects
from denserk.io.tables import is_table
from denserk.records import Qrel

logger = logging.getLogger(__name__)

BEIR_HEADER = ("query-id", "corpus-id", "score")
COLUMNS = {
    QrelsFormat.TREC: "4 columns: query, iteration, passage, relevance",
    QrelsFormat.BEIR: "3 columns: query, passage, relevance",
}
WIDTHS = {4: QrelsFormat.TREC, 3: QrelsFormat.BEIR}
# keys of JSON lines: BEIR's, and others of the same meaning
NAMES = ("query-id|query_id|qid", "corpus-id|corpus_id|docid", "score|relevance")
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")


def read_qrels(source: str | Path, form: QrelsFormat | None = None) -> Iterator[Qrel]:
    """Yield the judgments of a source, in its order; lines of a query need not stand together.

    The source is a file; a BEIR folder with one split; "-"; `irds:NAME`; `beir:NAME/SPLIT`;
    Parquet; `hf:NAME/SPLIT`. A `form` of None is detected by the number of columns.
    """
    if is_table(source, "qrels"):
        yield from _read_file(source, form)
    elif (place := data_sets.locate(str(source))).irds is not None:
        for each in data_sets.irds_records(place.irds, "qrels"):
            yield Qrel(each.query_id, each.doc_id, int(each.relevance))
    else:
        path = split_file(place.path, place.split) if place.path.is_dir() else place.path
        yield from _read_file(path, form)


def _read_file(path: str | Path, form: QrelsFormat | None) -> Iterator[Qrel]:
    judged: dict[tuple[str, str], int] = {}
    for line, text in _lines(path):
        parts = text.split()
        if not parts or (parts[0][0] == "#" and not _is_judgment(parts)):
            continue
        width = WIDTHS.get(len(parts))
        if form is None and (form := width) is not None:
            logger.info(f"{display_name(path)}: {form} qrels ({columns(len(parts))})")
        if not judged and tuple(text.lower().split()) == BEIR_HEADER:
            continue
        if form is None or form is not width:
            expected = COLUMNS[form] if form else " or ".join(COLUMNS.values())
            hint = "six columns are a run: exchange run and qrels" if len(parts) == 6 else None
            raise InputError(path, line, columns(len(parts)), expected, hint)
        qid, docid, grade = parts[0], parts[-2], parts[-1]
        if not _INTEGER.fullmatch(grade):
            raise InputError(path, line, f"relevance {grade[:40]!r}", "an integer")
        if (before := judged.setdefault((qid, docid), int(grade))) != int(grade):
            found = f"relevance {grade} for query {qid}, passage {docid}, and {before} above"
            raise InputError(path, line, found, "one judgment of a passage")
        yield Qrel(qid, docid, int(grade))
    if not judged:
        raise InputError(path, None, "no judgments", COLUMNS[form or QrelsFormat.TREC])


def _lines(path: str | Path) -> Iterator[tuple[int, str]]:
    """Yield numbered lines with columns, which are made of JSON lines."""
    with open_ahead(path, part="qrels") as (head, handle):
        if first_record(head) is None:
            yield from read_text_lines(path, handle)
            return
        for line, record in read_objects(path, handle):
            fields = Fields(record, path, line)
            keys = [next(filter(fields.__contains__, names.split("|")), None) for names in NAMES]
            if None in keys:
                raise fields.error(f"the columns {list_keys(record)}", " with ".join(NAMES))
            query, passage, grade = map(str, keys)
            ids = fields.identifier(query), fields.identifier(passage)
            yield line, "\t".join([*ids, f"{fields.number(grade) or 0:.9g}"])


def _is_judgment(parts: list[str]) -> bool:
    """Return whether a line that begins with `#` is a judgment, not a comment of trec_eval 10."""
    columns_fit = len(parts) == 3 or (len(parts) == 4 and parts[1] in ("0", "Q0"))
    return columns_fit and _INTEGER.fullmatch(parts[-1]) is not None


def read_qrels_map(source: str | Path) -> dict[str, dict[str, int]]:
    """Read all judgments of a source: query -> passage -> relevance, in its order."""
    judged: dict[str, dict[str, int]] = {}
    for qid, docid, relevance in read_qrels(source):
        judged.setdefault(qid, {})[docid] = relevance
    return judged


def split_file(folder: Path, split: str | None) -> Path:
    """Return the qrels of one split of a BEIR folder; without a split, of its only one."""
    where = folder / "qrels"
    names = {item.name.partition(".")[0]: item for item in sorted(where.glob("*.tsv*"))}
    if split in names or (split is None and len(names) == 1):
        return names[split or min(names)]
    usual = [name for name in ("test", "dev", "train") if name in names]  # published first
    there = usual + sorted(names.keys() - usual)
    asked = f"no split {split}" if split else "several splits"
    raise UsageError(
        f"{where}: {asked if names else 'no qrels'} (there: {', '.join(there) or 'none'})",
        f"name one: {where / (there[0] + '.tsv')}" if names else None,
    )


def write_qrels(path: str | Path, qrels: Iterable[Qrel], form: QrelsFormat) -> int:
    """Write judgments; return their number."""
    if form is QrelsFormat.TREC:
        return write_lines(path, (f"{qid} 0 {docid} {grade}\n" for qid, docid, grade in qrels))
    rows = (f"{qid}\t{docid}\t{grade}\n" for qid, docid, grade in qrels)
    return write_lines(path, rows, "\t".join(BEIR_HEADER) + "\n")
