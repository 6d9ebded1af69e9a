"""The queries that negatives are mined for: from training data, or from topics and judgements.

Queries, positives and their texts are kept on the disk; in memory are the ids.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import orjson

from denserk.errors import InputError
from denserk.formats.passage_texts import ScratchRecords
from denserk.formats.sources import read_answers, read_qrels, read_queries
from denserk.formats.training import read_training
from denserk.formats.training_records import RANDOM_NEGATIVES
from denserk.records import Candidate, TrainingExample
from denserk.settings.mining import MiningPaths

NAMED = 5
"""Ids of a fault that are named."""


class MiningQueries:
    """Queries by number, in the order of their input, each once.

    Rows of one query are one: their positives come together.

    Args:
        path: the file for what is kept.
    """

    def __init__(self, path: Path) -> None:
        self._records = ScratchRecords(path)
        self._rows: list[int] = []
        self._more: dict[int, list[int]] = {}
        self.number_of: dict[str, int] = {}
        self.positives: list[tuple[str, ...]] = []
        self.answered = 0
        self.idless = 0

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, example: TrainingExample) -> None:
        """Takes a query with its positives; its negatives are left."""
        row = self._records.append(_packed(example))
        number = self.number_of.setdefault(example.qid, len(self._rows))
        if number == len(self._rows):
            self._rows.append(row)
            self.positives.append(())
        else:
            self._more.setdefault(number, []).append(row)
        ids = [candidate.docid for candidate in example.positives]
        self.exclude(number, filter(None, ids))
        self.idless += "" in ids
        self.answered += bool(example.answers)

    def exclude(self, number: int, docids: Iterable[str]) -> None:
        """Passages that are never negatives of a query."""
        self.positives[number] = tuple(dict.fromkeys((*self.positives[number], *docids)))

    def example(self, number: int) -> TrainingExample:
        """A query with its positives, without negatives."""
        rows = [self._rows[number], *self._more.get(number, ())]
        first, *others = (_unpacked(self._records[row]) for row in rows)
        if not others:
            return first
        positives = {(c.docid or c.text): c for c in first.positives}
        answers = dict.fromkeys(first.answers)
        for other in others:
            answers.update(dict.fromkeys(other.answers))
            for candidate in other.positives:
                positives.setdefault(candidate.docid or candidate.text, candidate)
        return first._replace(positives=tuple(positives.values()), answers=tuple(answers))

    def close(self) -> None:
        """Lets the file go."""
        self._records.close()


def _packed(example: TrainingExample) -> bytes:
    positives = [(c.docid, c.text, c.title, c.score, dict(c.extra)) for c in example.positives]
    extra = {key: value for key, value in example.extra.items() if key != RANDOM_NEGATIVES}
    return orjson.dumps([example.qid, example.query, positives, example.answers, extra])


def _unpacked(record: bytes) -> TrainingExample:
    qid, query, positives, answers, extra = orjson.loads(record)
    return TrainingExample(
        qid, query, tuple(Candidate(*values) for values in positives), (), tuple(answers), extra
    )


def gather_queries(
    queries: MiningQueries,
    paths: MiningPaths,
    min_relevance: int,
    counts: Counter[str],
) -> None:
    """Reads the queries, their positives and their answers.

    Args:
        queries: takes them.
        paths: the inputs.
        min_relevance: grade from which a judged passage is a positive.
        counts: gets the numbers of what was left out.

    Raises:
        UsageError: an input is not there.
        InputError: an input is broken, or there is no query with a positive.
    """
    answers = dict(read_answers(paths.answers)) if paths.answers else {}
    relevant = _relevant(paths, min_relevance)
    examples = _from_topics(paths, relevant)
    if paths.train is not None:
        examples = _from_training(paths)
    for example in examples:
        if not example.positives:
            counts["queries without a positive"] += 1
            continue
        found = answers.get(example.qid, ())
        queries.add(example._replace(answers=found) if found else example)
    if not queries:
        raise InputError(
            paths.train or paths.qrels or "",
            None,
            "no query with a positive",
            "at least one"
            if paths.train
            else f"judgements of grade {min_relevance} or more for queries of {paths.topics}",
        )
    for qid, docids in relevant.items():
        if qid in queries.number_of:
            queries.exclude(queries.number_of[qid], docids)
        elif paths.train is None:
            counts["judged queries without a text"] += 1


def _relevant(paths: MiningPaths, min_relevance: int) -> Mapping[str, list[str]]:
    relevant: dict[str, list[str]] = {}
    if paths.qrels is not None:
        for qid, docid, grade in read_qrels(paths.qrels, paths.qrels_format):
            if grade >= min_relevance:
                relevant.setdefault(qid, []).append(docid)
    return relevant


def _from_topics(
    paths: MiningPaths, relevant: Mapping[str, list[str]]
) -> Iterator[TrainingExample]:
    assert paths.topics is not None
    for query in read_queries(paths.topics, paths.topics_format):
        positives = tuple(map(Candidate, relevant.get(query.qid, ())))
        yield TrainingExample(query.qid, query.text, positives, (), query.answers)


def _from_training(paths: MiningPaths) -> Iterator[TrainingExample]:
    assert paths.train is not None
    texts: dict[str, str] = {}
    if paths.topics is not None:
        queries = read_queries(paths.topics, paths.topics_format)
        texts = {query.qid: query.text for query in queries}
    for example in read_training(paths.train, paths.train_format):
        yield example._replace(query=example.query or texts.get(example.qid, ""))


def named(ids: Iterable[str]) -> str:
    """The first few of some ids, for a message; more of them are not asked for."""
    some: dict[str, None] = {}
    for each in ids:
        some[each] = None
        if len(some) > NAMED:
            break
    names = list(some)
    return ", ".join(names[:NAMED]) + (", ..." if len(names) > NAMED else "")
