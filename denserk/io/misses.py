"""misses.csv: a row for each relevant passage that a run missed, with the cause."""

import csv
import io
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from denserk.errors import InputError
from denserk.io.files import read_file
from denserk.io.written_files import write_rows

COLUMNS = ("run", "qid", "docid", "grade", "rank", "cause", "change", "rank_after", "also")
FOUND = "found"  # the cause of a passage that stands among the first hits: none
MODEL = "model"  # the cause where no change helps
TITLES = {
    "absent": "not in the index",
    "approximate": "lost by approximate search, cut dimensions or quantisation",
    "outdated": "the index has an older vector of it",
    "hub": "crowded out by hubs",
    "copies": "crowded out by copies",
    "unjudged": "below hits that are probably relevant, and not judged",
    "length": "relevant text beyond the length limit",
    "fields": "a field of the topics that was not searched",
    "words": "words that only BM25 matches",
    "position": "position in the passage",
    "subwords": "words of the query split into many subword tokens",
    MODEL: "none of the causes that were tried",
    FOUND: "none: it is among the first hits",
}
ALL_TRIED = "none of these: the model"  # the title of `MODEL` where no cause is left to try


class MissedPassage(NamedTuple):
    """A relevant passage that a run missed, and the smallest change that brings it in."""

    qid: str
    docid: str
    grade: int
    rank: int | None  # in the run; None: not within it
    cause: str  # a key of `TITLES`
    change: str = ""  # that was tried; empty without one
    rank_after: int | None = None  # None: not within the hits that were looked at
    also: tuple[str, ...] = ()  # other causes whose changes bring it in


def write_misses(path: str, run: str, passages: Iterable[MissedPassage]) -> None:
    """Write the table of a run's missed passages."""
    rows = [COLUMNS, *(_cells(run, passage) for passage in passages)]
    write_rows(path, rows)


def _cells(run: str, passage: MissedPassage) -> tuple[str, ...]:
    """Return a row of the table; a rank that is not known is empty."""
    rank = "" if passage.rank is None else str(passage.rank)
    rank_after = "" if passage.rank_after is None else str(passage.rank_after)
    return (
        run,
        passage.qid,
        passage.docid,
        str(passage.grade),
        rank,
        passage.cause,
        passage.change,
        rank_after,
        " ".join(passage.also),
    )


class CauseCounts(NamedTuple):
    """How many passages a run missed, by cause."""

    run: str  # its file, as it was named
    counts: Mapping[str, int]  # by cause, in the order of `TITLES`

    @property
    def total(self) -> int:
        """The number of missed passages."""
        return sum(self.counts.values())


def read_cause_counts(path: str | Path) -> CauseCounts:
    """Read how many missed passages have each cause in a table that `write_misses` wrote."""
    expected = f"a table of analyze misses, with the columns {','.join(COLUMNS)}"
    try:
        text = read_file(path).decode("utf-8")
    except UnicodeDecodeError:
        raise InputError(path, None, "bytes that are no text", expected) from None
    try:
        return _count_causes(path, csv.DictReader(io.StringIO(text)), expected)
    except csv.Error as error:
        raise InputError(path, None, f"text that is not CSV ({error})", expected) from None


def _count_causes(path: str | Path, reader: "csv.DictReader[str]", expected: str) -> CauseCounts:
    """Count the causes of a table; `expected` is what an error expects of its columns."""
    columns = tuple(reader.fieldnames or ())
    if columns != COLUMNS:
        raise InputError(path, 1, f"the columns {','.join(columns)}", expected)
    causes: Counter[str] = Counter()
    run = ""
    for row in reader:
        run = row["run"]
        if row["cause"] not in TITLES:
            message = f"the cause {row['cause']!r}"
            raise InputError(path, reader.line_num, message, ", ".join(TITLES))
        causes[row["cause"]] += 1
    del causes[FOUND]  # of passages that were not missed
    counts = {cause: causes[cause] for cause in TITLES if causes[cause]}
    return CauseCounts(run, counts)
