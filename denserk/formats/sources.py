"""A collection by path or by name -> records.

A source is a file, a folder, "-" for standard input, `irds:NAME` (a data set of ir_datasets) or
`beir:NAME` (one of BEIR). A bare id of ir_datasets, such as msmarco-passage/dev/small, stands for
itself where no such path exists.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from denserk.errors import InputError, MismatchError, UsageError
from denserk.formats import data_sets, question_answers, trec_qrels
from denserk.formats.corpus_file import read_corpus_file
from denserk.formats.detection import told
from denserk.formats.files import STREAM
from denserk.formats.id_ledger import IdLedger
from denserk.formats.manifest import NAME as MANIFEST
from denserk.formats.topics_file import read_topics_file
from denserk.records import Passage, Qrel, Query
from denserk.settings.formats import DETECTED, CorpusSettings, QrelsFormat, TopicsFormat

logger = logging.getLogger(__name__)

CORPUS_ENDINGS = (".json", ".jsonl", ".tsv")


class _Located:
    """A source once it is known what kind it is: one of `path` and `irds` is set."""

    def __init__(self, source: str) -> None:
        self.path: Path | None = None
        self.irds: str | None = None
        self.split: str | None = None
        if source.startswith(data_sets.IRDS):
            self.irds = source.removeprefix(data_sets.IRDS)
        elif source.startswith(data_sets.BEIR):
            name, self.split = data_sets.split_beir(source)
            self.path = data_sets.beir_folder(name)
        elif source == STREAM or Path(source).exists():
            self.path = Path(source)
        elif "/" in source and data_sets.knows_irds(source):
            logger.info(f"{source}: a data set of ir_datasets")
            self.irds = source
        else:
            raise UsageError(f"{source}: no such file or folder", _by_name(source))


def _by_name(source: str) -> str | None:
    if "/" not in source or Path(source).suffix or Path(source).parent.exists():
        return None
    return f"if it is a data set of ir_datasets, write {data_sets.IRDS}{source}"


def read_passages(
    source: str,
    settings: CorpusSettings = DETECTED,
    fields: Sequence[str] | None = None,
) -> Iterator[Passage]:
    """Passages of a corpus, in its order, in constant memory.

    Args:
        source: a file; a folder (a BEIR folder means its corpus.jsonl, another one all of its
            .json, .jsonl and .tsv files, sorted by name); "-"; `irds:NAME`; `beir:NAME`.
        settings: a forced shape, and where ids and fields are found.
        fields: fields asked for by name, which Anserini's `contents` are split into.

    Raises:
        UsageError: there is no such source.
        InputError: it holds no passages, or a line of it is broken.
    """
    count = empty = 0
    for passage in _passages(source, settings, fields):
        count += 1
        if _is_blank(passage.text) and _is_blank(passage.title):
            empty += 1
        yield passage
    if not count:
        raise InputError(source, None, "no passages", "at least one")
    if empty:
        logger.info(f"{told(source)}: {empty:,} of {count:,} passages are empty")


def _is_blank(text: str) -> bool:
    return not text or text.isspace()


def _passages(
    source: str, settings: CorpusSettings, fields: Sequence[str] | None
) -> Iterator[Passage]:
    located = _Located(source)
    if located.path is None:
        assert located.irds is not None
        yield from data_sets.irds_passages(located.irds)
        return
    for path in corpus_files(located.path):
        yield from read_corpus_file(path, settings, fields)


def corpus_files(path: Path) -> list[Path]:
    """The files of a corpus: itself, a BEIR folder's corpus, or all of a folder, sorted by name.

    Raises:
        UsageError: the folder holds none.
    """
    if not path.is_dir():
        return [path]
    own = _first_of(path, "corpus.jsonl")
    if own is not None:
        return [own]
    files = [
        item
        for item in sorted(path.iterdir(), key=lambda item: item.name)
        if item.name.removesuffix(".gz").endswith(CORPUS_ENDINGS)
        and not item.name.startswith(".")
        and item.name != MANIFEST
        and item.is_file()
    ]
    if not files:
        raise UsageError(
            f"{path} holds no corpus", "*.json, *.jsonl or *.tsv files, perhaps with .gz"
        )
    return files


def _first_of(folder: Path, name: str) -> Path | None:
    return next((p for p in (folder / name, folder / f"{name}.gz") if p.is_file()), None)


def read_queries(
    source: str,
    form: TopicsFormat | None = None,
    qrels: str | None = None,
) -> Iterator[Query]:
    """Queries of a source, in its order.

    Args:
        source: a file; a folder (a BEIR folder means its queries.jsonl, another one is taken for
            EntityQuestions); "-"; `irds:NAME`; `beir:NAME`; `beir:NAME/SPLIT` (its judged queries).
        form: the shape; None detects it.
        qrels: keep only the queries that these judge (BEIR's queries.jsonl holds all splits).

    Raises:
        UsageError: there is no such source.
        InputError: it holds no queries, a line of it is broken, or an id comes twice.
        MismatchError: the qrels judge none of them.
    """
    judged = None if qrels is None else read_qrels_map(qrels)
    seen: set[str] = set()
    kept = 0
    for query in _queries(source, form):
        if query.qid in seen:
            raise InputError(source, None, f"the query id {query.qid} twice", "each id once")
        seen.add(query.qid)
        if judged is None or query.qid in judged:
            kept += 1
            yield query
    if not seen:
        raise InputError(source, None, "no queries", "at least one")
    if judged is not None:
        if not kept:
            raise MismatchError(
                f"{qrels} judges queries such as {next(iter(judged))}, and none of the "
                f"{len(seen):,} queries of {source}, such as {next(iter(seen))}",
                "name the qrels of these queries",
            )
        lacking = len(judged) - kept
        logger.info(
            f"{told(source)}: {kept:,} of {len(seen):,} queries are judged in {qrels}"
            + (f", which judges {lacking:,} more" if lacking else "")
        )


def _queries(source: str, form: TopicsFormat | None, *, textless: bool = False) -> Iterator[Query]:
    located = _Located(source)
    if located.path is None:
        assert located.irds is not None
        yield from data_sets.irds_queries(located.irds)
    elif not located.path.is_dir():
        yield from read_topics_file(located.path, form, textless=textless)
    elif (own := _first_of(located.path, "queries.jsonl")) is not None:
        queries = read_topics_file(own, form)
        if located.split is None:
            yield from queries
        else:
            judged = trec_qrels.read_qrels_map(_qrels_file(located.path, located.split))
            yield from (query for query in queries if query.qid in judged)
    else:
        yield from _relations(located.path)


def _relations(folder: Path) -> Iterator[Query]:
    files = sorted(
        (item for item in folder.iterdir() if question_answers.is_relation_file(item)),
        key=lambda item: item.name,
    )
    if not files:
        raise UsageError(
            f"{folder} holds no queries", "queries.jsonl, or P17.test.json and its like"
        )
    logger.info(f"{folder.name}: entity-questions queries ({len(files)} relations)")
    for item in files:
        yield from read_topics_file(item, TopicsFormat.ENTITY_QUESTIONS)


def read_qrels(source: str, form: QrelsFormat | None = None) -> Iterator[Qrel]:
    """Judgements of a source, in its order.

    Args:
        source: a file; a BEIR folder with one split; "-"; `irds:NAME`; `beir:NAME/SPLIT`.
        form: the shape; None detects it.

    Raises:
        UsageError: there is no such source, or the split is missing.
        InputError: a line of it is broken.
    """
    located = _Located(source)
    if located.path is None:
        assert located.irds is not None
        yield from data_sets.irds_qrels(located.irds)
        return
    path = located.path
    if path.is_dir():
        path = _qrels_file(path, located.split)
    yield from trec_qrels.read_qrels(path, form)


def read_qrels_map(source: str, form: QrelsFormat | None = None) -> dict[str, dict[str, int]]:
    """All judgements of a source: query -> passage -> relevance.

    Raises:
        UsageError: see `read_qrels`.
        InputError: see `read_qrels`.
    """
    return trec_qrels.map_qrels(read_qrels(source, form))


def _qrels_file(folder: Path, split: str | None) -> Path:
    """The judgements of one split of a BEIR folder; without a split, of its only one."""
    where = folder / "qrels"
    splits = sorted(item for item in where.glob("*.tsv*")) if where.is_dir() else []
    names = {item.name.partition(".")[0]: item for item in splits}
    if split is None and len(names) == 1:
        return splits[0]
    if split is None or split not in names:
        there = ", ".join(sorted(names, key=_preference)) or "none"
        asked = f"no split {split}" if split else "several splits"
        raise UsageError(
            f"{where}: {asked if names else 'no judgements'} (there: {there})",
            f"name one: {where / (min(names, key=_preference) + '.tsv')}" if names else None,
        )
    return names[split]


def _preference(split: str) -> tuple[int, str]:
    """Sort key of splits: the one that results are published on comes first."""
    order = ("test", "dev", "train")
    return order.index(split) if split in order else len(order), split


def read_answers(source: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The answers of each question: from a file of `_id` and `answers`, or from queries.

    Raises:
        UsageError: there is no such source.
        InputError: it holds no answers, or a line of it is broken.
    """
    for query in read_questions(source):
        yield query.qid, query.answers


def read_questions(source: str) -> Iterator[Query]:
    """Questions with their answers; the text is empty where a file has ids and answers alone.

    Args:
        source: as for `read_queries`.

    Raises:
        UsageError: there is no such source.
        InputError: it holds no answers, a line of it is broken, or an id comes twice.
    """
    found = False
    seen: set[str] = set()
    for query in _queries(source, None, textless=True):
        if query.qid in seen:
            raise InputError(source, None, f"the query id {query.qid} twice", "each id once")
        seen.add(query.qid)
        found = found or bool(query.answers)
        yield query
    if not found:
        raise InputError(source, None, "no answers", "questions with `answers`")


def duplicate(
    source: str, unit: str, positions: tuple[int, int], read: Callable[[], Iterator[Sequence[Any]]]
) -> InputError:
    """Return the error about an id that occurs twice.

    Args:
        source: what was read.
        unit: "passages" or "queries".
        positions: of both, from 0.
        read: reads the source once more, for the id; standard input is not read again.
    """
    first, second = positions
    name = "an id" if source == STREAM else f"the id {next(islice(read(), second, None))[0]}"
    return InputError(
        source,
        None,
        f"{name} twice: {unit} {first + 1:,} and {second + 1:,}",
        "ids that occur once",
        "remove or rename one of them",
    )


def refuse_duplicates(read: Callable[[], Iterator[Passage]], source: str) -> Iterator[Passage]:
    """Yield the passages of a source; after the last one, reject a corpus that has an id twice.

    Ids are kept as 128-bit hashes on the disk (see `IdLedger`), 24 bytes each; memory is constant.

    Raises:
        InputError: an id occurs twice.
    """
    with IdLedger() as ledger:
        for passage in read():
            ledger.add(passage.docid)
            yield passage
        repeat = ledger.first_repeat()
    if repeat is not None:
        raise duplicate(source, "passages", repeat, read)
