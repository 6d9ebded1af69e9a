"""What the guards of rank and score leave of each query's hits, run by run, on the disk."""

from collections import Counter
from pathlib import Path

import numpy as np
import orjson

from denserk.data.negatives import (
    Drops,
    Hit,
    Pool,
    choose,
    count_ties,
    guard_hits,
    merge_pools,
    rank_hits,
)
from denserk.errors import InputError
from denserk.formats.detection import told
from denserk.formats.passage_texts import PassageTexts, ScratchRecords
from denserk.formats.runs import RankedList, read_run
from denserk.reporting import track
from denserk.settings.formats import RunFormat
from denserk.settings.mining import MiningSettings
from denserk.tasks.mining_queries import MiningQueries, named

ASKED_FOR = "queries of a run that are not asked for"
TIES = "ties, ordered by descending passage id"


class MiningPools:
    """Takes the hits of runs, whatever the order of their queries; gives them back by query.

    In memory are 8 bytes a query and run.

    Args:
        path: the file for what is kept.
        queries: the queries that are asked for.
        numbers: which of them.
        runs: how many runs there will be.
        settled: what passes here becomes a negative if it is drawn, so that only what is drawn is
            kept: there is one run, and no guard looks at texts.
        settings: the guards.
        drops: counts what is dropped.
    """

    def __init__(
        self,
        path: Path,
        queries: MiningQueries,
        numbers: range,
        *,
        runs: int,
        settled: bool,
        settings: MiningSettings,
        drops: Drops,
    ) -> None:
        self._queries, self._numbers, self._settled = queries, numbers, settled
        self._settings, self._drops = settings, drops
        self._records = ScratchRecords(path)
        self._rows = np.full((len(numbers), runs), -1, dtype=np.int64)
        self.noticed: Counter[str] = Counter()

    def read(
        self,
        run: int,
        path: str,
        form: RunFormat | None,
        texts: PassageTexts | None,
    ) -> None:
        """Takes the hits of a run.

        Args:
            run: its number, from 0.
            path: the file.
            form: its shape; None detects it.
            texts: where given, is told of the passages that are kept.

        Raises:
            InputError: the run is broken, empty, or of other queries.
        """
        known = others = 0
        passed = self.noticed if self._settings.skip_missing else None
        with track(f"reading {told(path)}", None, "queries") as progress:
            for group in read_run(path, form, passed):
                progress.advance()
                number = self._queries.number_of.get(group.qid)
                if number is None:
                    others += 1
                    continue
                known += 1
                if number in self._numbers:
                    self._add(run, number, group, texts)
        if not known:
            found = "no hits" if not others else f"none of the {len(self._queries):,} queries"
            raise InputError(path, None, found, "hits for the queries that are mined for")
        self.noticed[ASKED_FOR] += others

    def _add(self, run: int, number: int, group: RankedList, texts: PassageTexts | None) -> None:
        self.noticed[TIES] += count_ties(group.scores)
        ranked = rank_hits(group.docids, group.scores)
        positives = self._queries.positives[number]
        places, suspected = guard_hits(ranked, positives, self._settings, self._drops)
        if self._settled:
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
        """The candidates of a query, best first, each passage once; counts what is dropped."""
        pools = [
            (run, Pool(*orjson.loads(self._records[row])))
            for run, row in enumerate(self._rows[number - self._numbers.start].tolist())
            if row >= 0
        ]
        return merge_pools(pools, self._drops)

    def absent(self) -> list[int]:
        """The queries that no run has."""
        lacking = np.flatnonzero((self._rows < 0).all(axis=1))
        return [self._numbers[place] for place in lacking.tolist()]

    def refuse_absent(self, runs: str) -> None:
        """Refuses queries that no run has, by name.

        Raises:
            InputError: there are some.
        """
        absent = self.absent()
        if absent:
            raise InputError(
                runs,
                None,
                f"no hits for {len(absent):,} of {len(self._numbers):,} queries "
                f"({named(self._queries.example(number).qid for number in absent)})",
                "hits for every query",
                "add --skip-missing to leave such queries out",
            )

    def close(self) -> None:
        """Lets the file go."""
        self._records.close()
