"""The one place that decides what a file or a folder is.

`RULES` is the table of what files look like and what each of them is read as; the first rule that
holds of a `FileHead` counts. Where a command or an option has said of which kind a file is,
`RULES_OF_A_KIND` follow: of any file they would claim too many. `FOLDER_RULES` are those of
folders.

The condition of a rule is a function, and its docstring says which files it holds of. In a head,
`keys` and `fields` are those of the first JSON record (none if the record is longer than the head),
`cells` stand between tabs and `terms` between white space in one line, `rows` have the cells of the
first lines, and `width` is the number of cells in each of the rows (0 if it differs).

JSON records of queries and of passages are read by their keys: `TOPICS_KEYS` and `CORPUS_KEYS`.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from enum import StrEnum
from functools import partial
from itertools import chain, islice
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from denserk.config.encoding import VectorFormat
from denserk.config.formats import (
    CorpusFormat,
    Kind,
    QrelsFormat,
    RunFormat,
    TopicsFormat,
    TrainingFormat,
)
from denserk.errors import InputError, UsageError
from denserk.io import files, written_files
from denserk.io.clicks import clicks_header
from denserk.io.column_names import (
    Column,
    Table,
    column_of,
    columns_by_meaning,
    has_required_columns,
    recognise_header,
    run_or_qrels,
)
from denserk.io.data_sets import BEIR, IRDS, knows_irds
from denserk.io.file_head import FileHead
from denserk.io.json_records import RecordKeys
from denserk.io.model_files import MODEL_FILES
from denserk.io.outputs import DOCID, INDEX, MANIFEST
from denserk.io.pool import is_pool_header
from denserk.io.short_texts import columns_phrase, is_number, unquote_cell
from denserk.io.tables import HUB
from denserk.io.text_files import (
    MARKDOWN,
    TEXT_ENDINGS,
    file_name_hint,
    is_document,
    is_named,
    walk,
)
from denserk.io.unread_files import (
    DOCUMENT_ENDINGS,
    is_binary,
    pairs_hint,
    reject_binary,
    unread_file_error,
    unread_folder,
)
from denserk.io.vector_formats import QUERIES_FILE

Format = TypeVar("Format", bound=StrEnum)

# The kind of file whose formats an enumeration lists.
KIND_OF_FORMATS: Mapping[type[StrEnum], Kind] = {
    CorpusFormat: Kind.CORPUS,
    TopicsFormat: Kind.QUERIES,
    QrelsFormat: Kind.QRELS,
    RunFormat: Kind.RUN,
    VectorFormat: Kind.VECTORS,
    TrainingFormat: Kind.TRAINING,
}
# How files that are no text begin.
PARQUET = b"PAR1"
NUMPY = b"\x93NUMPY"
PICKLE = b"\x80"
PICKLE_ENDINGS = (".pkl", ".pickle")

# The keys of JSON records by format. The first format whose keys a record has counts. Files of
# queries that are no JSON (TSV, DPR, TREC, COLON, CLICKS) have the keys of the records that
# `topics` makes of them.
CORPUS_KEYS = {
    CorpusFormat.ANSERINI: RecordKeys(("id", "_id", "docid"), ("contents",)),
    CorpusFormat.BEIR: RecordKeys(("_id", "id"), ("text",), "title"),
    CorpusFormat.TEVATRON: RecordKeys(
        ("docid", "passage_id"),
        ("text", "passage"),
        "title",
        # of MS MARCO v2, where the docid is that of the document which the passage is from
        ids_by_text={"passage": ("pid", "docid", "passage_id")},
    ),
    CorpusFormat.FLAG: RecordKeys((), ("text",), "title", must_have_id=False),
    CorpusFormat.JSON: RecordKeys(("_id",), ("text", "contents"), "title"),
}
TOPICS_KEYS = {
    TopicsFormat.BEIR: RecordKeys(("_id",), ("text",)),
    TopicsFormat.TEVATRON: RecordKeys(("query_id",), ("query", "query_text")),
    TopicsFormat.ANSERINI: RecordKeys(("id", "qid"), ("query", "title", "text")),
    TopicsFormat.QA: RecordKeys(("_id", "id", "qid"), ("question",), must_have_id=False),
    TopicsFormat.ENTITY_QUESTIONS: RecordKeys((), ("question",), must_have_id=False),
    TopicsFormat.TSV: RecordKeys(("id",), ("text",)),
    TopicsFormat.DPR: RecordKeys((), ("question",), must_have_id=False),
    TopicsFormat.TREC: RecordKeys(("id",), ("text",)),
    TopicsFormat.COLON: RecordKeys(("id",), ("text",)),
    TopicsFormat.CLICKS: RecordKeys(("id",), ("text",)),
    TopicsFormat.JSON: RecordKeys(("_id",), ("text", "query", "query_text", "question", "title")),
}
# The keys of the positives and the negatives of JSON training data.
PASSAGE_LISTS = {
    TrainingFormat.TEVATRON: ("positive_passages", "negative_passages"),
    TrainingFormat.TEVATRON_IDS: ("positive_document_ids", "negative_document_ids"),
    TrainingFormat.DPR: ("positive_ctxs", "hard_negative_ctxs"),
    TrainingFormat.FLAG: ("pos", "neg"),
}
QUERY_KEYS = {"question", "query", "query_id", "query_text", "qid"}
LABELLED_QUERY_KEYS = {"anchor", "query", "question"}  # sentences have labels, too
NEGATIVE_LIST_COLUMNS = {Column.QUERY_ID, Column.NEGATIVE, Column.NEGATIVE_ID}

PREDICTIONS = re.compile(rb'\s*\{\s*"mteb_model_meta"')  # how mteb's begin
# {query: {passage: number}}, as pytrec_eval, ranx and BEIR have runs and qrels
OBJECT_OF_SCORES = re.compile(
    rb'\s*\{\s*(?!"mteb_model_meta")"(?:[^"\\]|\\.)*"\s*:'
    rb'\s*\{\s*(?:\}|"(?:[^"\\]|\\.)*"\s*:\s*-?[0-9])'
)
FRACTION = re.compile(rb":\s*-?[0-9]+[.eE]")  # a number that is no grade
# {id: text}; the group is the first id
OBJECT_OF_TEXTS = re.compile(rb'\s*\{\s*"((?:[^"\\]|\\.)*)"\s*:\s*"')
EMPTY_OBJECT = re.compile(rb"\s*\{\s*\}\s*\Z")
# {query id: [...]}
OBJECT_OF_LISTS = re.compile(rb'\s*\{\s*"(?:[^"\\]|\\.)*"\s*:\s*\[')
# llama_index's data sets, which begin with any of their parts, perhaps after their mode
EMBEDDING_PARTS = {"queries", "corpus", "relevant_docs"}
EMBEDDING_DATA = re.compile(
    rb'\s*\{\s*(?:"mode"\s*:\s*"[^"]*"\s*,\s*)?"(?:queries|corpus|relevant_docs)"\s*:\s*\{'
)
# {query id: {...}}, perhaps on several lines
OBJECT_OF_OBJECTS = re.compile(rb'\s*\{\s*"(?:[^"\\]|\\.)*"\s*:\s*\{')
TREC_DOCUMENT = re.compile(
    rb"(?is)\s*(?:<\?xml.*?\?>\s*|<!.*?>\s*|<(?:docs|root|trec)>\s*)*<doc>.{0,4000}?<docno>"
)
RELATION_FILE = re.compile(r"P\d+\..*json(\.gz)?")
TOPIC_TAG = re.compile(rb"<(topics?|top)[\s>]", re.IGNORECASE)
GRADE = re.compile(r"([+-]?[0-9]{1,18})(\.0*)?")  # trec_eval reads 1.0 as 1

FIVE_COLUMNS_HINT = "if this is a run without tags, write one behind each line"
RANKED_LINES = 2000  # that decide whether a third column has ranks


def is_answer_list(column: str) -> bool:
    """Return whether a column looks like a list written as a Python literal, quoted or not."""
    bare = unquote_cell(column.strip())
    return bare.startswith("[") and bare.endswith("]")


def is_relation_file(path: str | Path) -> bool:
    """Return whether a file is named as EntityQuestions names its relations: P17.test.json."""
    return RELATION_FILE.fullmatch(Path(path).name) is not None


class Rule(NamedTuple):
    """What files look like, and what they are read as: kinds, and the format of each of them.

    Of several kinds the name of the file decides. A format of None is left to the reader, which
    goes by the keys or the columns, or reports which of them are missing.
    """

    looks_like: str
    holds: Callable[[FileHead], bool]
    formats: Mapping[Kind, StrEnum | None]


# files that are no text


def is_parquet(head: FileHead) -> bool:
    """A file of Parquet; its rows are read as JSON where its name ends in .parquet."""
    return head.data.startswith(PARQUET)


def is_array(head: FileHead) -> bool:
    """A .npy file."""
    return head.data.startswith(NUMPY)


def is_pickle(head: FileHead) -> bool:
    """A pickle; those of protocol 0 have nothing but their names."""
    return head.data.startswith(PICKLE) or head.name.endswith(PICKLE_ENDINGS)


# documents


def is_trec_document(head: FileHead) -> bool:
    """A tag <DOC>, before one <DOCNO>; comments and a declaration of XML may come first."""
    return TREC_DOCUMENT.match(head.data) is not None


def is_markdown(head: FileHead) -> bool:
    """A file that is named .md."""
    return is_named(head.name, MARKDOWN)


# JSON


def has_vector(head: FileHead) -> bool:
    """JSON records with the key `vector`."""
    return "vector" in head.keys


def has_predictions(head: FileHead) -> bool:
    """One JSON object that begins with mteb's description of the model."""
    return PREDICTIONS.match(head.data) is not None


def has_ids_of_systems(head: FileHead) -> bool:
    """JSON records of MS MARCO's hard negatives: ids by system."""
    has_negatives_by_system = isinstance(head.fields.get("neg"), dict)
    return has_negatives_by_system or {"qid", "pos"} <= head.keys


def has_passage_list(head: FileHead, training_format: TrainingFormat) -> bool:
    """JSON records with the positives or the negatives of a format of training data."""
    return not head.keys.isdisjoint(PASSAGE_LISTS[training_format])


def is_relation(head: FileHead) -> bool:
    """A JSON array that is named as EntityQuestions names its relations."""
    return is_relation_file(head.name) and head.line.lstrip().startswith("[")


def has_question_with_answer_list(head: FileHead) -> bool:
    """JSON records of a question and the list of its answers: a `positive` would be one text."""
    return head.keys == {"question", "answer"} and isinstance(head.fields["answer"], list)


def has_labelled_query(head: FileHead) -> bool:
    """JSON records of a query, and whether a passage answers it."""
    return "label" in head.keys and not LABELLED_QUERY_KEYS.isdisjoint(head.keys)


def has_training_texts(head: FileHead) -> bool:
    """JSON records whose keys are columns of training data."""
    has_passages = not head.key_meanings.isdisjoint((Column.POSITIVE, Column.NEGATIVE))
    return has_passages or has_labelled_query(head)


def has_training_ids(head: FileHead) -> bool:
    """JSON records of three ids: of a query, a positive and a negative."""
    if len(head.keys) != 3 or Column.LABEL in head.key_meanings:
        return False
    may_be_training_data = has_training_texts(head) or Column.QUERY_ID in head.key_meanings
    if not may_be_training_data:
        return False
    names_ids = {Column.POSITIVE_ID, Column.NEGATIVE_ID} <= head.key_meanings
    return names_ids or all(type(value) is int for value in head.fields.values())


def has_training_columns(head: FileHead) -> bool:
    """JSON records of an anchor, or of a query with a positive, a negative or a label."""
    return has_training_texts(head) or "anchor" in head.keys


def is_object_of_scores(head: FileHead) -> bool:
    """One JSON object of scores or grades, as pytrec_eval and BEIR have them."""
    return head.has_values_of(dict) and OBJECT_OF_SCORES.match(head.data) is not None


def is_embedding_data(head: FileHead) -> bool:
    """One JSON object with queries, passages and which of them belong together."""
    if head.fields:  # the whole object is in the head
        return head.keys >= EMBEDDING_PARTS
    return EMBEDDING_DATA.match(head.data) is not None


def is_object_by_query(head: FileHead) -> bool:
    """One JSON object with an object or a list for each query, or without queries."""
    starts = (OBJECT_OF_OBJECTS, OBJECT_OF_LISTS, EMPTY_OBJECT)
    return head.has_values_of(dict, list) and any(start.match(head.data) for start in starts)


def is_object_of_lists(head: FileHead) -> bool:
    """One JSON object with a list for each query."""
    return head.has_values_of(list) and OBJECT_OF_LISTS.match(head.data) is not None


def is_one_object(head: FileHead) -> bool:
    """A JSON object after which no other follows, as far as the head shows."""
    is_cut = not head.fields
    return _begins_with_object(head) and (is_cut or len(head.lines) == 1)


def has_texts_by_id(head: FileHead) -> bool:
    """One JSON object of texts by id: a key has a digit, and none is known as a field's name."""
    start = OBJECT_OF_TEXTS.match(head.data)
    # beside texts, an id may have a record
    if start is None or not is_one_object(head) or not head.has_values_of(str, dict):
        return False
    keys = head.keys
    if not keys:  # the object is longer than the head
        first_key = start[1].decode("utf-8", "replace")
        keys = {first_key}
    return any(map(_has_digit, keys)) and not any(map(_is_field, keys))


def _has_digit(name: str) -> bool:
    """Return whether a key has a digit, as ids have."""
    return any(map(str.isdigit, name))


def _is_field(name: str) -> bool:
    """Return whether a key is the known name of a field of queries, passages or examples."""
    return any(column_of(name, table) is not None for table in Table)


def has_passages_by_id(head: FileHead) -> bool:
    """One JSON object of records by id, of which the first has a text and nothing of a query."""
    if not is_object_of_records(head) or head.first_member is None:
        return False
    _, record = head.first_member
    has_text = not {"text", "contents"}.isdisjoint(record)
    return has_text and QUERY_KEYS.isdisjoint(record)


def has_other_records_by_id(head: FileHead) -> bool:
    """One JSON object of records by id, whose first one has no key that is known of queries."""
    if not is_object_of_records(head) or not is_one_object(head) or head.first_member is None:
        return False
    _, record = head.first_member
    return bool(record) and QUERY_KEYS.isdisjoint(record)


def has_hits(head: FileHead) -> bool:
    """JSON records with the names of a run's columns."""
    return run_or_qrels(head.keys) is Table.RUN


def has_judgments(head: FileHead) -> bool:
    """JSON records with the names of the columns of qrels."""
    return run_or_qrels(head.keys) is Table.QRELS


def has_keys_of_beir_qrels(head: FileHead) -> bool:
    """JSON records with BEIR's ids of queries and passages."""
    return {"query-id", "corpus-id"} <= head.keys


def has_ids_alone(head: FileHead) -> bool:
    """JSON records with the ids of a query and a passage, and without a text."""
    return {"qid", "docid"} <= head.keys and head.keys.isdisjoint({"text", "contents"})


def document_list_key(record: Mapping[str, Any]) -> str | None:
    """Return the key of a record's list of token ids or of spans, which pre-training reads.

    >>> document_list_key({"text": [101, 2054]}), document_list_key({"text": "one"})
    ('text', None)
    """
    for key in ("text", "spans"):
        if isinstance(record.get(key), list):
            return key
    return None


def has_document_list(head: FileHead) -> bool:
    """JSON records of a document whose text is a list: token ids, or spans."""
    key = document_list_key(head.fields)
    if key == "spans":  # a passage may have spans beside its text
        return "text" not in head.keys
    return key is not None


def has_generated_queries(head: FileHead) -> bool:
    """JSON records of `generate`: a passage's id with its queries."""
    return {"docid", "queries"} <= head.keys and "text" not in head.keys


def has_docid_with_text(head: FileHead) -> bool:
    """JSON records with a passage and the id of a query, but not that query's text."""
    return {"docid", "qid", "text"} <= head.keys and head.keys.isdisjoint({"query", "question"})


def has_query(head: FileHead) -> bool:
    """JSON records with one of the keys that queries alone have."""
    return not head.keys.isdisjoint(QUERY_KEYS)


def is_object_of_records(head: FileHead) -> bool:
    """One JSON object with a record for each query."""
    if not _begins_with_object(head):
        return False
    if head.fields:
        return head.has_values_of(dict)
    return OBJECT_OF_OBJECTS.match(head.data) is not None


def is_cut_object(head: FileHead) -> bool:
    """A JSON object that does not end with its first line."""
    return _begins_with_object(head) and not head.fields


def _begins_with_object(head: FileHead) -> bool:
    """Return whether a file is JSON, and its first line begins an object, not an array."""
    return head.record is not None and head.line.lstrip().startswith("{")


def has_passage(head: FileHead) -> bool:
    """JSON records with one of the keys that passages alone have, or with title and text."""
    has_name = not head.keys.isdisjoint({"contents", "docid", "passage_id"})
    return has_name or {"title", "text"} <= head.keys


def has_title(head: FileHead) -> bool:
    """JSON records with a title."""
    return "title" in head.keys


def has_question_beside_title(head: FileHead) -> bool:
    """JSON records of a question about a text that has a title, as SQuAD's."""
    has_query = not head.keys.isdisjoint({"query", "query_text", "text"})
    return {"question", "title"} <= head.keys and not has_query


def has_text(head: FileHead) -> bool:
    """JSON records with a text."""
    return "text" in head.keys


# markup


def is_trec_topics(head: FileHead) -> bool:
    """XML with topics, or topics between the tags of `<top>`."""
    start = head.data.lstrip()[:2000]
    return start.startswith(b"<") and TOPIC_TAG.search(start) is not None


# headers


def has_run_header(head: FileHead) -> bool:
    """A header whose names are those of a run."""
    return _table_of_header(head) is Table.RUN


def has_qrels_header(head: FileHead) -> bool:
    """A header whose names are those of qrels."""
    return _table_of_header(head) is Table.QRELS


def _table_of_header(head: FileHead) -> Table | None:
    """Return whether a file's header is that of a run or of qrels; None for another, or none."""
    header = head.header(Table.RUN) or head.header(Table.QRELS)
    if header is None:
        return None
    return run_or_qrels(header.names)


def has_pool_header(head: FileHead) -> bool:
    """A header of a pool of `eval --to-judge`, between tabs, commas or semicolons."""
    return head.record is None and (is_pool_header(head.cells) or is_pool_header(head.csv_cells))


def has_clicks_header(head: FileHead) -> bool:
    """A header of a click log."""
    return head.record is None and clicks_header(head.line) is not None


def has_header_of_labelled_texts(head: FileHead) -> bool:
    """A header that qrels and training data may have, above columns of texts."""
    is_header = has_qrels_header(head) and has_training_header(head)
    return is_header and has_blank(head.rows[1:])


def has_queries_header(head: FileHead) -> bool:
    """A header whose names are those of queries."""
    return head.header(Table.QUERIES) is not None


def has_corpus_header(head: FileHead) -> bool:
    """A header whose names are those of a corpus."""
    return head.header(Table.CORPUS) is not None


def has_corpus_or_queries_header(head: FileHead) -> bool:
    """A header whose names are those of a corpus, and of queries."""
    return has_corpus_header(head) and has_queries_header(head)


def has_header_above_answer_list(head: FileHead) -> bool:
    """A header of question and answer, above a list: DPR's answers, and no positive."""
    if not has_queries_header(head) or not has_training_header(head):
        return False
    if len(head.rows) < 2:
        return False
    row_below_header = head.rows[1]
    return any(map(is_answer_list, row_below_header))


def has_training_header(head: FileHead) -> bool:
    """A header whose names are those of training data."""
    return head.header(Table.TRAINING) is not None


def has_header_of_negatives(head: FileHead) -> bool:
    """A header of query ids and their negatives."""
    header = head.header(Table.TRAINING)
    return header is not None and head.width > 0 and set(header.columns) <= NEGATIVE_LIST_COLUMNS


def has_header_of_triples(head: FileHead) -> bool:
    """A header of three ids, by its names or by the numbers below them."""
    header = head.header(Table.TRAINING)
    if header is None or head.width != 3 or Column.LABEL in header.columns:
        return False
    if Column.QUERY_ID in header.columns and Column.QUERY not in header.columns:
        return True
    cells = list(chain.from_iterable(head.rows[1:]))
    return bool(cells) and all(map(str.isdecimal, cells))


def has_header_of_texts(head: FileHead) -> bool:
    """A header of training data that names a query and its passages."""
    return has_training_header(head) and head.width > 0


def names_query_and_positive(head: FileHead) -> bool:
    """Columns of a first line that name a query and a positive, and perhaps others."""
    return head.width > 0 and _names_query_and_positive(head.cells)


def has_csv_header_of_training(head: FileHead) -> bool:
    """A header of training data between commas or semicolons."""
    return is_training_header(head.comma_cells) or is_training_header(head.semicolon_cells)


def is_training_header(cells: Sequence[str]) -> bool:
    """Return whether cells are the names of training data, or have a query and a positive."""
    is_header = recognise_header(cells, Table.TRAINING) is not None
    return is_header or _names_query_and_positive(cells)


def has_csv_header_of_corpus_or_queries(head: FileHead) -> bool:
    """A header between commas or semicolons whose names are those of a corpus, and of queries."""
    return has_csv_header_of_corpus(head) and has_csv_header_of_queries(head)


def has_csv_header_of_queries(head: FileHead) -> bool:
    """A header between commas or semicolons whose names are those of queries.

    In a .csv file there may be other columns, if the query has a name that no passage has.
    """
    if recognise_header(head.csv_cells, Table.QUERIES) is not None:
        return True
    columns = columns_by_meaning(head.csv_cells, Table.QUERIES)
    if not head.is_named_csv or not has_required_columns(columns.keys(), Table.QUERIES):
        return False
    query_name = columns.get(Column.QUERY)
    return query_name is not None and column_of(query_name, Table.CORPUS) is None


def has_csv_header_of_corpus(head: FileHead) -> bool:
    """A header between commas or semicolons whose names are those of a corpus.

    In a .csv file there may be other columns.
    """
    if recognise_header(head.csv_cells, Table.CORPUS) is not None:
        return True
    columns = columns_by_meaning(head.csv_cells, Table.CORPUS)
    return head.is_named_csv and has_required_columns(columns.keys(), Table.CORPUS)


def is_csv_of_texts(head: FileHead) -> bool:
    """A file named .csv that has neither hits nor judgments nor pairs of sentences."""
    cells = head.csv_cells
    if not is_named_csv(head) or run_or_qrels(cells) is not None:
        return False
    return recognise_header(cells, Table.SENTENCES) is None


def is_csv_of_queries(head: FileHead) -> bool:
    """Return whether a file of queries is CSV."""
    return has_csv_header_of_queries(head) or is_named_csv(head)


def is_named_csv(head: FileHead) -> bool:
    """A file named .csv, without tabs."""
    return head.is_named_csv and head.record is None and "\t" not in head.line


def _names_query_and_positive(cells: Sequence[str]) -> bool:
    """Return whether a query and a positive are among the names; others may be of any meaning."""
    meanings = {column_of(cell, Table.TRAINING) for cell in cells}
    return {Column.QUERY, Column.POSITIVE} <= meanings


def has_sentence_header(head: FileHead) -> bool:
    """A header of pairs or triplets of sentences."""
    return head.header(Table.SENTENCES) is not None


# columns


def has_blank(rows: Iterable[Sequence[str]]) -> bool:
    """Return whether a cell of some rows has a blank: it is a text then, and no id."""
    return any(" " in cell for cell in chain.from_iterable(rows))


def has_text_after_tab(head: FileHead) -> bool:
    """A column without blanks, a tab, and a column with blanks: an id and a text, probably."""
    return has_two_cells(head) and " " not in head.cells[0] and " " in head.cells[1]


def has_hit_columns(head: FileHead) -> bool:
    """Six columns with a score, or more of them: text may follow the tag."""
    terms = head.terms
    if len(terms) < 6 or not is_number(terms[4]):
        return False
    if terms[1] == "Q0":
        return True
    has_more_columns = len(terms) > 6
    if has_more_columns and terms[1] != "0":
        return False
    return is_number(terms[3])


def has_judgment_columns(head: FileHead) -> bool:
    """Four columns, a number last."""
    return len(head.terms) == 4 and is_number(head.terms[3])


def may_have_hit_columns(head: FileHead) -> bool:
    """Two columns between tabs that are six columns of a run between blanks."""
    return has_text_after_tab(head) and has_hit_columns(head)


def may_have_judgment_columns(head: FileHead) -> bool:
    """Two columns between tabs that are four columns of qrels between blanks."""
    return has_text_after_tab(head) and has_judgment_columns(head)


def has_two_cells(head: FileHead) -> bool:
    """Two columns between tabs."""
    return len(head.cells) == 2


def has_answers_after_tab(head: FileHead) -> bool:
    """Two columns between tabs, of which the second is a list."""
    return has_two_cells(head) and is_answer_list(head.cells[1])


def has_two_ids(head: FileHead) -> bool:
    """Two columns between tabs, and no blank in any."""
    return head.width == 2 and not has_blank(head.rows)


def has_list_of_ids(head: FileHead) -> bool:
    """Two columns between tabs, of which the second is a list of ids between commas."""
    return has_two_ids(head) and "," in head.rows[0][1]


def has_three_cells(head: FileHead) -> bool:
    """Three columns between tabs."""
    return len(head.cells) == 3


def has_three_ids(head: FileHead) -> bool:
    """Three columns between tabs, and no blank in any."""
    return head.width == 3 and not has_blank(head.rows)


def has_three_texts(head: FileHead) -> bool:
    """Three columns between tabs in every line."""
    return head.width == 3


def has_number_last(head: FileHead) -> bool:
    """Three columns without blanks in them, a number last."""
    if len(head.terms) != 3 or not is_number(head.terms[2]):
        return False
    _, text = head.record_line
    if "\t" not in text:
        return True
    is_below_comments = text != head.line
    if is_below_comments:  # they are among the head's rows, too, and may have any number of cells
        return text.count("\t") == 2
    return has_three_ids(head)


def has_score_last(head: FileHead) -> bool:
    """Three columns, a number last that is no whole one."""
    if not has_number_last(head):
        return False
    value = head.terms[2]
    return isfinite(float(value)) and not value.lstrip("+-").isdecimal()


def has_rank_last(head: FileHead) -> bool:
    """Three columns, of which the last counts 1, 2, 3, ... within each query."""
    return has_number_last(head) and counts_ranks(head)


def has_number_after_tabs(head: FileHead) -> bool:
    """Three columns between tabs, a number last."""
    return has_number_last(head) and has_three_cells(head)


def has_rank_after_tabs(head: FileHead) -> bool:
    """Three columns between tabs, of which the last counts within each query."""
    return has_number_after_tabs(head) and counts_ranks(head)


def counts_ranks(head: FileHead) -> bool:
    """Three columns, of which the last counts within each query, up to a line of other width."""
    hits_by_query: Counter[str] = Counter()
    for terms in islice(head.records(), RANKED_LINES):
        if len(terms) != 3:
            break
        qid, _, rank = terms
        hits_by_query[qid] += 1
        if rank != str(hits_by_query[qid]):
            return False
    return hits_by_query.total() > 0


def has_three_terms(head: FileHead) -> bool:
    """Three columns between white space."""
    return len(head.terms) == 3


def has_four_terms(head: FileHead) -> bool:
    """Four columns between white space."""
    return len(head.terms) == 4


def has_six_terms(head: FileHead) -> bool:
    """Six columns between white space, or more."""
    return len(head.terms) >= 6


def is_json(head: FileHead) -> bool:
    """JSON of any content."""
    _, text = head.record_line
    return files.is_json(text.encode())


def has_colon_lines(head: FileHead) -> bool:
    """An id with a digit, a colon, and a text in every line."""
    if "\t" in head.line or head.record is not None or not head.lines:
        return False
    return all(map(_has_id_before_colon, head.lines))


def _has_id_before_colon(line: str) -> bool:
    """Return whether a line is of TREC's Web and Million Query tracks: `wt09-1:obama family`."""
    qid, _, text = line.strip().partition(":")
    is_id = len(qid.split()) == 1 and any(map(str.isdigit, qid))
    return is_id and bool(text.strip())


def has_tab(head: FileHead) -> bool:
    """Columns between tabs."""
    return len(head.cells) > 1


RULES: Sequence[Rule] = (
    # files that are no text
    Rule("Parquet", is_parquet, {Kind.VECTORS: VectorFormat.PARQUET}),
    Rule("a NumPy array", is_array, {Kind.VECTORS: None}),
    Rule("a pickle, or a name in `.pkl` or `.pickle`", is_pickle, {Kind.VECTORS: None}),
    # documents
    Rule("`<DOC>` and `<DOCNO>` (TREC)", is_trec_document, {Kind.CORPUS: CorpusFormat.TREC}),
    Rule("a name in `.md`", is_markdown, {Kind.CORPUS: CorpusFormat.TEXT}),
    # JSON, by the keys of the first record
    Rule("JSON: `mteb_model_meta` first", has_predictions, {Kind.RUN: RunFormat.MTEB}),
    Rule("JSON: `vector`", has_vector, {Kind.VECTORS: VectorFormat.JSONL}),
    Rule("JSON: `docid` and `queries`", has_generated_queries, {Kind.GENERATED: None}),
    Rule(
        "JSON: `qid` with `pos`, or `neg` by system",
        has_ids_of_systems,
        {Kind.TRAINING: TrainingFormat.ST_IDS},
    ),
    Rule(
        "JSON: `positive_passages` or `negative_passages`",
        partial(has_passage_list, training_format=TrainingFormat.TEVATRON),
        {Kind.TRAINING: TrainingFormat.TEVATRON},
    ),
    Rule(
        "JSON: `positive_document_ids` or `negative_document_ids`",
        partial(has_passage_list, training_format=TrainingFormat.TEVATRON_IDS),
        {Kind.TRAINING: TrainingFormat.TEVATRON_IDS},
    ),
    Rule(
        "JSON: `positive_ctxs` or `hard_negative_ctxs`",
        partial(has_passage_list, training_format=TrainingFormat.DPR),
        {Kind.TRAINING: TrainingFormat.DPR},
    ),
    Rule(
        "JSON: `pos` or `neg`",
        partial(has_passage_list, training_format=TrainingFormat.FLAG),
        {Kind.TRAINING: TrainingFormat.FLAG},
    ),
    Rule(
        "JSON: an array in a file such as `P17.test.json`",
        is_relation,
        {Kind.QUERIES: TopicsFormat.ENTITY_QUESTIONS},
    ),
    Rule(
        "JSON: `question` and `answer`, a list",
        has_question_with_answer_list,
        {Kind.QUERIES: TopicsFormat.QA},
    ),
    Rule(
        "JSON: three ids, of a query, a positive and a negative",
        has_training_ids,
        {Kind.TRAINING: TrainingFormat.TRIPLES},
    ),
    Rule(
        "JSON: `anchor`, `positive`, `negative`, or `query` with `label`",
        has_training_columns,
        {Kind.TRAINING: TrainingFormat.ST_TRIPLET},
    ),
    Rule(
        "JSON: one object of scores or grades by query and passage",
        is_object_of_scores,
        {Kind.QRELS: QrelsFormat.JSON, Kind.RUN: RunFormat.JSON},
    ),
    Rule(
        "JSON: one object with `queries`, `corpus` and `relevant_docs`",
        is_embedding_data,
        {
            Kind.CORPUS: CorpusFormat.JSON,
            Kind.QUERIES: TopicsFormat.JSON,
            Kind.QRELS: QrelsFormat.JSON,
            Kind.TRAINING: TrainingFormat.LLAMA_INDEX,
        },
    ),
    Rule("JSON: query, passage, and score or rank", has_hits, {Kind.RUN: RunFormat.JSONL}),
    Rule("JSON: query, passage and grade, or BEIR's names", has_judgments, {Kind.QRELS: None}),
    Rule("JSON: `query-id` and `corpus-id`", has_keys_of_beir_qrels, {Kind.QRELS: None}),
    Rule("JSON: `qid` and `docid` without a text", has_ids_alone, {Kind.RUN: RunFormat.JSONL}),
    Rule("JSON: `text` or `spans`, a list (of `pretrain` alone)", has_document_list, {}),
    Rule(
        "JSON: `docid`, `text` and a `qid`",
        has_docid_with_text,
        {Kind.CORPUS: CorpusFormat.TEVATRON},
    ),
    Rule(
        "JSON: `question`, `query`, `query_text`, `query_id` or `qid`",
        has_query,
        {Kind.QUERIES: None},
    ),
    Rule(
        "JSON: one object with a record for each id, with `text` or `contents`",
        has_passages_by_id,
        {Kind.CORPUS: CorpusFormat.JSON, Kind.QUERIES: TopicsFormat.JSON},
    ),
    Rule(
        "JSON: one object with a text for each id, of which one has a digit",
        has_texts_by_id,
        {Kind.CORPUS: CorpusFormat.JSON, Kind.QUERIES: TopicsFormat.JSON},
    ),
    Rule(
        "JSON: one object with a record for each query id",
        is_object_of_records,
        {Kind.QUERIES: TopicsFormat.QA},
    ),
    Rule(
        "JSON: `contents`, `docid`, `passage_id`, or `title` with `text`",
        has_passage,
        {Kind.CORPUS: None},
    ),
    Rule("JSON: `title` alone", has_title, {Kind.QUERIES: None}),
    Rule("JSON: `text` alone", has_text, {Kind.CORPUS: None, Kind.QUERIES: None}),
    # markup
    Rule(
        "XML with `<topic>`, or tags of `<top>`", is_trec_topics, {Kind.QUERIES: TopicsFormat.TREC}
    ),
    # a header, by the names of its columns
    Rule(
        "a header: query, passage, and clicks or count, between tabs, commas or semicolons",
        has_clicks_header,
        {
            Kind.QUERIES: TopicsFormat.CLICKS,
            Kind.QRELS: QrelsFormat.CLICKS,
            Kind.TRAINING: TrainingFormat.CLICKS,
        },
    ),
    Rule(
        "a header: `query-id`, `corpus-id`, `score`, `query`, `text`, between tabs, commas or "
        "semicolons",
        has_pool_header,
        {Kind.QRELS: None},
    ),
    Rule("a header: query, passage, and score or rank", has_run_header, {Kind.RUN: None}),
    Rule(
        "a header: query, passage and label, above texts",
        has_header_of_labelled_texts,
        {Kind.TRAINING: TrainingFormat.ST_TRIPLET},
    ),
    Rule("a header: query, passage and grade", has_qrels_header, {Kind.QRELS: None}),
    Rule(
        "a header: question and answer, above a list in brackets",
        has_header_above_answer_list,
        {Kind.QUERIES: None},
    ),
    Rule(
        "a header: query id and negatives",
        has_header_of_negatives,
        {Kind.TRAINING: TrainingFormat.NEGATIVES},
    ),
    Rule(
        "a header: three ids, of a query, a positive and a negative",
        has_header_of_triples,
        {Kind.TRAINING: TrainingFormat.TRIPLES},
    ),
    Rule(
        "a header: query or anchor, positive, negatives",
        has_header_of_texts,
        {Kind.TRAINING: TrainingFormat.ST_TRIPLET},
    ),
    Rule(
        "a header of training data, above lines of several widths",
        has_training_header,
        {Kind.TRAINING: None},
    ),
    Rule(
        "a header: `id` and `text`",
        has_corpus_or_queries_header,
        {Kind.CORPUS: None, Kind.QUERIES: None},
    ),
    Rule(
        "a header: query id and query, or question and answers",
        has_queries_header,
        {Kind.QUERIES: None},
    ),
    Rule("a header: passage id and text", has_corpus_header, {Kind.CORPUS: None}),
    Rule("a header: two or three sentences", has_sentence_header, {Kind.TRAINING: None}),
    # columns
    Rule(
        "two columns between tabs that are the six of a run between blanks",
        may_have_hit_columns,
        {Kind.CORPUS: CorpusFormat.MARCO, Kind.QUERIES: TopicsFormat.TSV, Kind.RUN: RunFormat.TREC},
    ),
    Rule(
        "two columns between tabs that are the four of qrels between blanks",
        may_have_judgment_columns,
        {
            Kind.CORPUS: CorpusFormat.MARCO,
            Kind.QUERIES: TopicsFormat.TSV,
            Kind.QRELS: QrelsFormat.TREC,
        },
    ),
    Rule(
        "six columns with rank and score; more after `Q0` or `0`",
        has_hit_columns,
        {Kind.RUN: RunFormat.TREC},
    ),
    Rule("four columns, a number last", has_judgment_columns, {Kind.QRELS: QrelsFormat.TREC}),
    Rule("a tab, and a list in brackets", has_answers_after_tab, {Kind.QUERIES: TopicsFormat.DPR}),
    Rule(
        "a first line that names query and positive among its columns",
        names_query_and_positive,
        {Kind.TRAINING: TrainingFormat.ST_TRIPLET},
    ),
    Rule(
        "a header between commas or semicolons: query or anchor, positive",
        has_csv_header_of_training,
        {Kind.TRAINING: TrainingFormat.ST_TRIPLET},
    ),
    Rule(
        "a header between commas or semicolons: `id` and `text`",
        has_csv_header_of_corpus_or_queries,
        {Kind.CORPUS: CorpusFormat.CSV, Kind.QUERIES: None},
    ),
    Rule(
        "a header between commas or semicolons: query id and query",
        has_csv_header_of_queries,
        {Kind.QUERIES: None},
    ),
    Rule(
        "a header between commas or semicolons: passage id and text",
        has_csv_header_of_corpus,
        {Kind.CORPUS: CorpusFormat.CSV},
    ),
    Rule(
        "a name in `.csv`, and names of other columns",
        is_csv_of_texts,
        {Kind.CORPUS: CorpusFormat.CSV},
    ),
    Rule(
        "an id, a tab, and ids between commas",
        has_list_of_ids,
        {Kind.TRAINING: TrainingFormat.NEGATIVES},
    ),
    Rule(
        "two columns between tabs",
        has_two_cells,
        {Kind.CORPUS: CorpusFormat.MARCO, Kind.QUERIES: TopicsFormat.TSV},
    ),
    Rule(
        "three columns, a number last that is no whole one",
        has_score_last,
        {Kind.RUN: RunFormat.TEVATRON},
    ),
    Rule(
        "three columns between tabs, a rank last",
        has_rank_after_tabs,
        {
            Kind.RUN: RunFormat.MSMARCO,
            Kind.QRELS: QrelsFormat.BEIR,
            Kind.TRAINING: TrainingFormat.TRIPLES,
        },
    ),
    Rule(
        "three columns between tabs, a whole number last",
        has_number_after_tabs,
        {
            Kind.RUN: RunFormat.TEVATRON,
            Kind.QRELS: QrelsFormat.BEIR,
            Kind.TRAINING: TrainingFormat.TRIPLES,
        },
    ),
    Rule(
        "three columns between blanks, a rank last",
        has_rank_last,
        {Kind.RUN: RunFormat.MSMARCO, Kind.QRELS: QrelsFormat.BEIR},
    ),
    Rule(
        "three columns between blanks, a whole number last",
        has_number_last,
        {Kind.RUN: RunFormat.TEVATRON, Kind.QRELS: QrelsFormat.BEIR},
    ),
    Rule("three ids between tabs", has_three_ids, {Kind.TRAINING: TrainingFormat.TRIPLES}),
    Rule(
        "three columns between tabs",
        has_three_texts,
        {Kind.CORPUS: CorpusFormat.MARCO_TITLES, Kind.TRAINING: TrainingFormat.TEXT_TRIPLES},
    ),
    Rule(
        "three columns between tabs, above lines of other widths",
        has_three_cells,
        {Kind.CORPUS: CorpusFormat.MARCO_TITLES, Kind.TRAINING: None},
    ),
    Rule(
        "an id with a digit, a colon and a text in every line",
        has_colon_lines,
        {Kind.QUERIES: TopicsFormat.COLON},
    ),
)
# Rules for a file that is known to be of a kind, after those above.
RULES_OF_A_KIND: Sequence[Rule] = (
    Rule(
        "JSON: one object with a list for each query",
        is_object_of_lists,
        {Kind.QRELS: QrelsFormat.JSON, Kind.RUN: RunFormat.JSON},
    ),
    Rule(
        "JSON: one object with an object for each query",
        is_object_by_query,
        {Kind.RUN: RunFormat.JSON, Kind.QRELS: QrelsFormat.JSON},
    ),
    Rule("JSON of other keys", is_json, {Kind.RUN: RunFormat.JSONL}),
    Rule(
        "JSON: one object with a record for each passage id",
        has_other_records_by_id,
        {Kind.CORPUS: CorpusFormat.JSON},
    ),
    Rule("a name in `.csv`", is_named_csv, {Kind.CORPUS: CorpusFormat.CSV}),
    Rule("JSON: an object on several lines", is_cut_object, {Kind.QUERIES: TopicsFormat.QA}),
    Rule("six columns or more", has_six_terms, {Kind.RUN: RunFormat.TREC}),
    Rule("four columns", has_four_terms, {Kind.QRELS: QrelsFormat.TREC}),
    Rule(
        "three columns, ranks last",
        counts_ranks,
        {Kind.RUN: RunFormat.MSMARCO, Kind.QRELS: QrelsFormat.BEIR},
    ),
    Rule(
        "three columns",
        has_three_terms,
        {Kind.RUN: RunFormat.TEVATRON, Kind.QRELS: QrelsFormat.BEIR},
    ),
    Rule("columns between tabs", has_tab, {Kind.QUERIES: TopicsFormat.TSV}),
    Rule("two ids between tabs", has_two_ids, {Kind.TRAINING: TrainingFormat.NEGATIVES}),
)


def recognise(head: FileHead, kinds: AbstractSet[Kind] = frozenset()) -> Rule | None:
    r"""Return the first rule that holds of a file, among those of `kinds` if any are given.

    >>> rule = recognise(FileHead(b"q1\td1\td2\n"))
    >>> rule.looks_like, rule.formats[Kind.TRAINING]
    ('three ids between tabs', <TrainingFormat.TRIPLES: 'triples'>)
    >>> recognise(FileHead(b"q1\td1\td2\n"), {Kind.CORPUS}).looks_like
    'three columns between tabs'
    """
    rules = [*RULES, *RULES_OF_A_KIND] if kinds else RULES
    for rule in rules:
        is_possible = not kinds or not kinds.isdisjoint(rule.formats)
        if is_possible and rule.holds(head):
            return rule
    return None


def format_of(head: FileHead, formats: type[Format]) -> Format | None:
    r"""Return which of the formats of a kind a file has; None where no rule says it.

    >>> format_of(FileHead(b"q1 d1 2.5\n"), RunFormat)
    <RunFormat.TEVATRON: 'tevatron'>
    """
    kind = KIND_OF_FORMATS[formats]
    rule = recognise(head, {kind})
    if rule is None:
        return None
    detected_format = rule.formats[kind]
    return detected_format if isinstance(detected_format, formats) else None


# folders


class FolderRule(NamedTuple):
    """What folders look like by the names in them, and what they are read as."""

    looks_like: str
    holds: Callable[[AbstractSet[str]], bool]
    formats: Mapping[Kind, StrEnum | None]


def is_model_folder(names: AbstractSet[str]) -> bool:
    """A file that models alone have."""
    return not names.isdisjoint(MODEL_FILES)


def is_denserk_folder(names: AbstractSet[str]) -> bool:
    """A manifest: vectors or an index that denserk wrote."""
    return MANIFEST in names


def is_flat_index(names: AbstractSet[str]) -> bool:
    """A flat index of faiss with its ids."""
    return {INDEX, DOCID} <= names


def is_folder_of_encoded_queries(names: AbstractSet[str]) -> bool:
    """Pyserini's encoded queries."""
    return QUERIES_FILE in names


def is_beir_folder(names: AbstractSet[str]) -> bool:
    """A corpus as BEIR names it."""
    return not names.isdisjoint({"corpus.jsonl", "corpus.jsonl.gz"})


def is_folder_of_texts(names: AbstractSet[str]) -> bool:
    """Files in `.txt` or `.md` alone, beside folders."""
    visible_names = [name for name in names if not name.startswith(".")]
    has_text = any(is_named(name, *TEXT_ENDINGS) for name in visible_names)
    # a name without a suffix is taken for a folder's
    has_other_file = any(
        Path(name).suffix and not is_named(name, *TEXT_ENDINGS) for name in visible_names
    )
    return has_text and not has_other_file


def is_folder_of_relations(names: AbstractSet[str]) -> bool:
    """Files as EntityQuestions names them."""
    return any(map(is_relation_file, names))


QUOTED_MODEL_FILES = [f"`{name}`" for name in MODEL_FILES]
FOLDER_RULES: Sequence[FolderRule] = (
    FolderRule(
        f"{', '.join(QUOTED_MODEL_FILES[:-1])} or {QUOTED_MODEL_FILES[-1]}",
        is_model_folder,
        {Kind.MODEL: None},
    ),
    FolderRule("`manifest.json`", is_denserk_folder, {Kind.VECTORS: VectorFormat.NPY}),
    FolderRule("`index` and `docid`", is_flat_index, {Kind.VECTORS: VectorFormat.PYSERINI_FAISS}),
    FolderRule(
        "`embedding.pkl`",
        is_folder_of_encoded_queries,
        {Kind.VECTORS: VectorFormat.PYSERINI_QUERIES},
    ),
    FolderRule(
        "`corpus.jsonl`",
        is_beir_folder,
        {
            Kind.CORPUS: CorpusFormat.BEIR,
            Kind.QUERIES: TopicsFormat.BEIR,
            Kind.QRELS: QrelsFormat.BEIR,
        },
    ),
    FolderRule(
        "`P17.test.json` and its like",
        is_folder_of_relations,
        {Kind.QUERIES: TopicsFormat.ENTITY_QUESTIONS},
    ),
    FolderRule(
        "`.txt` and `.md` files alone",
        is_folder_of_texts,
        {Kind.CORPUS: CorpusFormat.TEXT},
    ),
)


# kinds

# terms in a name that settle what the content leaves open
NAME_TERMS = {
    Kind.CORPUS: {"corpus", "collection", "passages", "psgs"},
    Kind.QUERIES: {"queries", "topics", "questions"},
    Kind.QRELS: {"qrels"},
    Kind.RUN: {"run"},
    Kind.TRAINING: {"train", "triples", "qidpidtriples"},
    Kind.VECTORS: {"vectors", "embeddings"},
}
DATASET = frozenset({Kind.CORPUS, Kind.QUERIES, Kind.QRELS})
RUN_AND_QRELS = frozenset({Kind.RUN, Kind.QRELS})


def detect_kind(source: str, target: str) -> Kind:
    """Return what a source holds: by its content, else by its name and that of the target."""
    if source == files.STREAM:
        hint = f"add --kind with one of {', '.join(Kind)}"
        raise UsageError("what standard input holds is not guessed", hint)
    kinds = possible_kinds(source)
    if len(kinds) == 1:
        return next(iter(kinds))
    for name in (source, target):
        kind = kind_of_name(name)
        if kind is not None and (kind in kinds or not kinds):
            return kind
    if kinds == RUN_AND_QRELS:
        kind_of_scores = _kind_of_scores(source)
        if kind_of_scores is not None:
            return kind_of_scores
    if not kinds:
        _reject_unread(Path(source))
        hint = (
            "if it holds documents or passages, add --kind corpus --to beir; "
            f"else --kind with one of {', '.join(Kind)}"
        )
        raise UsageError(f"{source} is of no known kind", hint)
    choices = [kind for kind in Kind if kind in kinds]
    hint = f"add --kind with one of {', '.join(choices)}"
    if Kind.CORPUS in kinds:
        hint += " (for passages --kind corpus --to beir)"
    raise UsageError(f"{source} could hold {' or '.join(choices)}", hint)


def _reject_unread(path: Path) -> None:
    """Raise an InputError for a file or a folder of a format that is not read yet."""
    if path.is_dir():
        unread = unread_folder(path)
        if unread is not None:
            raise unread.error(path, None, "*.txt or *.md files")
    elif path.is_file():
        with files.open_ahead(path, part="train") as (data, _):
            reject_binary(data, path, Table.CORPUS)


def kind_of_name(name: str) -> Kind | None:
    """Return the kind that the terms of a name leave no choice of.

    >>> kind_of_name("data/qrels.dev.tsv")
    <Kind.QRELS: 'qrels'>
    """
    name_terms = set(re.findall("[a-z]+", Path(name).name.lower()))
    kinds = [kind for kind, terms in NAME_TERMS.items() if terms & name_terms]
    return kinds[0] if len(kinds) == 1 else None


def possible_kinds(source: str) -> AbstractSet[Kind]:
    """Return what a dataset's name, a folder or a file may hold."""
    path = Path(source)
    has_prefix = ":" in source and not path.exists()  # irds:NAME, beir:NAME, hf:NAME
    if has_prefix and source.startswith(HUB):
        return DATASET | {Kind.TRAINING}
    if has_prefix:
        return DATASET
    if path.is_dir():
        return _kinds_of_folder(path)
    return _kinds_of_file(path)


def _kinds_of_folder(folder: Path) -> AbstractSet[Kind]:
    """Return what a folder may hold, by the names in it or else by the first known file.

    Texts beside files of no known kind, or in subfolders, are a corpus.
    """
    paths = sorted(folder.iterdir())
    names = {path.name for path in paths}
    for rule in FOLDER_RULES:
        if rule.holds(names):
            return rule.formats.keys()
    # what a text begins with is no sign of a format, and a README describes the others
    other_paths = [path for path in paths if not is_named(path, *TEXT_ENDINGS)]
    for path in other_paths:
        if path.name.startswith(".") or not path.is_file() or _is_unread_document(path):
            continue
        kinds = _kinds_of_file(path)
        if kinds:
            return kinds
    if any(map(is_document, walk(folder).paths)):
        return {Kind.CORPUS}
    return set()


def _is_unread_document(path: Path) -> bool:
    """Return whether a file is a document, by its name, that must be converted first."""
    return path.suffix.lower() in DOCUMENT_ENDINGS


def _kinds_of_file(path: Path) -> AbstractSet[Kind]:
    """Return what a file may hold, by its first bytes."""
    # the rows of a table (Parquet) are opened as JSON lines
    with files.open_ahead(path, part="train") as (data, _):
        head = FileHead(data, path.name)
        may_be_vectors = is_parquet(head) or is_array(head) or is_pickle(head)
        if is_binary(data) and not may_be_vectors:  # its bytes may have the tabs of a table
            return set()
        rule = recognise(head)
    return set() if rule is None else rule.formats.keys()


def detect_run_or_qrels(name: str) -> Kind | None:
    """Return whether a source is a run or qrels; None for one that can be read only once.

    A file that could be both is what its name says; else a JSON object of scores is a run if one of
    them has a fraction, and any other file is what its rule names first. Raises an InputError for a
    file that is neither.
    """
    path = Path(name)
    if name == files.STREAM:
        return None
    if written_files.is_special(path) and not path.is_fifo():  # of a named pipe a copy can be read
        return None
    if path.is_dir() or path.suffix == ".parquet" or _is_dataset_name(name):
        return Kind.QRELS
    with files.open_ahead(name) as (data, _):
        head = FileHead(data, path.name)
    reject_binary(data, name, Table.RUN)
    rule = recognise(head, RUN_AND_QRELS)
    if rule is None:
        raise _neither_run_nor_qrels(head, name)
    kinds = [kind for kind in rule.formats if kind in RUN_AND_QRELS]
    named_kind = kind_of_name(name)
    if named_kind in kinds:
        return named_kind
    if is_object_of_scores(head) and _has_fraction(head):
        return Kind.RUN
    return kinds[0]


def _is_dataset_name(name: str) -> bool:
    """Return whether a source is no file and names a dataset."""
    if Path(name).exists():
        return False
    # ir_datasets is asked last: it makes a folder in HOME
    return name.startswith((IRDS, BEIR, HUB)) or knows_irds(name)


def may_be_run_or_qrels(name: str) -> bool:
    """Return whether a source is a JSON object of numbers whose name does not say if it is a run.

    False for what can be read only once.
    """
    return _kind_of_scores(name) is not None and kind_of_name(name) not in RUN_AND_QRELS


def _kind_of_scores(source: str) -> Kind | None:
    """Return what a JSON object of numbers probably is: a run if a number has a fraction.

    None for other sources.
    """
    path = Path(source)
    if source == files.STREAM or not (path.is_file() or path.is_fifo()):
        return None
    with files.open_ahead(path) as (data, _):
        head = FileHead(data, path.name)
    if not is_object_of_scores(head):
        return None
    return Kind.RUN if _has_fraction(head) else Kind.QRELS


def _has_fraction(head: FileHead) -> bool:
    """Return whether a number in JSON is a score: grades are whole numbers."""
    return FRACTION.search(head.data) is not None


def _neither_run_nor_qrels(head: FileHead, name: str) -> InputError:
    """Return the error of a file that is neither a run nor qrels."""
    line, text = head.record_line
    _require_utf8(head, name, line)
    expected = "a run (6 columns, or 3) or qrels (4 columns, or BEIR's header query-id ...)"
    table = run_or_qrels(text.split(",")) or run_or_qrels(text.split(";")) or Table.RUN
    error = unread_file_error(head.data, name, table, expected)
    if error is not None:
        return error
    if not text:
        return InputError(name, None, "nothing", expected)
    hint = file_name_hint(head.terms)
    if hint is None and len(head.terms) == 2:
        hint = pairs_hint(name)
    if hint is None and len(head.terms) == 5:
        hint = FIVE_COLUMNS_HINT
    return InputError(name, line, columns_phrase(len(head.terms)), expected, hint)


def _require_utf8(head: FileHead, name: str, last_line: int) -> None:
    """Raise an InputError for bytes that are not UTF-8, up to the line number `last_line`."""
    numbered_lines = enumerate(head.data.split(b"\n"), start=1)
    for _ in islice(files.decode_lines(numbered_lines, name), last_line):
        pass
