"""Queries to mine for, their candidate passages from runs, and the texts of both.

Queries and hits wait in temporary files until their turn comes, in the order of the training data;
memory holds ids and a few bytes per query and run. So neither the order of a run nor the division
into shards changes what a query gets.
"""

from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np
import orjson

from denserk.config.mining import MiningPaths, MiningSettings
from denserk.errors import InputError
from denserk.io.corpus import PassageTexts
from denserk.io.files import ScratchRecords, display_name
from denserk.io.qrels import read_qrels
from denserk.io.runs import RankedList, read_run
from denserk.io.topics import read_queries, read_questions
from denserk.io.training import RANDOM_NEGATIVES, read_training
from denserk.mining.guards import (
    Drops,
    Hit,
    Pool,
    choose,
    count_ties,
    guard_hits,
    merge_pools,
    rank_hits,
)
from denserk.records import Candidate, TrainingExample
from denserk.reporting import track


class MiningQueries:
    """Queries with their positives, each query once, numbered in the order of their input."""

    def __init__(self, records: ScratchRecords) -> None:
        self._records = records
        self._rows: list[int] = []
        self._more: dict[int, list[int]] = {}
        self.number_of: dict[str, int] = {}
        self.positives: list[tuple[str, ...]] = []
        self.answered = self.without_ids = 0

    def read(self, paths: MiningPaths, min_relevance: int, left_out: Counter[str]) -> None:
        """Read training data, or topics and qrels; count what is left out.

        Raises:
            InputError: an input is broken, or no query has a positive.
        """
        answers = {q.qid: q.answers for q in read_questions(paths.answers)} if paths.answers else {}
        relevant: dict[str, list[str]] = {}
        if paths.qrels is not None:
            for qid, docid, grade in read_qrels(paths.qrels, paths.qrels_format):
                if grade >= min_relevance:
                    relevant.setdefault(qid, []).append(docid)
        for example in _examples(paths, relevant):
            if example.positives:
                found = answers.get(example.qid, ())
                self._add(example._replace(answers=found) if found else example)
            else:
                left_out["queries without a positive"] += 1
        if not self._rows:
            judged = f"judgements of grade {min_relevance} or more for queries of {paths.topics}"
            source = paths.train or paths.qrels or ""
            expected = "at least one" if paths.train else judged
            raise InputError(source, None, "no query with a positive", expected)
        for qid, docids in relevant.items():
            if qid in self.number_of:
                self._exclude(self.number_of[qid], docids)
            elif paths.train is None:
                left_out["judged queries without a text"] += 1

    def __len__(self) -> int:
        return len(self._rows)

    def _add(self, example: TrainingExample) -> None:
        """Keep a query with its positives, without its negatives."""
        positives = [(c.docid, c.text, c.title, c.score, dict(c.extra)) for c in example.positives]
        extra = {key: value for key, value in example.extra.items() if key != RANDOM_NEGATIVES}
        record = [example.qid, example.query, positives, (), example.answers, extra]
        row = self._records.append(orjson.dumps(record))
        number = self.number_of.setdefault(example.qid, len(self._rows))
        if number == len(self._rows):
            self._rows.append(row)
            self.positives.append(())
        else:
            self._more.setdefault(number, []).append(row)
        ids = [candidate.docid for candidate in example.positives]
        self._exclude(number, filter(None, ids))
        self.without_ids += "" in ids
        self.answered += bool(example.answers)

    def _exclude(self, number: int, docids: Iterable[str]) -> None:
        """Add passages that are never negatives of a query."""
        self.positives[number] = tuple(dict.fromkeys((*self.positives[number], *docids)))

    def example(self, number: int) -> TrainingExample:
        """Return a query with the positives of all its rows, without negatives."""
        rows = [self._rows[number], *self._more.get(number, ())]
        found = [TrainingExample(*orjson.loads(self._records[row])) for row in rows]
        positives: dict[str, Candidate] = {}
        for candidate in (Candidate(*each) for example in found for each in example.positives):
            # rows of one query share their positives; one row keeps its own as they are
            key = candidate.docid or candidate.text if len(rows) > 1 else str(len(positives))
            positives.setdefault(key, candidate)
        answers = dict.fromkeys(answer for example in found for answer in example.answers)
        kept = tuple(answers) if len(rows) > 1 else tuple(found[0].answers)
        return found[0]._replace(positives=tuple(positives.values()), negatives=(), answers=kept)


def _examples(paths: MiningPaths, relevant: dict[str, list[str]]) -> Iterator[TrainingExample]:
    queries = read_queries(paths.topics, paths.topics_format) if paths.topics is not None else ()
    if paths.train is None:
        for query in queries:
            positives = tuple(map(Candidate, relevant.get(query.qid, ())))
            yield TrainingExample(query.qid, query.text, positives, (), query.answers)
        return
    texts = {query.qid: query.text for query in queries}
    for example in read_training(paths.train, paths.train_format):
        yield example._replace(query=example.query or texts.get(example.qid, ""))


class MiningPools:
    """Each query's hits that the guards of rank and score let pass, in a temporary file.

    Args:
        records: the file.
        queries: the queries.
        numbers: those of this shard.
        runs: number of runs.
        final: nothing is guarded later, so only the hits that `choose` draws are kept.
        settings: the guards.
        drops: counts what is dropped.
    """

    def __init__(
        self,
        records: ScratchRecords,
        queries: MiningQueries,
        numbers: range,
        *,
        runs: int,
        final: bool,
        settings: MiningSettings,
        drops: Drops,
    ) -> None:
        self._queries, self._numbers, self._final = queries, numbers, final
        self._settings, self._drops = settings, drops
        self._records = records
        self._rows = np.full((len(numbers), runs), -1, dtype=np.int64)
        self.noticed: Counter[str] = Counter()

    def read(self, run: int, paths: MiningPaths, texts: PassageTexts | None) -> None:
        """Read the run of a number, from 0; note in `texts` the passages that are kept.

        Raises:
            InputError: the run is broken, empty, or of other queries.
        """
        path = paths.run[run]
        known = others = 0
        passed = self.noticed if self._settings.skip_missing else None
        with track(f"reading {display_name(path)}", None, "queries") as progress:
            for group in read_run(path, paths.run_format, passed):
                progress.advance()
                number = self._queries.number_of.get(group.qid)
                known += number is not None
                others += number is None
                if number is not None and number in self._numbers:
                    self._add(run, number, group, texts)
        if not known:
            found = "no hits" if not others else f"none of the {len(self._queries):,} queries"
            raise InputError(path, None, found, "hits for the queries that are mined for")
        self.noticed["queries of a run that are not asked for"] += others

    def _add(self, run: int, number: int, group: RankedList, texts: PassageTexts | None) -> None:
        self.noticed["ties, ordered by descending passage id"] += count_ties(group.scores)
        ranked = rank_hits(group.docids, group.scores)
        positives = self._queries.positives[number]
        places, suspected = guard_hits(ranked, positives, self._settings, self._drops)
        if self._final:
            drawn = choose(len(places), group.qid, self._settings)
            places, suspected = [places[place] for place in drawn], []
        docids = [ranked.docids[place] for place in places]
        scores = [ranked.scores[place] for place in places]
        if texts is not None:
            texts.refer(docids)
        record = (docids, [place + 1 for place in places], scores, suspected)
        row = self._records.append(orjson.dumps(record))
        self._rows[number - self._numbers.start, run] = row

    def hits(self, number: int) -> list[Hit]:
        """Return a query's candidates, best first, each passage once; count what is dropped."""
        pools = [
            (run, Pool(*orjson.loads(self._records[row])))
            for run, row in enumerate(self._rows[number - self._numbers.start].tolist())
            if row >= 0
        ]
        return merge_pools(pools, self._drops)

    def absent(self) -> list[int]:
        """Return the queries that no run contains."""
        lacking = np.flatnonzero((self._rows < 0).all(axis=1))
        return [self._numbers[place] for place in lacking.tolist()]
