"""Columns of tables by their names: what a header is, and what its columns hold.

`NAMES` is the one list of column names that denserk knows, by what the table is read as. Headers
of runs, qrels, queries, corpora and training data are recognised by it, and so are the keys of JSON
records wherever more than one spelling is read.
"""

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from enum import StrEnum
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from denserk.errors import InputError
from denserk.io import files
from denserk.io.short_texts import columns_phrase, unquote_cell

logger = logging.getLogger(__name__)


class Table(StrEnum):
    """What a table is read as."""

    RUN = "run"
    QRELS = "qrels"
    QUERIES = "queries"
    CORPUS = "corpus"
    TRAINING = "training data"
    SENTENCES = "sentences"
    CLICKS = "click log"


class Column(StrEnum):
    """What a column holds."""

    QUERY_ID = "query id"
    PASSAGE_ID = "passage id"
    ITERATION = "iteration"
    GRADE = "grade"
    COUNT = "count"
    RANK = "rank"
    SCORE = "score"
    TAG = "tag"
    QUERY = "query"
    ANSWERS = "answers"
    TITLE = "title"
    TEXT = "text"
    POSITIVE = "positive"
    NEGATIVE = "negative"
    POSITIVE_ID = "positive id"
    NEGATIVE_ID = "negative id"
    LABEL = "label"
    ANCHOR = "anchor"
    SENTENCE_1 = "sentence1"
    SENTENCE_2 = "sentence2"
    SENTENCE_3 = "sentence3"
    EXTRA = "extra"  # a known name of something that the reader does not need


# Known names with blanks between them, the preferred one first. Names are compared without case and
# without all that is no letter and no digit: `query-id`, `query_id`, `Query ID` and `queryId` are
# one name.
QUERY_IDS = "queryid qid questionid topicid topicno topicnumber qno querynumber"
PASSAGE_IDS = "corpusid docid docno documentid did pid passageid psgid paragraphid"
ITERATIONS = "subtopicid subtopic iteration iter q0 0 unused"
URLS = "url documenturl docurl clickurl clickedurl"
COUNTS = (
    "clicks click count clickcount clickscount clicked numclicks numberofclicks nclicks frequency"
)
GRADES = "relevance relevancy rel grade label judgment judgement relevancegrade relevancelabel"
NAMES: Mapping[Table, Mapping[Column, str]] = {
    Table.RUN: {
        Column.QUERY_ID: f"{QUERY_IDS} query topic",
        Column.ITERATION: ITERATIONS,
        Column.PASSAGE_ID: f"{PASSAGE_IDS} doc document passage",
        Column.RANK: "rank",
        Column.SCORE: "score similarity sim",
        Column.TAG: "tag runid runtag runname run system systemid method",
    },
    Table.QRELS: {
        Column.QUERY_ID: f"{QUERY_IDS} query topic",
        Column.ITERATION: ITERATIONS,
        Column.PASSAGE_ID: f"{PASSAGE_IDS} doc document passage",
        Column.GRADE: f"score {GRADES}",
    },
    Table.QUERIES: {
        Column.QUERY_ID: f"id {QUERY_IDS} topic number num",
        Column.QUERY: "query querytext text title question",
        Column.ANSWERS: "answers answer",
        Column.EXTRA: "description desc narrative narr metadata url language lang split",
    },
    Table.CORPUS: {
        Column.PASSAGE_ID: f"id {PASSAGE_IDS}",
        Column.TEXT: "text contents content body passage paragraph",
        Column.TITLE: "title headline heading",
        Column.EXTRA: "metadata url language lang",
    },
    Table.TRAINING: {
        Column.QUERY_ID: QUERY_IDS,
        Column.QUERY: "anchor query querytext question sentence sentence1",
        Column.POSITIVE: "positive positives pos answer positivepassage positivetext positivedoc",
        Column.NEGATIVE: "negative negatives neg hardnegative hardnegatives negativepassage "
        "negativetext negativedoc",
        Column.POSITIVE_ID: "positiveid posid pospid positivepid posdocid positivedocid "
        "positivepassageid",
        Column.NEGATIVE_ID: "negativeid negid negpid negativepid negdocid negativedocid "
        "negativepassageid negativeids negids",
        Column.TEXT: "passage passagetext document documenttext doc text response context",
        Column.LABEL: "label score similarityscore",
        Column.EXTRA: "id idx index contexts groundtruth groundtruths",
    },
    Table.SENTENCES: {
        Column.ANCHOR: "anchor query question",
        Column.POSITIVE: "positive pos",
        Column.NEGATIVE: "negative neg",
        Column.SENTENCE_1: "sentence1 sentencea text1 texta",
        Column.SENTENCE_2: "sentence2 sentenceb text2 textb",
        Column.SENTENCE_3: "sentence3 sentencec text3 textc",
        Column.LABEL: "label score similarityscore",
    },
    Table.CLICKS: {
        Column.QUERY_ID: QUERY_IDS,
        Column.QUERY: "query querytext text question keyword searchterm searchquery",
        Column.PASSAGE_ID: f"{PASSAGE_IDS} doc document passage {URLS}",
        Column.COUNT: COUNTS,
        Column.EXTRA: "rank position date time timestamp session sessionid impressions lang",
    },
}
# Sets of columns, of which a header must have one as a whole.
REQUIRED: Mapping[Table, Sequence[set[Column]]] = {
    Table.RUN: [
        {Column.QUERY_ID, Column.PASSAGE_ID, Column.SCORE},
        {Column.QUERY_ID, Column.PASSAGE_ID, Column.RANK},
    ],
    Table.QRELS: [{Column.QUERY_ID, Column.PASSAGE_ID, Column.GRADE}],
    Table.QUERIES: [
        {Column.QUERY_ID, Column.QUERY},
        {Column.QUERY, Column.ANSWERS},
        {Column.QUERY_ID, Column.ANSWERS},
    ],
    Table.CORPUS: [{Column.PASSAGE_ID, Column.TEXT}],
    Table.TRAINING: [
        {Column.QUERY, Column.POSITIVE},
        {Column.QUERY, Column.TEXT, Column.LABEL},
        {Column.QUERY_ID, Column.POSITIVE_ID, Column.NEGATIVE_ID},
        {Column.QUERY_ID, Column.POSITIVE, Column.NEGATIVE},
        {Column.QUERY_ID, Column.NEGATIVE},
        {Column.QUERY_ID, Column.NEGATIVE_ID},
    ],
    Table.SENTENCES: [
        {Column.ANCHOR, Column.POSITIVE, Column.NEGATIVE},
        {Column.SENTENCE_1, Column.SENTENCE_2, Column.SENTENCE_3},
        {Column.SENTENCE_1, Column.SENTENCE_2, Column.LABEL},
    ],
    Table.CLICKS: [
        {Column.QUERY_ID, Column.PASSAGE_ID, Column.COUNT},
        {Column.QUERY, Column.PASSAGE_ID, Column.COUNT},
    ],
}
# Columns that a header may have more than once: negative_1, negative_2.
REPEATABLE = {Column.POSITIVE, Column.NEGATIVE, Column.NEGATIVE_ID, Column.EXTRA}
# Names that are of columns and hardly of anything else (`did` is a word of many queries): a first
# line with one of them that is no header as a whole is reported.
TELLING = set(f"{QUERY_IDS} {PASSAGE_IDS}".split()) - {"did"}
# Headers that messages recommend.
EXAMPLE_HEADERS = {
    Table.RUN: "qid Q0 docid rank score tag",
    Table.QRELS: "qid iter docid relevance",
    Table.QUERIES: "qid, query",
    Table.CORPUS: "docid, title, text",
    Table.TRAINING: "query, positive, negative; or qid, positive_id, negative_id",
    Table.SENTENCES: "sentence1, sentence2, score; or anchor, positive, negative",
    Table.CLICKS: "query, docid, clicks",
}


def plain_name(name: str) -> str:
    """Return a column's name without case, quotes, and signs.

    >>> plain_name('"Query-ID"'), plain_name("query_id")
    ('queryid', 'queryid')
    """
    return re.sub(r"[\W_]+", "", name).casefold()


@lru_cache(maxsize=4096)
def column_of(name: str, table: Table) -> Column | None:
    """Return what a column of this name holds; None if the name is not known.

    >>> column_of("doc_id", Table.RUN), column_of("negative_2", Table.TRAINING)
    (<Column.PASSAGE_ID: 'passage id'>, <Column.NEGATIVE: 'negative'>)
    """
    plain = plain_name(name)
    for column, names in NAMES[table].items():
        known_names = names.split()
        if plain in known_names:
            return column
        if column in REPEATABLE and plain.rstrip("0123456789") in known_names:
            return column
    return None


def columns_by_meaning(names: Iterable[str], table: Table) -> dict[Column, str]:
    """Return the name of each column that has a known one: of several, the first in `NAMES`.

    >>> columns_by_meaning(["note", "query-id", "rel", "score"], Table.QRELS)[Column.GRADE]
    'score'
    """
    name_by_column: dict[Column, str] = {}
    for name in names:
        column = column_of(name, table)
        if column is None:
            continue
        earlier_name = name_by_column.setdefault(column, name)
        if _preference(name, column, table) < _preference(earlier_name, column, table):
            name_by_column[column] = name
    return name_by_column


def has_required_columns(columns: AbstractSet[Column], table: Table) -> bool:
    """Return whether the columns are enough for a table: one set of `REQUIRED` and perhaps more."""
    return any(required <= columns for required in REQUIRED[table])


def _preference(name: str, column: Column, table: Table) -> int:
    """Return the position of a name in `NAMES`; the lowest is preferred."""
    known_names = NAMES[table][column].split()
    plain = plain_name(name)
    if plain not in known_names:  # negative_2
        return len(known_names)
    return known_names.index(plain)


class Header(NamedTuple):
    """A header line: the names of the columns, and what they hold."""

    names: tuple[str, ...]
    columns: tuple[Column, ...]
    is_quoted: bool = False

    def position(self, column: Column) -> int | None:
        """Return the first position of a column; None if the table lacks it."""
        return self.columns.index(column) if column in self.columns else None


def recognise_header(cells: Sequence[str], table: Table) -> Header | None:
    """Return the header that the cells of a table's first line are; None if they are a record.

    They are a header if each of them is a known name, if no meaning is there twice, and if the
    columns that the table needs are there. A query with the id `id` and the text `query` is
    therefore read as a header where it stands first, and as a query anywhere else: such a query is
    next to unknown, headers are common, and the log names the header that was recognised.

    >>> recognise_header(["docid", "Query ID", "rel"], Table.QRELS).columns[1]
    <Column.QUERY_ID: 'query id'>
    >>> recognise_header(["id", "a query"], Table.QUERIES) is None
    True
    """
    names = cell_names(cells)
    columns: list[Column] = []
    for name in names:
        column = column_of(name, table)
        if column is None or (column in columns and column not in REPEATABLE):
            return None
        columns.append(column)
    if not has_required_columns(set(columns), table):
        return None
    return Header(names, tuple(columns), are_quoted(cells))


def cell_names(cells: Sequence[str]) -> tuple[str, ...]:
    """Return the cells of a header as names, without quotes and blanks around them."""
    return tuple(cell.strip().strip('"').strip() for cell in cells)


def are_quoted(cells: Sequence[str]) -> bool:
    """Return whether all cells of a line begin with a quote."""
    return all(cell.strip().startswith('"') for cell in cells)


# The sorted names of headers that belong to a format, BEIR's qrels and DPR's passages. They are not
# reported, as the format is.
HEADERS_OF_FORMATS = {("corpus-id", "query-id", "score"), ("id", "text", "title")}


def log_header(header: Header, path: str | Path, line: int) -> None:
    """Report that a line was recognised as a header."""
    if tuple(sorted(header.names)) in HEADERS_OF_FORMATS:
        return
    name = files.display_name(path)
    logger.info(f"{name}: line {line} is a header ({', '.join(header.names)})")


def read_header(
    cells: Sequence[str], table: Table, path: str | Path, line: int = 1
) -> Header | None:
    """Return a table's header, or None if its first line is a record; log what was decided."""
    header = recognise_header(cells, table)
    if header is None:
        warn_of_possible_header(cells, table, path, line)
    else:
        log_header(header, path, line)
    return header


def cells_under_header(
    names: Sequence[str], cells: Sequence[str], path: str | Path, line: int, *, is_quoted: bool
) -> Sequence[str]:
    """Return the cells of a row, one for each name of the header, without quotes around them."""
    if len(cells) != len(names):
        expected = f"{len(names)}: {', '.join(names)}"
        raise InputError(path, line, columns_phrase(len(cells)), expected)
    if not is_quoted:
        return cells
    return [unquote_cell(cell) for cell in cells]


def warn_of_possible_header(
    cells: Sequence[str], table: Table, path: str | Path, line: int
) -> None:
    """Warn of a first line that is read as a record and looks like a header."""
    hint = header_hint(cells, table)
    if hint is not None:
        name = files.display_name(path)
        logger.warning(f"{name}: line {line} ({show_cells(cells)}) is read as a record; {hint}")


def has_telling_name(cells: Sequence[str]) -> bool:
    """Return whether a line has a name that only columns have."""
    return any(plain_name(cell) in TELLING for cell in cells)


def header_hint(cells: Sequence[str], table: Table) -> str | None:
    """Return a hint for a line that is no header as a whole and looks like one; else None.

    It does if all its cells are known names, or if one of them is a name that only columns have.
    """
    if len(cells) < 2:
        return None
    unknown_cells = [cell for cell in cells if column_of(cell, table) is None]
    if unknown_cells and not has_telling_name(cells):
        return None
    reason = "its columns have one meaning twice, or lack one"
    if unknown_cells:
        reason = f"{show_cells(unknown_cells)}: not known as a column of {table}"
    return f"if it is a header, write {EXAMPLE_HEADERS[table]} ({reason}), or leave it out"


def show_cells(cells: Sequence[str]) -> str:
    """Return the first cells of a line for a message, on one line."""
    beginnings = [cell.strip()[:40] for cell in cells[:8]]
    return ", ".join(cell if cell.isprintable() else repr(cell) for cell in beginnings)


def split_columns(line: str) -> list[str]:
    """Return the columns of a line of a run or of qrels: between tabs, or between blanks.

    Names may have blanks between tabs; ids have none.
    """
    cells = line.split("\t")
    if len(cells) < 3:  # fewer than a run or qrels have: blanks separate them
        return line.split()
    return cells


def run_or_qrels(names: Iterable[str]) -> Table | None:
    """Return whether columns, or keys of JSON records, are those of a run or of qrels.

    Where `score` may be either, the names of BEIR's qrels are qrels, all others a run.

    >>> run_or_qrels(["qid", "docid", "score"]), run_or_qrels(["query-id", "corpus-id", "score"])
    (<Table.RUN: 'run'>, <Table.QRELS: 'qrels'>)
    """
    keys = list(names)
    run_columns = columns_by_meaning(keys, Table.RUN)
    qrels_columns = columns_by_meaning(keys, Table.QRELS)
    is_run = has_required_columns(run_columns.keys(), Table.RUN)
    is_qrels = has_required_columns(qrels_columns.keys(), Table.QRELS)
    if is_run and is_qrels:
        has_run_column = Column.RANK in run_columns or Column.TAG in run_columns
        is_beir = plain_name(qrels_columns[Column.PASSAGE_ID]) == "corpusid"
        return Table.QRELS if is_beir and not has_run_column else Table.RUN
    if is_run:
        return Table.RUN
    if is_qrels:
        return Table.QRELS
    return None


class TrainingColumns(NamedTuple):
    """Which columns of training data hold the query, its passages and the label.

    A column is its name, or its number where columns have no names.
    """

    query: Any = None
    positives: tuple[Any, ...] = ()
    negatives: tuple[Any, ...] = ()
    query_id: Any = None
    label: Any = None
    ignored: tuple[Any, ...] = ()
    by_position: tuple[Any, ...] = ()  # those of the query and passages that no name decided
    is_in_order: bool = True  # the uses are those by order alone; nothing to report

    def __str__(self) -> str:
        uses = [f"query: {self.query}"]
        uses += [f"positive: {name}" for name in self.positives]
        uses += [f"negative: {name}" for name in self.negatives]
        if self.query_id is not None:
            uses.append(f"query id: {self.query_id}")
        if self.label is not None:
            uses.append(f"label: {self.label}")
        uses += [f"not used: {name}" for name in self.ignored]
        return ", ".join(uses)


def training_columns(names: Sequence[Any], *, ids: bool = False) -> TrainingColumns:
    """Return what the columns of training data are, in texts or, with `ids`, in ids alone.

    Known names win over the order. What has no known name takes, in order, what is still missing:
    query, positive, negatives, as in sentence-transformers, where the order alone counts. Numbers
    are columns without names.

    >>> print(training_columns(["positive", "anchor"]))
    query: anchor, positive: positive
    >>> print(training_columns(["text1", "text2", "text3"]))
    query: text1, positive: text2, negative: text3
    """
    names_by_column, positional_names = _sort_training_names(names, ids)
    label = _take_names(names_by_column, Column.LABEL)
    query_id: list[Any] = []
    if ids:
        query = _take_names(names_by_column, Column.QUERY_ID, Column.QUERY)
        positives = _take_names(names_by_column, Column.POSITIVE_ID, Column.POSITIVE)
        negatives = _take_names(names_by_column, Column.NEGATIVE_ID, Column.NEGATIVE)
    else:
        query = _take_names(names_by_column, Column.QUERY)
        query_id = _take_names(names_by_column, Column.QUERY_ID)
        positives = _take_names(names_by_column, Column.POSITIVE, Column.TEXT)
        negatives = _take_names(names_by_column, Column.NEGATIVE)
    for name in positional_names:
        if not query:
            query = [name]
        elif not positives:
            positives = [name]
        else:
            negatives = [*negatives, name]
    names_by_use = [*query, *positives, *negatives]
    names_in_order = [name for name in names if name not in label]
    has_unknown_name = any(isinstance(name, str) for name in positional_names)
    return TrainingColumns(
        query=query[0] if query else None,
        positives=tuple(positives),
        negatives=tuple(negatives),
        query_id=query_id[0] if query_id else None,
        label=label[0] if label else None,
        ignored=tuple(chain.from_iterable(names_by_column.values())),
        by_position=tuple(positional_names),
        is_in_order=not has_unknown_name and names_by_use == names_in_order,
    )


def _take_names(names_by_column: dict[Column, list[Any]], *columns: Column) -> list[Any]:
    """Remove and return the names of the first of some columns that is there; [] of none."""
    for column in columns:
        if column in names_by_column:
            return names_by_column.pop(column)
    return []


def _sort_training_names(
    names: Sequence[Any], ids: bool
) -> tuple[dict[Column, list[Any]], list[Any]]:
    """Return the names of each known meaning, and those that only their position explains."""
    columns: list[Column | None] = []
    for name in names:
        is_position = not isinstance(name, str)  # of a column without a name
        columns.append(None if is_position else column_of(name, Table.TRAINING))
    if Column.POSITIVE in columns and not ids:
        # a context holds the answer: beside a positive it is no negative
        columns = [
            Column.EXTRA if name == "context" else column
            for name, column in zip(names, columns, strict=True)
        ]
    # names with these meanings explain nothing here: their position counts
    unexplained = {Column.EXTRA, Column.TEXT} if ids else set()
    # beside a query, a `passage` is the positive where none is named so
    if Column.POSITIVE in columns or Column.QUERY not in columns:
        unexplained.add(Column.TEXT)
    single_columns = (Column.QUERY, Column.QUERY_ID, Column.TEXT, Column.LABEL)
    names_by_column: dict[Column, list[Any]] = {}
    positional_names = []
    for name, column in zip(names, columns, strict=True):
        is_second = column in single_columns and column in names_by_column
        if column is None or column in unexplained or is_second:
            positional_names.append(name)
        else:
            names_by_column.setdefault(column, []).append(name)
    return names_by_column, positional_names
